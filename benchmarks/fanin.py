"""Measure many parallel stages joined by one, against a Celery chord."""

from __future__ import annotations

import time
from typing import Any

from celery import chord

from benchmarks.bare_app import echo, join
from benchmarks.measure import Figure, Measurement, Ratio, alternate
from benchmarks.sides import Sides, make_echo_node
from gridq.protocol.queue_names import PURE, make_seat_queue

SETTLE_SECONDS = 3.0
"""The time in which wake-ups without work must be consumed."""


def run(sides: Sides, *, width: int = 1000, rounds: int = 5) -> list[Measurement]:
    """Return the throughput of the fan-out with its join, and the number of wake-ups left."""
    branches = {f"b{number}": make_echo_node() for number in range(width)}
    graph = {
        "root": {"op": "Sequential", "stages": [{"op": "Parallel", "branches": branches}, make_echo_node()]}
    }

    def ours() -> None:
        answer = sides.client.result(
            sides.submit(graph, {f"b{number}": number for number in range(width)}), 120
        )
        assert len(answer) == width

    def theirs() -> None:
        assert (
            len(chord((echo.s(number) for number in range(width)), join.s()).apply_async().get(timeout=120))
            == width
        )

    ours()
    ours_s, theirs_s = alternate(rounds, ours, theirs)
    throughput = Ratio(
        f"fan-out of {width} joined by one, throughput",
        width / ours_s,
        width / theirs_s,
        "stages/s",
        4.0,
        at_most=False,
    )
    time.sleep(SETTLE_SECONDS)
    return [
        throughput,
        Figure(f"wake-ups left {SETTLE_SECONDS:g} s after", count_wake_ups(sides), "wake-ups", 0),
    ]


def count_wake_ups(sides: Sides) -> int:
    """Return the number of wake-ups in the lists of all capabilities and seats."""
    keys = sides.client.keys
    seats: Any = sides.store.zrange(keys("seats"), 0, -1)
    names = ["bench:any", PURE, *(make_seat_queue(seat.decode()) for seat in seats)]
    lengths: list[Any] = [sides.store.llen(keys.queue(name)) for name in names]
    return sum(lengths)
