"""From the kill of a worker process to the new claim of each stage it ran, by the server's clock.

Two bench seats on one machine; the one that runs the stages is killed (SIGKILL), the other has lanes free.
Once the killed one is gone for good, so only the end of its lease tells; once under `gridq worker`, which
sees the death of its child and says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.grids import BenchGrid
from benchmarks.measure import Figure, Measured, percentile

LANES = 8
AT_ONCE = 4
"""Stages that a killed worker runs."""

PATIENCE = 30.0

SPACED = 13.0
"""Seconds between two kills under the supervisor, which gives up what ends five times in a minute."""


def run(*, kills: int = 25) -> list[Measured]:
    """Seconds from kill to claim: gone for good, and under a supervisor."""
    alone = gone(kills)
    watched = supervised(kills)
    what = f"kill -9 to the new claim, {len(alone)} stages"
    return [
        Figure(f"{what}, the worker gone for good, p50", percentile(alone, 0.5), "s", 3.5),
        Figure(f"{what}, the worker gone for good, p99", percentile(alone, 0.99), "s", 5.0),
        Figure(f"{what}, under a supervisor, p50", percentile(watched, 0.5), "s", 1.0),
        Figure(f"{what}, under a supervisor, p99", percentile(watched, 0.99), "s", 5.0),
    ]


def gone(kills: int) -> list[float]:
    """Seconds for each stage of workers that nobody starts again before its stages are claimed."""
    with BenchGrid(2, LANES) as grid:
        found: list[float] = []
        for _ in range(kills):
            name, seconds = _kill(grid)
            found += seconds
            grid.home.children[name].wait()
            grid.home.spawn(name)
            grid.wait_for_seats()
        return found


def supervised(kills: int) -> list[float]:
    """The same under `gridq worker`, which starts it again."""
    with BenchGrid(2, LANES, supervised=True) as grid:
        found: list[float] = []
        for number in range(kills):
            began = time.monotonic()
            found += _kill(grid)[1]
            grid.wait_for_seats()
            if number < kills - 1:
                time.sleep(max(0.0, SPACED - (time.monotonic() - began)))
        return found


def _kill(grid: BenchGrid) -> tuple[str, list[float]]:
    """Kill the seat that runs most of some stages; its name, seconds to the new claim of each it ran."""
    jobs = [grid.sleep(120_000) for _ in range(AT_ONCE)]
    _wait(lambda: sum(map(len, grid.holders().values())) == AT_ONCE)
    holders = grid.holders()
    name = max(holders, key=lambda name: len(holders[name]))
    at = grid.kill(name)
    lost = holders[name]
    _wait(lambda: all(grid.claimed(job)[0] == 2 for job in lost))
    seconds = [(grid.claimed(job)[1] - at) / 1000 for job in lost]
    for job in jobs:
        grid.client.cancel(job)
    _wait(lambda: not grid.store.zcard(grid.key("leases")))
    return name, seconds


def _wait(what: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not what():
        if time.monotonic() > until:
            raise RuntimeError("it did not come about")
        time.sleep(0.01)
