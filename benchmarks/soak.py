"""Mixed load for half an hour: what routers, workers, gateways and the server hold must not grow.

Jobs by all three doors (Celery, the server, a gateway), chains and fan-ins, long values, streams, failures,
cancels and deadlines, and one worker killed each two minutes. Memory is sampled each few seconds; printed is
the slope of a straight line through the samples of the second half, when caches are full, in MB an hour. The
server's is without its ledger, which is measured by the attempt. `make soak` or `python -m benchmarks soak`;
MINUTES in the environment changes its length.
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
from benchmarks.measure import Figure, Measured, tell
from benchmarks.sides import memory_of, memory_of_server
from gridq.client import Client
from gridq.errors import GridError
from gridq.protocol.models import Json

MINUTES = 30.0
SAMPLE = 5.0
AT_ONCE = 40
"""Jobs that are under way at a time."""

SLOPE = 12.0
"""MB an hour that a process may seem to grow: what a line through half an hour cannot tell from none."""

ENTRY = 250
"""Bytes that the ledger may keep for an attempt."""

RESULT_TTL = 30.0
"""Seconds: short, so that the server soon holds as many results as it will."""

EXPIRY = RESULT_TTL + 10
"""Seconds until results have expired, and what the server may take to drop them."""


def run(*, minutes: float | None = None, sample: float = SAMPLE) -> list[Measured]:
    """The slopes, what was done, and the keys left."""
    minutes = float(os.environ.get("MINUTES", MINUTES)) if minutes is None else minutes
    with BenchGrid(2, 4, appendonly=True, gateway=True, result_ttl=RESULT_TTL) as grid:
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
                    samples[name].append((at, memory_of(pid)))
                samples["server"].append((at, memory_of_server(grid.store) - ledger(grid)[0] / 1e6))
            if at - killed > 120:  # the other worker: the sampled one lives through all of it
                killed = at
                grid.kill("seat1")
                grid.start_again("seat1")
                tell(f"{at / 60:.0f} of {minutes:g} min: {load.done:,} jobs, {load.wrong} wrong")
        load.finish()
        time.sleep(EXPIRY if minutes >= 1 else 0)
        left = load.keys_left() if minutes >= 1 else 0
        size, entries = ledger(grid)
    found: list[Measured] = [
        Figure(f"{name} under mixed load, growth of memory in {minutes:g} min", slope(points), "MB/h", SLOPE)
        for name, points in samples.items()
    ]
    found.append(
        Figure(f"ledger, memory of each of {entries:,} attempts", size / max(entries, 1), "B", ENTRY)
    )
    found.append(Figure(f"keys of {load.done:,} jobs left after {minutes:g} min", left, "keys", 0))
    found.append(Figure(f"jobs of {load.done:,} that did not end as they should", load.wrong, "jobs", 0))
    return found


def ledger(grid: BenchGrid) -> tuple[int, int]:
    """Bytes and entries of the ledger, which grows with each attempt for as long as it is kept."""
    key = grid.key("ledger")
    size: Any = grid.store.memory_usage(key)
    entries: Any = grid.store.xlen(key)
    return size or 0, entries


def slope(points: Sequence[tuple[float, float]]) -> float:
    """MB an hour, of a line through the second half of (seconds, MB)."""
    half = points[len(points) // 2 :]
    if len(half) < 2:
        return 0.0
    return linear_regression([at for at, _ in half], [mb for _, mb in half]).slope * 3600


class Load:
    """Jobs of all sorts, a bounded number of them under way; each must end as its sort does."""

    def __init__(self, grid: BenchGrid) -> None:
        self.grid = grid
        self.random = random.Random(4)  # the same load each time
        self.under_way: deque[tuple[str, str, Client]] = deque()
        self.ids: set[str] = set()
        self.done = 0
        self.wrong = 0

    def step(self) -> None:
        """One more job; where enough are under way, the end of the oldest."""
        if len(self.under_way) >= AT_ONCE:
            self._end()
        kind = self.random.choice(list(KINDS))
        client = self.random.choice((self.grid.client, self.grid.door))
        graph, value, options, _ = KINDS[kind]
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
            self._end()

    def keys_left(self) -> int:
        """Keys of the server that name one of the jobs, but the notes of attempts that were cut off: they
        are kept for an hour, so that what such an attempt used is charged when it says so late.
        """
        return memory.keys_left(self.grid.store, self.ids, but=self.grid.key("closed_lease", ""))

    def _end(self) -> None:
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
        self.wrong += code not in KINDS[kind][3]


def _stage(name: str, **more: Json) -> Json:
    return {"op": "Stage", "id": f"bench_{name}", **more}


CHAIN = {"op": "Sequential", "stages": [_stage("echo") for _ in range(10)]}
WIDE = {"op": "Parallel", "branches": {f"b{number}": _stage("echo") for number in range(20)}}
CUT = ("done", "stage.stream_cut")
"""A stream whose worker is killed after its first piece is not begun again."""

KINDS: dict[str, tuple[Json, Json, dict[str, Json], Sequence[str]]] = {
    "one": ({"root": _stage("echo")}, "x" * 500, {}, ["done"]),
    "routed": ({"root": _stage("echo")}, "x" * 500, {}, ["done"]),
    "chain": ({"root": CHAIN}, "x" * 500, {}, ["done"]),
    "wide": ({"root": WIDE}, {f"b{number}": number for number in range(20)}, {}, ["done"]),
    "long": ({"root": CHAIN}, "x" * 100_000, {}, ["done"]),
    "streamed": ({"root": _stage("tokens")}, {"n": 20}, {"stream": True}, CUT),
    "failed": ({"root": _stage("fail")}, {"message": "so it was"}, {}, ["stage.failed"]),
    "cancelled": ({"root": _stage("sleep")}, {"ms": 200}, {}, ["done", "job.cancelled"]),
    "late": ({"root": _stage("sleep")}, {"ms": 60_000}, {"deadline": 0.5}, ["job.deadline"]),
}
"""Of each sort: graph, input, options, the ways in which it may end."""
