"""Find out whether the owner uses this machine, or the program that a seat runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable

from workers.owner.activity_linux import LinuxActivity
from workers.owner.activity_macos import MacOSActivity
from workers.owner.activity_source import ActivitySource, Process


def select_source() -> ActivitySource:
    """Return the activity source of this system."""
    return MacOSActivity() if sys.platform == "darwin" else LinuxActivity()


def find_owner_process(program: str, running: Iterable[Process], grid_pids: Collection[int]) -> int | None:
    """Return the id of a process of this user that runs `program` and was not started by the grid, or None.

    `grid_pids`: the grid's own processes. What they started, and what this process started, does not count.
    """
    by_pid = {process.pid: process for process in running}
    for process in by_pid.values():
        if process.mine and process.is_program(program) and not _descends(process, by_pid, grid_pids):
            return process.pid
    return None


def _descends(process: Process, by_pid: dict[int, Process], ancestors: Collection[int]) -> bool:
    seen: set[int] = set()  # ids are reused, so parents may form a circle
    pid = process.pid
    while pid not in seen:
        if pid in ancestors or pid == os.getpid():
            return True
        seen.add(pid)
        if pid not in by_pid:
            return False
        pid = by_pid[pid].parent
    return False
