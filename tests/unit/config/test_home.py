"""The home folder: files that are written whole or not at all, and what is said on Windows."""

from __future__ import annotations

import errno
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from gridq.config import home
from gridq.errors import ConfigError


def test_on_windows_the_error_names_wsl_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    spec = importlib.util.spec_from_file_location("home_on_windows", home.__file__)
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(ConfigError, match="does not run on Windows") as caught:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert "WSL 2" in (caught.value.fix or "")


FULL_DISK = """
import resource, sys
from pathlib import Path
from gridq.config.home import write_private
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))  # as a quota of the disk
for once in (False, True):
    try:
        write_private(Path(sys.argv[1]), "x" * 100, once=once)
    except OSError as exc:
        print(exc.errno)
"""


def test_a_file_that_cannot_be_written_whole_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(errno.EFBIG)] * 2
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text() == "before"
