"""Wrong clocks: a file shifts a child's `time.time()`.

In gridq only the server's clock decides anything. To show that, each machine of the chaos grid has a file
with the seconds by which its clock is off. Python's start hook `sitecustomize` applies it in the children,
also when it changes while they run.
"""

from __future__ import annotations

from pathlib import Path

from gridq.config.home import write_private

FILE = "GRIDQ_CHAOS_CLOCK"
"""The environment variable that names the file with the seconds."""

HOOK = f'''\
"""Shifts this process's clock by the seconds in the file that {FILE} names, looked at twice a second."""

import os
import time

_path = os.environ.get("{FILE}")
_time, _time_ns, _monotonic = time.time, time.time_ns, time.monotonic
_state = [0.0, 0.0]  # when to look again, the shift


def _shift():
    now = _monotonic()
    if now >= _state[0]:
        try:
            with open(_path, encoding="ascii") as file:
                _state[1] = float(file.read() or 0)
        except (OSError, ValueError):
            pass
        _state[0] = now + 0.5
    return _state[1]


if _path:
    time.time = lambda: _time() + _shift()
    time.time_ns = lambda: _time_ns() + int(_shift() * 1e9)
'''


def install(folder: Path) -> str:
    """Write the hook into `folder` and return the entry for a child's PYTHONPATH."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(HOOK, encoding="ascii")
    return str(folder)


def shift(file: Path, seconds: float) -> None:
    """Shift a machine's clock by `seconds`."""
    write_private(file, str(seconds))
