"""Add a new kind of capability."""

from __future__ import annotations

import gridq
from gridq.client import Client

FORECAST = {"root": {"op": "Stage", "id": "forecast", "config": {"city": "Oslo"}}}


def test_a_profile_owns_a_kind(grid: Client) -> None:
    """`weather_profile.py` finds seats, names the queues that they serve, and runs stages on them. The core
    of gridq knows nothing of weather.
    """
    job = gridq.submit(FORECAST)
    assert gridq.result(job, timeout=30) == "Rain in Oslo"
    assert [seat.seat.partition(".")[2] for seat in grid.seats() if "weather:oslo" in seat.queues] == [
        "weather"
    ]
