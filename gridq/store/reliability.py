"""How reliable a seat is: its record's `rel` field, which `tally` in lua/lib/reliability.lua keeps."""

from __future__ import annotations

HALF_LIFE_MS = 600_000
"""After so long an outcome counts half."""

PRIOR = 2.0
"""Successes that every seat is credited with: one failure does not condemn a new seat, and what has decayed
leaves a seat as good as new.
"""


def reliability(told: bytes | str | None, now_ms: float) -> float:
    """The part of a seat's attempts that came to something, from 0 to 1, the latest counting most.

    `told` is the field's text: successes and failures, decayed to the instant (ms) that stands behind them;
    None where nothing was counted yet. A stage's own fault is not among the failures.
    """
    if not told:
        return 1.0
    good, bad, at = map(float, told.split())
    fade: float = 0.5 ** (max(now_ms - at, 0.0) / HALF_LIFE_MS)
    return (good * fade + PRIOR) / ((good + bad) * fade + PRIOR)
