"""Many stages side by side, joined by one: a Parallel against a chord."""

from __future__ import annotations

import time
from typing import Any

from celery import chord

from benchmarks.bare_app import echo, join
from benchmarks.measure import Figure, Measured, Ratio, alternate
from benchmarks.sides import Sides, echo_stage
from gridq.protocol.queue_names import PURE, make_seat_queue

SETTLE = 3.0
"""Seconds in which wake-ups without work must have been answered."""


def run(sides: Sides, *, width: int = 1000, rounds: int = 5) -> list[Measured]:
    """Stages a second of a fan-out with its join, and the wake-ups left afterwards."""
    branches = {f"b{number}": echo_stage() for number in range(width)}
    graph = {"root": {"op": "Sequential", "stages": [{"op": "Parallel", "branches": branches}, echo_stage()]}}

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
    time.sleep(SETTLE)
    return [throughput, Figure(f"wake-ups left {SETTLE:g} s after", wake_ups_left(sides), "wake_ups", 0)]


def wake_ups_left(sides: Sides) -> int:
    """How many wake-ups stand in the lists of all capabilities and seats."""
    keys = sides.client.keys
    seats: Any = sides.store.zrange(keys("seats"), 0, -1)
    names = ["bench:any", PURE, *(make_seat_queue(seat.decode()) for seat in seats)]
    lengths: list[Any] = [sides.store.llen(keys.queue(name)) for name in names]
    return sum(lengths)
