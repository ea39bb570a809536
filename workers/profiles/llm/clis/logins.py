"""One call at a time on a login, whichever program of this machine makes it.

Two runs of a vendor's program on one login race for its refresh token and log its owner out. A seat has one
lane, and two seats on one login are refused; this lock is for what those rules do not see: another grid's
worker on this machine, and a program that outlives its killed worker, which inherits the lock and holds it
until its own end.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from gridq.errors import SeatUnavailable
from gridq.profiles import StageContext

WAIT_SECONDS = 3.0
LOOK_SECONDS = 0.05


@contextlib.contextmanager
def alone(login: str, context: StageContext) -> Iterator[tuple[int, ...]]:
    """Within it nobody else uses `login`; gives the descriptors that the program is to inherit.

    SeatUnavailable: somebody else uses it for longer than a moment. Where no lock can be had at all (no
    folder to write to), none is held.
    """
    lock = _opened(login)
    if lock is None:
        yield ()
        return
    try:
        until = time.monotonic() + WAIT_SECONDS
        while not _taken(lock):
            context.check()
            if time.monotonic() >= until:
                why = "Another program of this machine uses the seat's login"
                raise SeatUnavailable(why, {"retry_after": 5})
            time.sleep(LOOK_SECONDS)
        yield (lock,)
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_UN)  # also of those that inherited it and are not gone yet
        os.close(lock)


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _opened(login: str) -> int | None:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(cache) / "gridq" / "logins"
    name = hashlib.sha256(login.encode()).hexdigest()[:24]
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return None
