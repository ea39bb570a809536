"""How well starts are forecast: random backlogs of several agents, interactive and batch, on two seats of two
slots; a probe is forecast and submitted, and what it then waited is compared.

Run times are constant, log-normal, or mostly short and sometimes long. Nothing is submitted after the probe:
what comes later and goes before is not foreseen by design.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from benchmarks.grids import BenchGrid
from benchmarks.measure import Figure, Measured, percentile, tell
from gridq.store.keys import Keys
from gridq.submission.queue_snapshot import QueueSnapshot, StageRequest, read_snapshot
from gridq.submission.start_forecast import StartForecast, forecast_start

QUEUE = "bench:any"
HEARTBEAT = "0.5"
"""Seconds after which a seat has told how long its stages take."""

LIKE = 0.03
"""Seconds that a claim and its record take beside: so close to the spread is within it."""

TIMES: dict[str, Callable[[random.Random], float]] = {
    "constant": lambda dice: 150.0,
    "log-normal": lambda dice: dice.lognormvariate(4.9, 0.5),
    "50 or 500 ms": lambda dice: dice.choice([50.0, 50.0, 50.0, 500.0]),
}
"""Milliseconds of a stage."""


def run(*, trials: int = 40, warm: int = 60, times: Sequence[str] = tuple(TIMES)) -> list[Measured]:
    """Of each sort of run times all errors together by all waits, and how often one was outside of the
    spread.
    """
    found: list[Measured] = []
    with _heartbeat():
        for name in times:
            with BenchGrid(2, 2) as grid:
                found += _rows(name, Trials(grid, TIMES[name]).run(trials, warm))
    return found


@contextmanager
def _heartbeat() -> Iterator[None]:
    before = os.environ.get("GRIDQ_HEARTBEAT")
    os.environ["GRIDQ_HEARTBEAT"] = HEARTBEAT
    try:
        yield
    finally:
        if before is None:
            del os.environ["GRIDQ_HEARTBEAT"]
        else:
            os.environ["GRIDQ_HEARTBEAT"] = before


class Trials:
    """Backlogs and probes on one grid, with one sort of run times."""

    def __init__(self, grid: BenchGrid, length: Callable[[random.Random], float]) -> None:
        self.grid = grid
        self.length = length
        self.dice = random.Random(20)

    def run(self, trials: int, warm: int) -> list[tuple[StartForecast, float]]:
        """Of each probe what was forecast, and the seconds that it waited."""
        self._all([self._submit("warm", "interactive") for _ in range(warm)])
        while len([seat for seat in self._snapshot().seats if seat.service]) < len(self.grid.names):
            time.sleep(float(HEARTBEAT))
        return [self._trial() for _ in range(trials)]

    def _trial(self) -> tuple[StartForecast, float]:
        jobs = [
            self._submit(self.dice.choice("abc"), self.dice.choice(["interactive", "batch"]))
            for _ in range(self.dice.choice([4, 10, 25, 50]))
        ]
        request = StageRequest(QUEUE, self.dice.choice("ae"), self.dice.choice([0, 1]))
        forecast = forecast_start(self._snapshot(), request)
        probe = self._submit(request.agent, "batch" if request.prio else "interactive")
        self._all([probe, *jobs])
        return forecast, self.grid.client.rows(probe)[0].wait_ms / 1e3

    def _snapshot(self) -> QueueSnapshot:
        return read_snapshot(self.grid.store, Keys(self.grid.config.prefix), self.grid.config.batch_age)

    def _submit(self, agent: str, priority: str) -> str:
        return self.grid.sleep(round(self.length(self.dice)), agent=agent, priority=priority)

    def _all(self, jobs: list[str]) -> None:
        for job in jobs:
            self.grid.client.result(job, 120)


def _rows(name: str, trials: list[tuple[StartForecast, float]]) -> list[Measured]:
    """The figures of one sort of run times."""
    known = [
        (told.low, told.p50, told.high, waited)
        for told, waited in trials
        if told.low is not None and told.p50 is not None and told.high is not None
    ]
    off = [abs(waited - p50) for _, p50, _, waited in known]
    outside = sum(not low - LIKE <= waited <= high + LIKE for low, _, high, waited in known)
    waits = [waited for *_, waited in known]
    tell(
        f"{name}: {len(known)} of {len(trials)} forecast, waits to {max(waits):.2f} s, error: median "
        f"{percentile(off, 0.5) * 1e3:.0f} ms, p90 {percentile(off, 0.9) * 1e3:.0f} ms"
    )
    return [
        Figure(
            f"{name}: errors by waits", 100 * sum(off) / sum(waits), "%", 50,
        ),
        Figure(f"{name}: outside of the spread", 100 * outside / len(known), "%", 30),
    ]  # fmt: skip
