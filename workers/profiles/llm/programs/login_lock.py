"""One call at a time on a login, whichever program of this machine makes it, in a folder of its own.

Two runs of a vendor's program on one login race for its refresh token and log its owner out. A seat has one
slot, and two seats on one login are refused; the lock here is for what those rules do not see: another grid's
worker on this machine, and a program that outlives its killed worker, which inherits the lock and holds it
until its own end.

Who holds the lock owns the login's folder, and so clears away what a killed worker left there. It stands in
the user's cache: some programs take no settings from a place that others can write to, such as /tmp.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gridq.errors import SeatUnavailable
from gridq.profiles.profile import StageContext

WAIT_SECONDS = 3.0
LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class Alone:
    """`keep` are the descriptors that the program is to inherit, `folder` an empty folder for the call."""

    keep: tuple[int, ...]
    folder: Path


@contextlib.contextmanager
def alone(login: str, context: StageContext, environ: Mapping[str, str] = os.environ) -> Iterator[Alone]:
    """Within it nobody else uses `login`.

    SeatUnavailable: somebody else uses it for longer than a moment, or this user has no folder for it.
    """
    lock, folder = _opened(login, environ)
    held = False
    try:
        until = time.monotonic() + WAIT_SECONDS
        while not _taken(lock):
            context.check()
            if time.monotonic() >= until:
                why = "Another program of this machine uses the seat's login"
                raise SeatUnavailable(why, {"retry_after": 5})
            time.sleep(LOOK_SECONDS)
        held = True
        if folder.exists():  # a worker was killed in a call
            _end_all_in(folder)
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        yield Alone((lock,), folder)
    finally:
        if held:
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_UN)  # also of those that inherited it and are not gone yet
        os.close(lock)


def _end_all_in(folder: Path) -> None:
    """Kill what works in `folder`, where the system tells it: what a program has started does not end with
    it.
    """
    inside = f"{folder.resolve()}/"
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(entry / "cwd").startswith(inside):
                os.kill(int(entry.name), signal.SIGKILL)


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _opened(login: str, environ: Mapping[str, str]) -> tuple[int, Path]:
    cache = environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    base = Path(cache) / "gridq" / "logins"
    name = hashlib.sha256(login.encode()).hexdigest()[:12]  # short: programs put sockets below
    try:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(base / f"{name}.lock", flags, 0o600), base / name
    except OSError as exc:
        why = "There is no folder for the calls of the seat's program"
        raise SeatUnavailable(why, {"reason": f"{base}: {exc.strerror}"}) from None
