"""The reliability of a seat: the field `reliability` of its record (lua/lib/reliability.lua)."""

from __future__ import annotations

HALF_LIFE_MS = 600_000
"""The time after which an outcome counts half."""

PRIOR_SUCCESSES = 2.0
"""Successes that every seat is credited with: one failure does not condemn a new seat."""


def compute_reliability(text: bytes | str | None, now_ms: float) -> float:
    """Return the share of a seat's attempts that succeeded, from 0 to 1; recent ones count most.

    `text` is the field: successes and failures, and the time (ms) to which they are decayed; None if nothing
    was counted yet. A stage's own fault is not a failure of the seat.
    """
    if not text:
        return 1.0
    good, bad, at = map(float, text.split())
    fade: float = 0.5 ** (max(now_ms - at, 0.0) / HALF_LIFE_MS)
    return (good * fade + PRIOR_SUCCESSES) / ((good + bad) * fade + PRIOR_SUCCESSES)
