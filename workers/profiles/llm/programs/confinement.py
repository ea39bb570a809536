"""Start a program so that it cannot read the grid's own files: the home folder, and the calls of other seats.

The server's password is in the home folder. Without tools, a program reads no file for a prompt in the first
place (see vendors/). This holds for what it does otherwise, and for programs with tools.

On Linux the script `confined.py` does it, with namespaces or, where a system forbids those, with Landlock. On
macOS it is sandbox-exec. Which one works is tried once for each process. None may: old kernels, some
containers.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from gridq.config.home import get_home_folder
from gridq.config.settings import FILE_SUFFIX

CONFINED = Path(__file__).with_name("confined.py")
TRY_SECONDS = 10.0
METHODS = {"linux": ("namespace", "landlock"), "darwin": ("sandbox-exec",)}


def list_grid_paths(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Return the home folder, and the files with single settings, such as the server's password."""
    files = (
        path for name, path in environ.items() if name.startswith("GRIDQ_") and name.endswith(FILE_SUFFIX)
    )
    return [get_home_folder(), *map(Path, filter(None, files))]


def make_prefix(hidden: Iterable[Path], shown: Iterable[Path]) -> tuple[str, ...]:
    """Return a command prefix that hides folders and files from a program, () if this machine has no means.

    The folders `shown` stay visible, even if they are in hidden ones.
    """
    method = find_method()
    return _make_prefix(method, hidden, shown) if method else ()


@functools.cache
def find_method() -> str:
    """Return the means of this machine, "" if none works."""
    return next(filter(_works, METHODS.get(sys.platform, ())), "")


def _make_prefix(method: str, hidden: Iterable[Path], shown: Iterable[Path]) -> tuple[str, ...]:
    resolved = _resolve(hidden)
    # What lies in another hidden folder is hidden with it, and could not be mounted over any more.
    hidden_paths = [each for each in resolved if not any(each.startswith(f"{other}/") for other in resolved)]
    shown_paths = [
        each for each in _resolve(shown) if any(Path(each).is_relative_to(other) for other in hidden_paths)
    ]
    if method == "sandbox-exec":
        return _make_macos_prefix(hidden_paths, shown_paths)
    script = (sys.executable, "-I", "-S", str(CONFINED), method)
    return (*script, *hidden_paths, "--", *shown_paths, "--")


def _make_macos_prefix(hidden: list[str], shown: list[str]) -> tuple[str, ...]:
    rules, arguments = ["(version 1)", "(allow default)"], []
    for name, verb, paths in (("HIDDEN", "deny", hidden), ("SHOWN", "allow", shown)):
        for at, path in enumerate(paths):
            arguments += ["-D", f"{name}{at}={path}"]
            rules.append(f'({verb} file-read* file-write* (subpath (param "{name}{at}")))')
    return ("/usr/bin/sandbox-exec", *arguments, "-p", "".join(rules))


def _resolve(paths: Iterable[Path]) -> list[str]:
    return [os.path.realpath(each) for each in paths if each.exists()]


def _works(method: str) -> bool:
    """Return whether a program that is started with `method` reads what it should and nothing else."""
    with tempfile.TemporaryDirectory(prefix="gridq-cli-", ignore_cleanup_errors=True) as name:
        hidden = Path(name) / "hidden"
        shown = hidden / "shown"
        shown.mkdir(parents=True)
        (hidden / "file").write_text("hidden", "ascii")
        (shown / "file").write_text("shown", "ascii")
        command = (*_make_prefix(method, [hidden], [shown]), "/bin/sh", "-c", 'cat "$0"; cat "$1"')
        argv = [*command, str(hidden / "file"), str(shown / "file")]
        try:
            run = subprocess.run(argv, capture_output=True, timeout=TRY_SECONDS, check=False)  # noqa: S603
        except (OSError, subprocess.TimeoutExpired):
            return False
        return run.stdout == b"shown"
