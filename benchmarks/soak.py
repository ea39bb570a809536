"""Run mixed load for half an hour: the memory of router, worker, gateway and server must not grow.

Jobs come through Celery, the server and a gateway. There are chains, fan-ins, long values, streams, failures,
cancellations and deadlines, and every two minutes one worker is killed. Memory is sampled every few seconds.
The result is the slope of a line through the samples of the second half, when caches are full, in MB an hour.
The ledger does not count as the server's memory; its size for each attempt is a figure of its own. The
environment variable MINUTES changes the duration.
"""

from __future__ import annotations

import os
import random
import time
from collections import deque
from collections.abc import Sequence
from statistics import linear_regression
from typing import Any

from benchmarks import memory
from benchmarks.grids import BenchGrid
from benchmarks.measure import Figure, Measurement, print_progress
from benchmarks.sides import read_memory_mb, read_server_memory_mb
from gridq.client import Client
from gridq.errors import GridError
from gridq.protocol.models import Json

DURATION_MINUTES = 30.0
SAMPLE_SECONDS = 5.0
CONCURRENT_JOBS = 40
"""The number of jobs in progress at a time."""

MAX_SLOPE_MB_PER_HOUR = 12.0
"""The slope that half an hour of samples cannot distinguish from zero."""

MAX_ENTRY_BYTES = 250
"""The size of an attempt in the ledger."""

RESULT_TTL_SECONDS = 30.0
"""Short, so that the number of results soon stops growing."""

EXPIRY_SECONDS = RESULT_TTL_SECONDS + 10
"""The time until results have expired and the server has deleted them."""


def run(*, minutes: float | None = None, sample: float = SAMPLE_SECONDS) -> list[Measurement]:
    """Return the slopes, the size of the ledger, the keys left and the jobs with a wrong end."""
    minutes = float(os.environ.get("MINUTES", DURATION_MINUTES)) if minutes is None else minutes
    with BenchGrid(2, 4, appendonly=True, gateway=True, result_ttl=RESULT_TTL_SECONDS) as grid:
        load = Load(grid)
        pids = {"router": grid.home.children["router0"].pid, "worker": grid.home.children["seat0"].pid}
        pids["gateway"] = grid.gateway.pid
        samples: dict[str, list[tuple[float, float]]] = {name: [] for name in (*pids, "server")}
        began = time.monotonic()
        next_sample = killed = 0.0
        while (at := time.monotonic() - began) < minutes * 60:
            load.step()
            if at >= next_sample:
                next_sample += sample
                for name, pid in pids.items():
                    samples[name].append((at, read_memory_mb(pid)))
                samples["server"].append(
                    (at, read_server_memory_mb(grid.store) - measure_ledger(grid)[0] / 1e6)
                )
            if at - killed > 120:  # the other worker: the sampled one lives through all of it
                killed = at
                grid.kill_worker("seat1")
                grid.restart_worker("seat1")
                print_progress(f"{at / 60:.0f} of {minutes:g} min: {load.done:,} jobs, {load.wrong} wrong")
        load.finish()
        time.sleep(EXPIRY_SECONDS if minutes >= 1 else 0)
        left = load.count_keys_left() if minutes >= 1 else 0
        size, entries = measure_ledger(grid)
    found: list[Measurement] = [
        Figure(
            f"{name} under mixed load, growth of memory in {minutes:g} min",
            compute_slope(points),
            "MB/h",
            MAX_SLOPE_MB_PER_HOUR,
        )
        for name, points in samples.items()
    ]
    found.append(
        Figure(
            f"ledger, memory of each of {entries:,} attempts", size / max(entries, 1), "B", MAX_ENTRY_BYTES
        )
    )
    found.append(Figure(f"keys of {load.done:,} jobs left after {minutes:g} min", left, "keys", 0))
    found.append(Figure(f"jobs of {load.done:,} that did not end as they should", load.wrong, "jobs", 0))
    return found


def measure_ledger(grid: BenchGrid) -> tuple[int, int]:
    """Return the size of the ledger in bytes, and the number of its entries."""
    key = grid.make_key("ledger")
    size: Any = grid.store.memory_usage(key)
    entries: Any = grid.store.xlen(key)
    return size or 0, entries


def compute_slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope in MB an hour of a line through the second half of `points` (seconds, MB)."""
    half = points[len(points) // 2 :]
    if len(half) < 2:
        return 0.0
    return linear_regression([at for at, _ in half], [mb for _, mb in half]).slope * 3600


class Load:
    """Submits jobs of all kinds, at most CONCURRENT_JOBS at a time, and checks how each ends."""

    def __init__(self, grid: BenchGrid) -> None:
        self.grid = grid
        self.random = random.Random(4)  # the same load each time
        self.under_way: deque[tuple[str, str, Client]] = deque()
        self.ids: set[str] = set()
        self.done = 0
        self.wrong = 0

    def step(self) -> None:
        """Submit one job. If enough are in progress, first wait for the oldest."""
        if len(self.under_way) >= CONCURRENT_JOBS:
            self._finish_oldest()
        kind = self.random.choice(list(JOB_KINDS))
        client = self.random.choice((self.grid.client, self.grid.gateway_client))
        graph, value, options, _ = JOB_KINDS[kind]
        if kind == "routed":
            from gridq.tasks import run_graph

            job = run_graph.delay(graph, value, **options).id
        else:
            job = client.submit(graph, value, **options)
        if kind == "cancelled":
            client.cancel(job)
        self.ids.add(job)
        self.under_way.append((kind, job, client))

    def finish(self) -> None:
        while self.under_way:
            self._finish_oldest()

    def count_keys_left(self) -> int:
        """Return how many of the server's keys name one of the jobs.

        Records of interrupted attempts do not count. They are kept for an hour, so that a late report of
        usage is still charged.
        """
        return memory.count_keys_left(self.grid.store, self.ids, but=self.grid.make_key("closed_lease", ""))

    def _finish_oldest(self) -> None:
        kind, job, client = self.under_way.popleft()
        try:
            if kind == "streamed":
                for _ in client.stream(job, 60):
                    pass
            client.result(job, 60)
            code = "done"
        except GridError as exc:
            code = exc.code
        self.done += 1
        self.wrong += code not in JOB_KINDS[kind][3]


def _make_node(name: str, **more: Json) -> Json:
    return {"op": "Stage", "id": f"bench_{name}", **more}


CHAIN = {"op": "Sequential", "stages": [_make_node("echo") for _ in range(10)]}
WIDE = {"op": "Parallel", "branches": {f"b{number}": _make_node("echo") for number in range(20)}}
CUT = ("done", "stage.stream_cut")
"""How a stream may end. If its worker is killed after the first piece, it is not restarted."""

JOB_KINDS: dict[str, tuple[Json, Json, dict[str, Json], Sequence[str]]] = {
    "one": ({"root": _make_node("echo")}, "x" * 500, {}, ["done"]),
    "routed": ({"root": _make_node("echo")}, "x" * 500, {}, ["done"]),
    "chain": ({"root": CHAIN}, "x" * 500, {}, ["done"]),
    "wide": ({"root": WIDE}, {f"b{number}": number for number in range(20)}, {}, ["done"]),
    "long": ({"root": CHAIN}, "x" * 100_000, {}, ["done"]),
    "streamed": ({"root": _make_node("tokens")}, {"n": 20}, {"stream": True}, CUT),
    "failed": ({"root": _make_node("fail")}, {"message": "failed on purpose"}, {}, ["stage.failed"]),
    "cancelled": ({"root": _make_node("sleep")}, {"ms": 200}, {}, ["done", "job.cancelled"]),
    "late": ({"root": _make_node("sleep")}, {"ms": 60_000}, {"deadline": 0.5}, ["job.deadline"]),
}
"""By kind: graph, input, options, and the codes with which a job may end."""
