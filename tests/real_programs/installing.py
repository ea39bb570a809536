"""Install the vendors' programs and packages in the versions of the lock files, once, below `build/`."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / "build" / "clis"
INSTALL_SECONDS = 400
"""How long one installation may take before its tests are skipped. It is within a test's own limit."""

OFFLINE = re.compile(r"ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|ERR_SOCKET_TIMEOUT")
"""npm's errors if its registry cannot be reached."""


def program(name: str) -> Path:
    """Return the path of a program. Skips the test without npm or its registry."""
    return install_npm(name) / "node_modules" / ".bin" / name


def install_python(name: str) -> Path:
    """Return the Python of an environment with the packages in a folder's `requirements.txt`.

    Skips the test without the package index.
    """
    return _install_python(name, ["--requirement", HERE / name / "requirements.txt"])


def install_open_webui() -> Path:
    """Return the program `open-webui`, installed with the requirements of its slim image only.

    Its package brings their list along; all its requirements are several gigabytes. Skips the test without
    the package index.
    """
    (package,) = (HERE / "open_webui" / "requirements.txt").read_text("utf-8").split()
    alone: list[str | Path] = ["--no-deps", package]
    python = _install_python("open_webui", alone)
    slim = next(python.parents[1].rglob("requirements-slim.txt"))
    return _install_python("open_webui", alone, ["--requirement", slim]).with_name("open-webui")


def _install_python(name: str, *steps: list[str | Path]) -> Path:
    """Run `pip install` with the arguments of each step, once for each version of the requirements."""
    requirements = HERE / name / "requirements.txt"
    folder = CACHE / f"{name}-{hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]}"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True, timeout=120)
    for number, step in enumerate(steps):
        if (folder / f"done-{number}").exists():
            continue
        argv = [python, "-m", "pip", "install", "--quiet", *step]
        try:
            ran = subprocess.run(argv, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            pytest.skip(f"pip has not installed {name} within {INSTALL_SECONDS} s")
        if ran.returncode:
            pytest.skip(f"pip cannot install {name}: {ran.stderr.strip()[-300:]}")
        (folder / f"done-{number}").touch()
    return python


def install_npm(name: str) -> Path:
    """Return the folder with the packages of a lock file. Skips the test without npm or its registry."""
    lock = HERE / name / "package-lock.json"
    folder = CACHE / f"{name}-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    if not (folder / "done").exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip(f"there is no npm to install {name} with")
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(lock, folder)
        shutil.copy(lock.with_name("package.json"), folder)
        argv = [npm, "ci", "--no-audit", "--no-fund", "--loglevel=error"]
        try:
            ran = subprocess.run(
                argv, cwd=folder, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            pytest.skip(f"npm has not installed {name} within {INSTALL_SECONDS} s")
        if ran.returncode and OFFLINE.search(ran.stderr):
            pytest.skip(f"npm cannot install {name}: {ran.stderr.strip().splitlines()[0]}")
        assert ran.returncode == 0, ran.stderr
        (folder / "done").touch()
    return folder
