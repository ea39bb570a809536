"""End the cooldown of a seat early: when its owner asks for it, or once its key or login is renewed.

`gridq seat retry` leaves a file in the home folder for each seat that is to be tried, which its worker takes.
No server and no key is needed: whoever may write in the home folder is the owner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from gridq.config.home import is_locked, make_folder_error
from gridq.execution.session import Session
from gridq.process.periodic import PeriodicThread

FOLDER = "retries"

CHECK_SECONDS = 0.5
"""Seconds between two looks at the file and the login. The login is read only during a cooldown."""


def request_retry(home: Path, seats: Iterable[str]) -> None:
    """Ask the workers of `seats` to try them now. Seats that no worker serves are left out: they try at their
    start. ConfigError: the home folder cannot be written.
    """
    folder = home / FOLDER
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for seat in seats:
            if is_locked(home / "seats", seat):
                (folder / seat).touch(mode=0o600)
    except OSError as exc:
        raise make_folder_error(folder, exc) from None


def is_retry_due(home: Path, seat: str) -> bool:
    """Return whether the seat's worker has not yet seen that it is to try the seat."""
    return (home / FOLDER / seat).exists()


class Recovery:
    """Watches for what ends the cooldown of one seat and its models early, between `start` and `stop`.

    `stamp_login()` returns a text that changes when the seat's key or login is renewed.
    """

    def __init__(self, home: Path, seat: str, session: Session, stamp_login: Callable[[], str]) -> None:
        self._request = home / FOLDER / seat
        self._session = session
        self._stamp_login = stamp_login
        self._stamp: str | None = None  # when the cooldown began; None: there is none
        self._repeat = PeriodicThread(f"recovery of {seat}", CHECK_SECONDS, self.check)

    def start(self) -> None:
        """Begin to watch. A request to the worker before this one is dropped: there is no cooldown yet."""
        self._request.unlink(missing_ok=True)
        self._repeat.start()

    def stop(self) -> None:
        self._repeat.stop()

    def check(self) -> None:
        """End the cooldown if the owner asks for it or has renewed the login. RedisError: the server could
        not be told; the session's next renewal tells it.
        """
        requested = self._request.exists()
        renewed = False
        if self._session.in_cooldown:
            stamp = self._stamp_login()
            renewed = self._stamp is not None and stamp != self._stamp
            self._stamp = stamp
        else:
            self._stamp = None
        try:
            if requested or renewed:
                self._session.end_cooldown()
        finally:
            if requested:
                self._request.unlink(missing_ok=True)
