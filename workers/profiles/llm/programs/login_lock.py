"""Lock a login, so that this machine makes one call at a time on it, and give the call an empty folder.

Two runs of a vendor's program on one login compete for its refresh token and log its owner out. A seat has
one slot, and gridq rejects two seats on one login. The lock covers the other cases: a worker of another grid
on this machine, and a program that outlives its killed worker. Such a program inherits the lock and holds it
until it ends.

The holder of the lock owns the login's folder and removes what a killed worker left there. The folder is in
the user's cache, where nobody else can write.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gridq.errors import SeatUnavailable
from gridq.profiles.profile import StageContext

WAIT_SECONDS = 3.0
POLL_SECONDS = 0.05


@dataclass(frozen=True)
class LockedLogin:
    """`descriptors` are those that the program inherits, `folder` is an empty folder for the call."""

    descriptors: tuple[int, ...]
    folder: Path


@contextlib.contextmanager
def lock_login(login: str, context: StageContext) -> Iterator[LockedLogin]:
    """Hold the lock of `login` during the block.

    Raises SeatUnavailable if another process holds it for more than WAIT_SECONDS, or if its folder cannot be
    created.
    """
    lock, folder = _open_lock(login)
    is_held = False
    try:
        deadline = time.monotonic() + WAIT_SECONDS
        while not _try_lock(lock):
            context.check()
            if time.monotonic() >= deadline:
                message = "Another process on this machine is using the seat's login"
                raise SeatUnavailable(message, {"retry_after": 5})
            time.sleep(POLL_SECONDS)
        is_held = True
        if folder.exists():  # a worker was killed during a call
            _kill_processes_in(folder)
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        yield LockedLogin((lock,), folder)
    finally:
        if is_held:
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_UN)  # also for processes that inherited it and still run
        os.close(lock)


def _kill_processes_in(folder: Path) -> None:
    """Kill the processes that work in `folder`: children of a program do not end with it. Linux only."""
    inside = f"{folder.resolve()}/"
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(entry / "cwd").startswith(inside):
                os.kill(int(entry.name), signal.SIGKILL)


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open_lock(login: str) -> tuple[int, Path]:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    base = Path(cache) / "gridq" / "logins"
    name = hashlib.sha256(login.encode()).hexdigest()[:12]  # short, because programs create sockets below it
    try:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(base / f"{name}.lock", flags, 0o600), base / name
    except OSError as exc:
        message = "Cannot create the folder for calls of the seat's program"
        raise SeatUnavailable(message, {"reason": f"{base}: {exc.strerror}"}) from None
