"""From the kill of a worker process to the new claim of each stage it ran, by the server's clock.

Three bench seats on one machine; of those that run stages the one that was killed longest ago is killed
(SIGKILL), others have slots free. Once the killed one is gone for good, so only the end of its lease tells;
once under `gridq worker`, which sees the death of its child and says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.grids import BenchGrid
from benchmarks.measure import Figure, Measured, percentile, tell
from workers.supervisor.children import MAX_EXITS, EXIT_WINDOW_SECONDS

SEATS = 3
CONCURRENCY = 8
AT_ONCE = 4
"""Stages that run when a worker is killed."""

LONGEST = 120.0
"""Seconds after which a side kills no more, however many kills are wanted."""

PATIENCE = 30.0

SPACED = EXIT_WINDOW_SECONDS / (MAX_EXITS - 1) + 1
"""Seconds between two kills of one seat under the supervisor, which gives up what ends too often."""


def run(*, kills: int = 25) -> list[Measured]:
    """Seconds from kill to claim: gone for good, and under a supervisor; up to `kills` kills each."""
    found: list[Measured] = []
    for how, supervised, goal in (
        ("the worker gone for good", False, 3.5),
        ("under a supervisor", True, 1.0),
    ):
        seconds = side(kills, how, supervised=supervised)
        what = f"kill -9 to the new claim, {how}, {len(seconds)} stages"
        found += [
            Figure(f"{what}, p50", percentile(seconds, 0.5), "s", goal),
            Figure(f"{what}, p99", percentile(seconds, 0.99), "s", 5.0),
        ]
    return found


def side(kills: int, how: str, *, supervised: bool) -> list[float]:
    """Seconds for each stage of the killed workers until another has claimed it. They are started again, by
    `gridq worker` where `supervised`, else once their stages are claimed.
    """
    with BenchGrid(SEATS, CONCURRENCY, supervised=supervised) as grid:
        found: list[float] = []
        killed = dict.fromkeys(grid.names, 0.0)
        began = time.monotonic()
        for number in range(kills):
            if time.monotonic() - began > LONGEST:
                break
            name, seconds = _kill(grid, killed, SPACED if supervised else 0.0)
            found += seconds
            if not supervised:
                grid.start_again(name)
            tell(f"{how}: kill {number + 1} of {kills}, {max(seconds):.2f} s")
            grid.wait_for_seats(2)
        return found


def _kill(grid: BenchGrid, killed: dict[str, float], apart: float) -> tuple[str, list[float]]:
    """Kill a seat that runs stages, `apart` seconds at least after it was killed before; its name, seconds to
    the new claim of each stage that it ran. `killed`: when each seat was killed.
    """
    jobs = [grid.sleep(120_000) for _ in range(AT_ONCE)]
    _wait(lambda: sum(map(len, grid.holders().values())) == AT_ONCE)
    holders = {name: held for name, held in grid.holders().items() if held}
    name = min(holders, key=killed.__getitem__)
    time.sleep(max(0.0, killed[name] + apart - time.monotonic()))
    lost = grid.holders()[name]
    at = grid.kill(name)
    killed[name] = time.monotonic()
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
