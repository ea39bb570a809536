"""The circuit breaker of a seat: a state machine without a server.

Closed, the seat takes work. Two things open the breaker for a cooldown: one failure that says the seat
itself is unwell (its key is refused, its login has expired, its provider asks for a long wait), and
FAILURE_THRESHOLD failures in a row of any sort. The cooldown is as long as the provider asks for; else it
starts at COOLDOWN_SECONDS, or at FAILING_COOLDOWN_SECONDS, and doubles with each further failure. Then the
breaker is half-open: the seat takes one stage. Its success closes the breaker, its failure opens it again.

Failures in a row are counted by request: one that fails here three times may be at fault itself. One that
never reached the endpoint cannot be, so each such failure counts. What blames one model opens that model's
breaker (`gridq.execution.model_health`), not the seat's.
"""

from __future__ import annotations

import threading
import time

from gridq.errors import ModelUnavailable, SeatDegraded, SeatError, SeatRateLimited, SeatUnreachable
from gridq.execution.back_off import bounded_seconds
from gridq.protocol.seat_states import (
    DEGRADED,
    FAILING,
    RATE_LIMITED,
    UNHEALTHY,
    UNREACHABLE,
    Unavailable,
)

COOLDOWN_SECONDS = 60.0
"""The first cooldown, if the error gives none and blames something."""

COOLDOWN_MAX_SECONDS = 3600.0

FAILING_COOLDOWN_SECONDS = 10.0
"""The first cooldown of a seat that fails without a known cause: the program behind it may just restart."""

FAILING_COOLDOWN_MAX_SECONDS = 300.0

LONG_WAIT_SECONDS = 20.0
"""A shorter wait that a provider asks for does not open the breaker by itself: the stage goes elsewhere."""

FAILURE_THRESHOLD = 3
"""Failures in a row that open the breaker."""


def seat_state(error: SeatError) -> str:
    """Return the state of the seat that `error` reports: its detail `state`, if that is a known one."""
    reported = str(error.details.get("state", "")).replace(" ", "_")
    if reported in UNHEALTHY:
        return reported
    if isinstance(error, SeatRateLimited):
        return RATE_LIMITED
    if isinstance(error, SeatUnreachable):
        return UNREACHABLE
    return DEGRADED if isinstance(error, SeatDegraded | ModelUnavailable) else FAILING


class CircuitBreaker:
    """The breaker of one seat. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.opened: Unavailable | None = None
        """The reason why the breaker is open; None if it is closed or half-open."""
        self.half_open_reason = ""
        """The reason why a half-open breaker was opened; else empty."""
        self._last: Unavailable | None = None  # why it was opened last; None if it has closed since
        self._cooldown_ends = 0.0  # of the monotonic clock
        self._trips = 0  # since the last success
        self._failed: set[object] = set()  # what has failed since the last success
        self._trial_passed = False

    @property
    def is_well(self) -> bool:
        """True if it is closed, and nothing has failed since the last success."""
        return self.opened is None and not self.half_open_reason and not self._failed

    def limit_concurrency(self, concurrency: int) -> int:
        """Return how many of a seat's slots may take stages."""
        return 1 if self.half_open_reason else concurrency

    def record_failure(self, error: SeatError, request: str = "") -> float | None:
        """Count a failure of the seat. Return the cooldown in seconds if it opens the breaker.

        `request` tells requests apart: several attempts of one say no more than one. Without it each counts.
        """
        retry_after = bounded_seconds(error.details.get("retry_after"))
        state = seat_state(error)
        with self._lock:
            is_sent_away = (retry_after or 0.0) >= LONG_WAIT_SECONDS
            if not isinstance(error, SeatDegraded | ModelUnavailable) and not is_sent_away:
                is_alone = not request or isinstance(error, SeatUnreachable)
                self._failed.add(object() if is_alone else request)
                if self.opened is not None:  # it began before the breaker opened
                    return None
                if not self.half_open_reason and len(self._failed) < FAILURE_THRESHOLD:
                    return None
            if self.opened is None:  # stages that fail side by side count as one failure
                self._trips += 1
            seconds = retry_after or self._compute_cooldown(state)
            fix = error.details.get("fix")
            self._open(seconds, f"{error.message} ({fix})" if fix else error.message, state)
        return seconds

    def _compute_cooldown(self, state: str) -> float:
        first, longest = COOLDOWN_SECONDS, COOLDOWN_MAX_SECONDS
        if state in (UNREACHABLE, FAILING):
            first, longest = FAILING_COOLDOWN_SECONDS, FAILING_COOLDOWN_MAX_SECONDS
        return min(first * 2.0 ** min(self._trips - 1, 10), longest)

    def _open(self, seconds: float, reason: str, state: str) -> None:
        before = self._last
        since = before.since if before is not None and before.state == state else time.time()
        self.half_open_reason, self._trial_passed = "", False
        self._failed.clear()
        self._cooldown_ends = time.monotonic() + seconds
        self.opened = self._last = Unavailable(state, reason, since, time.time() + seconds)

    def record_success(self) -> None:
        """Count a stage that the seat ran to its end. A half-open breaker closes with the next `advance`."""
        if self._trips or self._failed:
            with self._lock:
                self._trips = 0
                self._failed.clear()
                self._trial_passed = bool(self.half_open_reason)

    def pass_trial(self) -> None:
        """Let a half-open breaker close with the next `advance`: the trial is being answered, which may take
        minutes. Earlier failures stay counted, as the answer may still break off.
        """
        if self.half_open_reason:
            with self._lock:
                self._trial_passed = bool(self.half_open_reason)

    def end_cooldown(self) -> bool:
        """End the cooldown of an open breaker; return whether it was open. `advance` makes it half-open."""
        with self._lock:
            if self.opened is None:
                return False
            self._cooldown_ends = 0.0
        return True

    def advance(self) -> bool:
        """Make the breaker half-open after its cooldown, closed after a trial; return whether it changed."""
        with self._lock:
            if self._trial_passed:
                self.half_open_reason, self._trial_passed, self._last = "", False, None
            elif self.opened is not None and time.monotonic() >= self._cooldown_ends:
                self.half_open_reason, self.opened = self.opened.reason, None
            else:
                return False
        return True
