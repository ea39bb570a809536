"""Measure the memory of the processes, and the keys that ten thousand jobs leave in the server."""

from __future__ import annotations

import re
import time

from redis import Redis

from benchmarks.measure import Figure, Measurement
from benchmarks.onestage import VALUE
from benchmarks.sides import RESULT_TTL_SECONDS, Sides, make_echo_node, read_memory_mb

CONCURRENT_JOBS = 1_000
EXPIRY_SECONDS = 5.0
"""The time that the server may take to delete expired keys."""

_ID = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def run(sides: Sides, *, jobs: int = 10_000) -> list[Measurement]:
    """Return the memory of an idle worker, of router and worker after `jobs` jobs, and the number of keys
    left.
    """
    graph = {"root": make_echo_node()}
    while sides.routed < jobs:
        results = [sides.run_graph(graph, VALUE) for _ in range(min(CONCURRENT_JOBS, jobs - sides.routed))]
        for result in results:
            result.get(timeout=120)
    after = read_memory_mb(sides.router_pid), read_memory_mb(sides.worker_pid)
    until = time.monotonic() + RESULT_TTL_SECONDS + EXPIRY_SECONDS
    while (left := count_keys_left(sides.store, sides.jobs)) and time.monotonic() < until:
        time.sleep(1)
    return [
        Figure("idle worker without a model, resident memory", sides.idle_memory_mb, "MB", 90),
        Figure(f"router after {sides.routed:,} jobs, resident memory", after[0], "MB", 120),
        Figure(f"worker after {len(sides.jobs):,} jobs, resident memory", after[1], "MB", 120),
        Figure(
            f"keys of {len(sides.jobs):,} jobs left after their time ({RESULT_TTL_SECONDS:g} s)",
            left,
            "keys",
            0,
        ),
    ]


def count_keys_left(store: Redis, jobs: set[str], *, but: str | None = None) -> int:
    """Return how many of the server's keys name one of the jobs. Keys that begin with `but` do not count."""
    return sum(
        1
        for key in store.scan_iter("*", count=5_000)
        if (found := _ID.search(key))
        and found[0].decode() in jobs
        and (but is None or not key.startswith(but.encode()))
    )
