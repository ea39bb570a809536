"""Why a seat takes nothing for a while, though its worker runs: its owner keeps it, or it is not well."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gridq import narration

if TYPE_CHECKING:
    from gridq.attempt import Attempt
    from gridq.executor import Session

PAUSED = "paused"
"""The state of a seat that its owner keeps."""

DEGRADED = 60.0
"""Seconds for which a seat that is logged out takes nothing."""


@dataclass(frozen=True, slots=True)
class Rest:
    """`state` and `reason` as the seat's advertisement says them; times in seconds since 1970. `until` None:
    nobody knows.
    """

    state: str
    reason: str
    since: float = field(default_factory=time.time)
    until: float | None = None


class Resting:
    """The rests of one session's seat: its owner's, which whoever asks ends, and its health's, which ends by
    itself.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.own: Rest | None = None
        self._ill: Rest | None = None
        self._ill_until = 0.0  # of the monotonic clock

    @property
    def now(self) -> Rest | None:
        """Why the seat takes nothing now; None where it does. The owner's word goes first."""
        return self.own or self._ill

    def fall_ill(self, seconds: float, reason: str, state: str = "degraded") -> None:
        """Take nothing for `seconds`: the seat is logged out, out of credit or broken. What runs goes on."""
        self._ill = Rest(state, reason, until=time.time() + seconds)
        self._ill_until = time.monotonic() + seconds
        self._say()

    def recover(self) -> None:
        """Take work again where the time of an illness is over; called with each renewal."""
        if self._ill is None or self._session.draining or time.monotonic() < self._ill_until:
            return
        self._ill = None
        if self.own is None:
            self._back()

    def withhold(self, rest: Rest) -> list[Attempt]:
        """The owner keeps the seat from now on: it takes nothing more, and what runs is stopped. What that
        was; `tell` says so to the grid. To say it again is harmless.
        """
        if self.own is None:
            narration.tell("seat kept", worker=self._session.worker)
        self.own = rest
        running = [attempt for attempt in self._session.running().values() if not attempt.made]
        for attempt in running:
            attempt.cancel("back")
        return running

    def release(self) -> None:
        """The owner lends the seat again; `tell` says so to the grid."""
        self.own = None

    def tell(self, stopped: Sequence[Attempt] = ()) -> None:
        """Tell the grid what the owner wants, and hand back with their attempts unspent the stages that were
        `stopped` for it. RedisError: it could not be told, and is to be told again.
        """
        session = self._session
        if self.now is not None:
            self._say()
        elif not session.draining:
            self._back()
        session.hand_back(stopped)

    def _say(self) -> None:
        session = self._session
        try:
            session.on_change()  # first: whoever is refused for it is told why
        finally:
            session.scripts.leave(session.seat, session.incarnation, "drain")

    def _back(self) -> None:
        self._session.register()
        narration.tell("seat back", worker=self._session.worker)
        self._session.on_change()
