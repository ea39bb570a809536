"""The price of a device's time: its owner asks for a price by the hour, and stages pay by the second."""

from __future__ import annotations

import time
from collections.abc import Callable

from gridq.protocol.models import Usage
from workers.model_apis.usage import to_micro_dollars


def price_usage(usage: Usage, price_per_hour: float | None) -> Usage:
    """Return `usage` with the cost of its seconds. `price_per_hour` is in dollars."""
    cost = to_micro_dollars(usage.seconds * (price_per_hour or 0) / 3600)
    return usage.model_copy(update={"micro_dollars": cost})


def start_pricing(price_per_hour: float | None) -> Callable[[Usage], Usage]:
    """Return a function that adds the seconds since now, and their price, to a usage."""
    started_at = time.monotonic()

    def add_price(usage: Usage) -> Usage:
        timed = usage.model_copy(update={"seconds": time.monotonic() - started_at})
        return price_usage(timed, price_per_hour)

    return add_price
