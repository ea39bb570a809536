"""Add a new kind of capability."""

from __future__ import annotations

import gridq
from gridq.client import Client

FORECAST = {"root": {"op": "Stage", "id": "forecast", "config": {"city": "Oslo"}}}


def test_a_profile_adds_a_kind_of_seat(grid: Client) -> None:
    """`weather_profile.py` finds the seats of its kind, names the queues that they serve, and runs their
    stages. The core of gridq knows nothing about weather.
    """
    job = gridq.submit(FORECAST)
    assert gridq.result(job, timeout=30) == "Rain in Oslo"
    (seat,) = [seat for seat in grid.seats() if "weather:oslo" in seat.queues]
    assert seat.seat.endswith(".weather")
