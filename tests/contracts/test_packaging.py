"""The files of an installed gridq."""

from __future__ import annotations

import configparser
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("gridq", "workers", "broker_config")


def _tracked() -> set[Path]:
    listing = ["git", "ls-files", "-z", "--", *PACKAGES]
    done = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not a git checkout")
    return {ROOT / name for name in done.stdout.split("\0") if name}


def test_every_data_file_is_packaged() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    packages = {init.parent for package in PACKAGES for init in (ROOT / package).rglob("__init__.py")}
    packaged: set[Path] = set()
    for name, patterns in config["options.package_data"].items():
        folders = packages if name == "*" else {ROOT / name.replace(".", "/")}
        for pattern in patterns.replace("\n", ",").split(","):
            for folder in folders:
                packaged |= set(folder.glob(pattern.strip())) if pattern.strip() else set()
    data = {path for path in _tracked() if path.suffix != ".py"}
    assert len([path for path in data if path.suffix == ".lua"]) > 10
    assert data - packaged == set()
