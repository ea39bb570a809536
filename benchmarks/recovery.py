"""Measure the time from the kill of a worker to the new claim of each of its stages, by the server's clock.

Of three bench seats, the busy one whose last kill is longest ago is killed with SIGKILL, while others have
free slots. On one side the worker is not restarted, and only its expired lease reveals its death. On the
other side a `gridq worker` sees the death of its child and reports it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.grids import BenchGrid
from benchmarks.measure import Figure, Measurement, compute_percentile, print_progress
from workers.supervisor.children import EXIT_WINDOW_SECONDS, MAX_EXITS

SEATS = 3
CONCURRENCY = 8
RUNNING_STAGES = 4
"""The number of stages that run when a worker is killed."""

SIDE_MAX_SECONDS = 120.0
"""The time after which a side makes no more kills, even if some are left."""

TIMEOUT_SECONDS = 30.0

KILL_INTERVAL_SECONDS = EXIT_WINDOW_SECONDS / (MAX_EXITS - 1) + 1
"""The time between two kills of one seat under the supervisor, which gives up on a child that ends too often.
"""


def run(*, kills: int = 25) -> list[Measurement]:
    """Return the seconds from kill to claim, without and with a supervisor, for up to `kills` kills each."""
    found: list[Measurement] = []
    for how, supervised, goal in (
        ("the worker gone for good", False, 3.5),
        ("under a supervisor", True, 1.0),
    ):
        seconds = measure_side(kills, how, supervised=supervised)
        what = f"kill -9 to the new claim, {how}, {len(seconds)} stages"
        found += [
            Figure(f"{what}, p50", compute_percentile(seconds, 0.5), "s", goal),
            Figure(f"{what}, p99", compute_percentile(seconds, 0.99), "s", 5.0),
        ]
    return found


def measure_side(kills: int, how: str, *, supervised: bool) -> list[float]:
    """Return for each stage of the killed workers the seconds until another worker claimed it.

    If `supervised`, `gridq worker` restarts the workers, else this function does once their stages are
    claimed.
    """
    with BenchGrid(SEATS, CONCURRENCY, supervised=supervised) as grid:
        found: list[float] = []
        killed = dict.fromkeys(grid.names, 0.0)
        began = time.monotonic()
        for number in range(kills):
            if time.monotonic() - began > SIDE_MAX_SECONDS:
                break
            name, seconds = _kill_busy_worker(grid, killed, KILL_INTERVAL_SECONDS if supervised else 0.0)
            found += seconds
            if not supervised:
                grid.restart_worker(name)
            print_progress(f"{how}: kill {number + 1} of {kills}, {max(seconds):.2f} s")
            grid.wait_for_seats(2)
        return found


def _kill_busy_worker(
    grid: BenchGrid, killed: dict[str, float], min_interval: float
) -> tuple[str, list[float]]:
    """Kill a busy worker, at least `min_interval` seconds after its last kill.

    `killed` has the time of each seat's last kill. Return the seat's name, and the seconds to the new claim
    of each of its stages.
    """
    jobs = [grid.submit_sleep(120_000) for _ in range(RUNNING_STAGES)]
    _wait_for(lambda: sum(map(len, grid.list_running_jobs().values())) == RUNNING_STAGES)
    holders = {name: jobs_of_seat for name, jobs_of_seat in grid.list_running_jobs().items() if jobs_of_seat}
    name = min(holders, key=killed.__getitem__)
    time.sleep(max(0.0, killed[name] + min_interval - time.monotonic()))
    # A machine that stood still may have lost a stage before, or lose it again: then it is claimed thrice.
    lost = {job: grid.read_claims(job)[0] for job in grid.list_running_jobs()[name]}
    at = grid.kill_worker(name)
    killed[name] = time.monotonic()
    _wait_for(lambda: all(grid.read_claims(job)[0] > claims for job, claims in lost.items()))
    seconds = [(grid.read_claims(job)[1] - at) / 1000 for job in lost]
    for job in jobs:
        grid.client.cancel(job)
    _wait_for(lambda: not grid.store.zcard(grid.make_key("leases")))
    return name, seconds


def _wait_for(what: Callable[[], bool]) -> None:
    until = time.monotonic() + TIMEOUT_SECONDS
    while not what():
        if time.monotonic() > until:
            raise RuntimeError(f"The condition was not met within {TIMEOUT_SECONDS:g} s")
        time.sleep(0.01)
