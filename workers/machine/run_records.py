"""The record of `gridq up` or `gridq worker` in a home folder, and the lock that shows whether it
still runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from gridq.config.home import make_folder_error, read_running_record, write_private
from gridq.errors import AlreadyRunning
from workers.machine.locks import take_lock

LOCK_WAIT_SECONDS = 1.0
"""Time to wait for the record's lock."""


class RunRecord:
    """The record that the program `name` keeps in `home` while it runs;
    `gridq.config.home.read_running_record` reads it.

    AlreadyRunning: the program runs in this home already. ConfigError: the folder cannot be written.
    """

    def __init__(self, home: Path, name: str) -> None:
        self.path = home / f"{name}.json"
        try:
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(home / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise make_folder_error(home, exc) from None
        if not take_lock(self._lock, LOCK_WAIT_SECONDS):
            os.close(self._lock)
            raise make_already_running_error(home, name)
        self.path.unlink(missing_ok=True)

    def write(self, values: dict[str, Any]) -> None:
        """Replace the record's content by `values`."""
        write_private(self.path, json.dumps({"pid": os.getpid(), **values}, indent=1) + "\n")

    def close(self) -> None:
        """Remove the record: the program ends."""
        self.path.unlink(missing_ok=True)
        os.close(self._lock)


def make_already_running_error(home: Path, name: str) -> AlreadyRunning:
    """Return the error that the program `name` runs in `home` already."""
    from gridq.store.connection import redact_url

    found = read_running_record(home, name) or {}
    program = "gridq up" if name == "grid" else f"gridq {name}"
    where = {"reason": f"its server is {redact_url(found['broker_url'])}"} if "broker_url" in found else {}
    stop = "gridq down" if name == "grid" else f"kill {found.get('pid', '…')}"
    return AlreadyRunning(
        f"{program} already runs in {home}, as process {found.get('pid', 'unknown')}",
        {**where, "fix": f"use it, or stop it first: {stop}"},
    )


def read_process_start(pid: int) -> str | None:
    """Return when the process `pid` started, as the system writes it; None: there is no such process.

    It tells two processes apart that had the same id.
    """
    if sys.platform == "linux":
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        state, *rest = stat.rpartition(")")[2].split()
        return None if state == "Z" else rest[18]
    done = subprocess.run(  # noqa: S603
        ["/bin/ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or None
