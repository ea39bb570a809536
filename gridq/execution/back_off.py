"""Back-off after a failure: how long a seat is left alone before a stage is given to it again."""

from __future__ import annotations

import math
import secrets

RETRY_AFTER_MAX_SECONDS = 24 * 3600.0
"""The longest a seat is left alone, whatever its provider asks for."""

BACK_OFF_MAX_SECONDS = 60.0
"""The longest back-off if the seat names no time. A longer GRIDQ_RETRY_BACKOFF stays as it is."""

_random = secrets.SystemRandom()


def back_off(failure: int, base: float) -> float:
    """Return the seconds to leave a seat alone after a stage's failure number `failure` (the first is 1).

    Starts at `base` and doubles up to BACK_OFF_MAX_SECONDS. The result lies somewhere in the upper half of
    that, so that stages which failed together are not retried together.
    """
    ceiling = min(base * 2 ** min(failure - 1, 30), max(base, BACK_OFF_MAX_SECONDS))
    return _random.uniform(ceiling / 2, ceiling)


def bounded_seconds(value: object) -> float | None:
    """Return a time that a profile reported, in seconds within bounds; None if it is not a number."""
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return None if math.isnan(seconds) else min(max(seconds, 0.0), RETRY_AFTER_MAX_SECONDS)
