"""The criteria of the design that gridq began with (a pool of GPUs): 12 workers, 100 requests a minute
through one server, fewer than 5 % of them failing, the work of one that vanished given to another within two
minutes.

Twelve bench seats as twelve processes; a request holds a slot for two seconds, as an answer of a model would.
Half-way one worker is killed for good.
"""

from __future__ import annotations

import time

from benchmarks.grids import BenchGrid
from benchmarks.measure import Figure, Measured, percentile
from gridq.errors import GridError
from gridq.protocol.states import JobState

ANSWER_MS = 2_000


def run(*, workers: int = 12, minutes: float = 2.0, a_minute: int = 100) -> list[Measured]:
    """Requests that fail, the longest time to their answer, the time to reassign."""
    requests = round(a_minute * minutes)
    with BenchGrid(workers, 1) as grid:
        jobs: list[str] = []
        lost: list[str] = []
        killed_at = 0
        again: dict[str, int] = {}
        began = time.monotonic()
        for number in range(requests):
            while (wait := began + number * 60 / a_minute - time.monotonic()) > 0:
                time.sleep(min(wait, 0.02))
                _look(grid, lost, again)
            jobs.append(grid.sleep(ANSWER_MS))
            if not lost and number >= requests // 2:
                lost, killed_at = _kill_busy(grid)
        failed, spans = 0, []
        for job in jobs:
            while not grid.client.wait(job, 0.02):
                if not lost:
                    lost, killed_at = _kill_busy(grid)
                _look(grid, lost, again)
            try:
                grid.client.result(job, 60)
            except GridError:
                failed += 1
        took = (time.monotonic() - began) / 60
        for job in jobs:
            view = grid.client.view(job)
            if view.state is JobState.DONE and view.ended is not None:
                spans.append(view.ended - view.submitted)
    load = f"{workers} workers, {a_minute} requests a minute for {minutes:g} min"
    return [
        Figure(f"{load}: failed", 100 * failed / requests, "%", 5),
        Figure(f"{load}: minutes to answer all", took, "min", minutes + 0.2),
        Figure(f"{load}: submit to answer of {ANSWER_MS / 1000:g} s, p95", percentile(spans, 0.95), "s", 5),
        Figure(
            f"{load}: a killed worker's request given to another",
            max((at - killed_at) / 1000 for at in again.values()),
            "s",
            120,
        ),
    ]


def _kill_busy(grid: BenchGrid) -> tuple[list[str], int]:
    """Kill a worker that runs something: its jobs and when, or ([], 0) where none does just now. It is held
    still first: what it ran might end between the look and the kill.
    """
    for name, held in grid.holders().items():
        if held:
            with grid.held_still(name):
                lost = grid.holders()[name]
                if lost:
                    return lost, grid.kill(name)
    return [], 0


def _look(grid: BenchGrid, lost: list[str], again: dict[str, int]) -> None:
    """Note when a stage of the killed worker is claimed again: an ended job's record is gone."""
    for job in lost:
        attempts, at = grid.claimed(job)
        if attempts > 1:
            again.setdefault(job, at)
