"""What a gpu seat's time costs its owner."""

from __future__ import annotations

import math

from gridq.protocol.models import Usage

MICRO = 1_000_000


def priced(usage: Usage, price_per_hour: float | None) -> Usage:
    """`usage` with the device's price: dollars an hour for the seconds the stage had a slot, in
    micro-dollars.
    """
    if not price_per_hour:
        return usage
    return usage.model_copy(
        update={"micro_dollars": math.ceil(round(usage.seconds * price_per_hour / 3600 * MICRO, 3))}
    )
