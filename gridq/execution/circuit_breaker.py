"""The circuit breaker of a seat: a state machine without a server.

Closed, the seat takes work. A failure that says the seat itself is unwell opens the breaker for a cooldown:
as long as the provider asks for, else COOLDOWN_SECONDS, doubled with each further failure up to
COOLDOWN_MAX_SECONDS. Then it is half-open: the seat takes one stage at a time, until one succeeds.
"""

from __future__ import annotations

import threading
import time

from gridq.errors import ModelUnavailable, SeatDegraded, SeatError, SeatRateLimited
from gridq.execution.back_off import bounded_seconds
from gridq.protocol.seat_states import (
    COOLDOWN_SECONDS,
    DEGRADED,
    OVERLOADED,
    RATE_LIMITED,
    UNHEALTHY,
    Unavailable,
)

COOLDOWN_MAX_SECONDS = 3600.0

RATE_LIMIT_MIN_SECONDS = 20.0
"""A shorter rate limit leaves the breaker closed: the stage goes to another seat."""

OVERLOAD_THRESHOLD = 3
"""Requests in a row with an overload error that open the breaker."""


def seat_state(error: SeatError) -> str:
    """Return the state of the seat that `error` reports: its detail `state`, if that is a known one."""
    reported = str(error.details.get("state", "")).replace(" ", "_")
    if reported in UNHEALTHY:
        return reported
    return RATE_LIMITED if isinstance(error, SeatRateLimited) else DEGRADED


class CircuitBreaker:
    """The breaker of one seat. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.opened: Unavailable | None = None
        """The reason why the breaker is open; None if it is closed or half-open."""
        self.half_open_reason = ""
        """The reason why a half-open breaker was opened; else empty."""
        self._cooldown_ends = 0.0  # of the monotonic clock
        self._trips = 0  # since the last success
        self._overloaded: set[str] = set()  # requests in a row
        self._trial_passed = False

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
            if state == OVERLOADED and not isinstance(error, SeatDegraded):
                self._overloaded.add(request or str(len(self._overloaded)))
                trips = len(self._overloaded) >= OVERLOAD_THRESHOLD
            else:
                limited = state == RATE_LIMITED and (retry_after or 0.0) >= RATE_LIMIT_MIN_SECONDS
                trips = isinstance(error, SeatDegraded | ModelUnavailable) or limited
            if not trips:
                return None
            if self.opened is None:  # stages that fail side by side count as one failure
                self._trips += 1
            doubled = COOLDOWN_SECONDS * 2.0 ** min(self._trips - 1, 10)
            seconds = retry_after or min(doubled, COOLDOWN_MAX_SECONDS)
            self._open(seconds, error.message, state)
        return seconds

    def _open(self, seconds: float, reason: str, state: str) -> None:
        before = self.opened
        since = before.since if before is not None and before.state == state else time.time()
        self.half_open_reason, self._trial_passed = "", False
        self._cooldown_ends = time.monotonic() + seconds
        self.opened = Unavailable(state, reason, since, time.time() + seconds)

    def record_success(self) -> None:
        """Count a stage that the seat recorded. A half-open breaker closes with the next `advance`."""
        if self._trips or self._overloaded:
            with self._lock:
                self._trips = 0
                self._overloaded.clear()
                self._trial_passed = bool(self.half_open_reason)

    def end_rest(self) -> bool:
        """End the cooldown of an open breaker now; return whether it was open. `advance` makes it half-open."""
        with self._lock:
            if self.opened is None:
                return False
            self._cooldown_ends = 0.0
        return True

    def advance(self) -> bool:
        """Make the breaker half-open after its cooldown, closed after a trial; return whether it changed."""
        with self._lock:
            if self._trial_passed:
                self.half_open_reason, self._trial_passed = "", False
            elif self.opened is not None and time.monotonic() >= self._cooldown_ends:
                self.half_open_reason, self.opened = self.opened.reason, None
            else:
                return False
        return True
