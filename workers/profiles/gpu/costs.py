"""Compute the cost of a gpu seat's time."""

from __future__ import annotations

import math

from gridq.protocol.models import Usage

MICRO_DOLLARS = 1_000_000


def price_usage(usage: Usage, price_per_hour: float | None) -> Usage:
    """Return `usage` with the cost of the seconds that the stage had a slot, in micro-dollars.

    `price_per_hour` is in dollars.
    """
    if not price_per_hour:
        return usage
    return usage.model_copy(
        update={"micro_dollars": math.ceil(round(usage.seconds * price_per_hour / 3600 * MICRO_DOLLARS, 3))}
    )
