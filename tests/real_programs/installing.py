"""Install the vendors' programs in the versions of the lock files, once, below `build/`."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / "build" / "clis"
OFFLINE = re.compile(r"ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|ERR_SOCKET_TIMEOUT")
"""npm's errors if its registry cannot be reached."""


def program(name: str) -> Path:
    """Return the path of a program. Skips the test without npm or its registry."""
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
            ran = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
        except subprocess.TimeoutExpired:
            pytest.skip(f"npm has not installed {name} within 300 s")
        if ran.returncode and OFFLINE.search(ran.stderr):
            pytest.skip(f"npm cannot install {name}: {ran.stderr.strip().splitlines()[0]}")
        assert ran.returncode == 0, ran.stderr
        (folder / "done").touch()
    return folder / "node_modules" / ".bin" / name
