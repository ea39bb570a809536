"""Measure the original design goals: 12 workers, 100 requests a minute, fewer than 5 % failures, and the work
of a dead worker reassigned within two minutes.

Each of twelve bench seats is a process of its own. A request takes a slot for two seconds, like an answer of
a model. Halfway through, one worker is killed and not restarted.
"""

from __future__ import annotations

import time

from benchmarks.grids import BenchGrid
from benchmarks.measure import Figure, Measurement, compute_percentile
from gridq.errors import GridError
from gridq.protocol.states import JobState

ANSWER_MS = 2_000


def run(*, workers: int = 12, minutes: float = 2.0, a_minute: int = 100) -> list[Measurement]:
    """Return the share of failures, the time to answer all, the latency, and the time to reassign."""
    requests = round(a_minute * minutes)
    with BenchGrid(workers, 1) as grid:
        jobs: list[str] = []
        lost: list[str] = []
        killed_at = 0
        reclaimed_at: dict[str, int] = {}
        began = time.monotonic()
        for number in range(requests):
            while (wait := began + number * 60 / a_minute - time.monotonic()) > 0:
                time.sleep(min(wait, 0.02))
                _record_reclaims(grid, lost, reclaimed_at)
            jobs.append(grid.submit_sleep(ANSWER_MS))
            if not lost and number >= requests // 2:
                lost, killed_at = _kill_busy_worker(grid)
        failed, spans = 0, []
        for job in jobs:
            while not grid.client.wait(job, 0.02):
                if not lost:
                    lost, killed_at = _kill_busy_worker(grid)
                _record_reclaims(grid, lost, reclaimed_at)
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
        Figure(
            f"{load}: submit to answer of {ANSWER_MS / 1000:g} s, p95",
            compute_percentile(spans, 0.95),
            "s",
            5,
        ),
        Figure(
            f"{load}: a killed worker's request given to another",
            max((at - killed_at) / 1000 for at in reclaimed_at.values()),
            "s",
            120,
        ),
    ]


def _kill_busy_worker(grid: BenchGrid) -> tuple[list[str], int]:
    """Kill a worker that runs jobs. Return these jobs and the time in ms, or ([], 0) if no worker runs any.

    The worker is suspended first, so that its jobs cannot end between the check and the kill.
    """
    for name, jobs_of_seat in grid.list_running_jobs().items():
        if jobs_of_seat:
            with grid.suspend_worker(name):
                lost = grid.list_running_jobs()[name]
                if lost:
                    return lost, grid.kill_worker(name)
    return [], 0


def _record_reclaims(grid: BenchGrid, lost: list[str], reclaimed_at: dict[str, int]) -> None:
    """Record when a stage of the killed worker is claimed again, while the job's record still exists."""
    for job in lost:
        attempts, at = grid.read_claims(job)
        if attempts > 1:
            reclaimed_at.setdefault(job, at)
