"""Compile a small library that plays a vendor's, for the real package that calls it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

LINES = Path(__file__).with_name("driver_lines.h")


@cache
def compile_library(code: str, source: Path, name: str, flags: Sequence[str] = ()) -> Path:
    """Return the folder with the library `name`, compiled from `code`, whose includes stand beside `source`.

    It is compiled once for each code and each user. Skips the test where there is no C compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip(f"no C compiler to build the stand-in for {name}")
    digest = hashlib.sha256("\0".join([code, LINES.read_text(), name, *flags]).encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"gridq-driver-{os.getuid()}-{digest}"
    if not (folder / name).exists():
        folder.mkdir(mode=0o700, exist_ok=True)
        made = folder / f"{os.getpid()}.so"
        options = ["-O1", "-Wall", "-Wextra", "-shared", "-fPIC", f"-Wl,-soname,{name}", *flags]
        command = [compiler, *options, "-x", "c", "-", "-o", str(made), f"-I{source.parent}"]
        subprocess.run(command, input=code, text=True, check=True)
        os.replace(made, folder / name)
    return folder
