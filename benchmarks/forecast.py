"""Measure the accuracy of start-time forecasts.

Several agents submit random backlogs, interactive and batch, to two seats of two slots. Then the start of a
probe job is forecast and compared with its real wait. Run times are constant, log-normal, or mostly short and
sometimes long. Nothing is submitted after the probe, because a forecast does not include later jobs that
overtake it.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from benchmarks.grids import BenchGrid
from benchmarks.measure import Figure, Measurement, compute_percentile, print_progress
from gridq.store.keys import Keys
from gridq.submission.queue_snapshot import QueueSnapshot, StageRequest, read_snapshot
from gridq.submission.start_forecast import StartForecast, forecast_start

QUEUE = "bench:any"
HEARTBEAT_SECONDS = "0.5"
"""The interval in which a seat reports the run times of its stages, as GRIDQ_HEARTBEAT takes it."""

TOLERANCE_SECONDS = 0.03
"""The time for the claim itself: a wait this close to the forecast's range counts as inside."""

RUN_TIMES_MS: dict[str, Callable[[random.Random], float]] = {
    "constant": lambda random_source: 150.0,
    "log-normal": lambda random_source: random_source.lognormvariate(4.9, 0.5),
    "50 or 500 ms": lambda random_source: random_source.choice([50.0, 50.0, 50.0, 500.0]),
}
"""By name: a function that draws the run time of a stage, in ms."""


def run(
    *, trials: int = 40, warm_up: int = 60, run_times: Sequence[str] = tuple(RUN_TIMES_MS)
) -> list[Measurement]:
    """Return for each kind of run time the sum of errors over the sum of waits, and the share of waits
    outside the forecast's range.
    """
    found: list[Measurement] = []
    with _shorten_heartbeat():
        for name in run_times:
            with BenchGrid(2, 2) as grid:
                found += _make_rows(name, Trials(grid, RUN_TIMES_MS[name]).run(trials, warm_up))
    return found


@contextmanager
def _shorten_heartbeat() -> Iterator[None]:
    before = os.environ.get("GRIDQ_HEARTBEAT")
    os.environ["GRIDQ_HEARTBEAT"] = HEARTBEAT_SECONDS
    try:
        yield
    finally:
        if before is None:
            del os.environ["GRIDQ_HEARTBEAT"]
        else:
            os.environ["GRIDQ_HEARTBEAT"] = before


class Trials:
    """Backlogs and probes on one grid, with one kind of run time. `draw_length` returns a run time in ms."""

    def __init__(self, grid: BenchGrid, draw_length: Callable[[random.Random], float]) -> None:
        self.grid = grid
        self.draw_length = draw_length
        self.random_source = random.Random(20)

    def run(self, trials: int, warm_up: int) -> list[tuple[StartForecast, float]]:
        """Return each probe's forecast and its wait in seconds."""
        self._wait_for([self._submit("warm", "interactive") for _ in range(warm_up)])
        while len([seat for seat in self._read_snapshot().seats if seat.service]) < len(self.grid.names):
            time.sleep(float(HEARTBEAT_SECONDS))
        return [self._run_trial() for _ in range(trials)]

    def _run_trial(self) -> tuple[StartForecast, float]:
        jobs = [
            self._submit(
                self.random_source.choice("abc"), self.random_source.choice(["interactive", "batch"])
            )
            for _ in range(self.random_source.choice([4, 10, 25, 50]))
        ]
        request = StageRequest(QUEUE, self.random_source.choice("ae"), self.random_source.choice([0, 1]))
        forecast = forecast_start(self._read_snapshot(), request)
        probe = self._submit(request.agent, "batch" if request.prio else "interactive")
        self._wait_for([probe, *jobs])
        return forecast, self.grid.client.rows(probe)[0].wait_ms / 1e3

    def _read_snapshot(self) -> QueueSnapshot:
        return read_snapshot(self.grid.store, Keys(self.grid.config.prefix), self.grid.config.batch_age)

    def _submit(self, agent: str, priority: str) -> str:
        return self.grid.submit_sleep(
            round(self.draw_length(self.random_source)), agent=agent, priority=priority
        )

    def _wait_for(self, jobs: list[str]) -> None:
        for job in jobs:
            self.grid.client.result(job, 120)


def _make_rows(name: str, trials: list[tuple[StartForecast, float]]) -> list[Measurement]:
    """Return the figures for one kind of run time."""
    known = [
        (forecast.low, forecast.p50, forecast.high, waited)
        for forecast, waited in trials
        if forecast.low is not None and forecast.p50 is not None and forecast.high is not None
    ]
    off = [abs(waited - p50) for _, p50, _, waited in known]
    outside = sum(
        not low - TOLERANCE_SECONDS <= waited <= high + TOLERANCE_SECONDS for low, _, high, waited in known
    )
    waits = [waited for *_, waited in known]
    print_progress(
        f"{name}: {len(known)} of {len(trials)} forecast, waits to {max(waits):.2f} s, error: median "
        f"{compute_percentile(off, 0.5) * 1e3:.0f} ms, p90 {compute_percentile(off, 0.9) * 1e3:.0f} ms"
    )
    return [
        Figure(
            f"{name}: errors by waits", 100 * sum(off) / sum(waits), "%", 50,
        ),
        Figure(f"{name}: outside of the spread", 100 * outside / len(known), "%", 30),
    ]  # fmt: skip
