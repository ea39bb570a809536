"""Why a seat takes nothing for a while, though its worker runs: its owner keeps it, or it is not well.

A seat that is not well rests: for as long as its provider says, else for DEGRADED seconds, twice as long
after each further fall, up to LONGEST. Then it is on trial, one stage at a time, until one succeeds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gridq.errors import SeatDegraded, SeatError, SeatRateLimited
from gridq.execution.outcome import seconds_of
from gridq.telemetry import narration

if TYPE_CHECKING:
    from gridq.execution.attempt import Attempt
    from gridq.execution.session import Session

PAUSED = "paused"
"""The state of a seat that its owner keeps."""

DEGRADED = 60.0
LONGEST = 3600.0
"""Seconds for which a seat rests at first, and at most, where nobody says how long."""

SOON = 20.0
"""Seconds up to which a rate limit is a moment's: the stage goes elsewhere, the seat does not rest."""

OVERLOADS = 3
"""Answers in a row by which a service that calls itself overloaded is left alone."""

OVERLOADED = "overloaded"
LIMITED = "rate_limited"
UNWELL = (
    "logged_out",
    "login_expired",
    "key_refused",
    "no_credit",
    LIMITED,
    OVERLOADED,
    "broken_install",
    "degraded",
)
"""The states of a seat that is not well; the last is any other cause."""


@dataclass(frozen=True, slots=True)
class Rest:
    """`state` and `reason` as the seat's advertisement says them; times in seconds since 1970. `until` None:
    nobody knows.
    """

    state: str
    reason: str
    since: float = field(default_factory=time.time)
    until: float | None = None


def state_of(error: SeatError) -> str:
    """Which state of a seat an error tells of: what its details call `state`, if that is one."""
    said = str(error.details.get("state", "")).replace(" ", "_")
    if said in UNWELL:
        return said
    return LIMITED if isinstance(error, SeatRateLimited) else UNWELL[-1]


class Resting:
    """The rests of one session's seat: its owner's, which whoever asks ends, and its health's, which ends by
    itself.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        self.own: Rest | None = None
        self._ill: Rest | None = None
        self._ill_until = 0.0  # of the monotonic clock
        self._trial = ""  # what it fell ill of, while it is on trial
        self._falls = 0  # without a success since
        self._overloads = 0
        self._healed = False

    @property
    def now(self) -> Rest | None:
        """Why the seat takes nothing now; None where it does. The owner's word goes first."""
        return self.own or self._ill

    @property
    def trial(self) -> str:
        """Where the seat is on trial, what it fell ill of; else empty."""
        return self._trial

    def concurrency(self, concurrency: int) -> int:
        """How many of its slots take stages."""
        return 1 if self._trial else concurrency

    # -- health

    def failed(self, error: SeatError) -> None:
        """An attempt failed by the seat's fault. RedisError: it rests, and the grid could not be told."""
        told = seconds_of(error.details.get("retry_after"))
        state = state_of(error)
        with self._lock:
            if state == OVERLOADED and not isinstance(error, SeatDegraded):
                self._overloads += 1
                ill = self._overloads >= OVERLOADS
            else:
                ill = isinstance(error, SeatDegraded) or (state == LIMITED and (told or 0.0) >= SOON)
            if not ill:
                return
            if self._ill is None:  # stages that fail side by side are one fall
                self._falls += 1
            seconds = told or min(DEGRADED * 2.0 ** min(self._falls - 1, 10), LONGEST)
        self.fall_ill(seconds, error.message, state)
        narration.tell("seat paused", code=error.code, seconds=seconds)

    def fall_ill(self, seconds: float, reason: str, state: str = UNWELL[-1]) -> None:
        """Take nothing for `seconds` from now on. What runs goes on."""
        since = self._ill.since if self._ill is not None and self._ill.state == state else time.time()
        self._trial, self._healed = "", False
        self._ill_until = time.monotonic() + seconds
        self._ill = Rest(state, reason, since, time.time() + seconds)
        self._say()

    def succeeded(self) -> None:
        """A stage was recorded: the seat is well. With the next renewal all its slots take stages again."""
        if self._falls or self._overloads:
            with self._lock:
                self._falls = self._overloads = 0
                self._healed = bool(self._trial)

    def recover(self) -> None:
        """Put the seat on trial where the time of an illness is over, and end a trial that went well; called
        with each renewal.
        """
        if self._session.draining:
            return
        if self._healed:
            self._trial, self._healed = "", False
        elif self._ill is not None and time.monotonic() >= self._ill_until:
            self._trial, self._ill = self._ill.reason, None
        else:
            return
        if self.own is None:
            self._back()

    # -- the owner

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
