"""What the processes hold, and what ten thousand jobs leave behind in the server."""

from __future__ import annotations

import re
import time

from redis import Redis

from benchmarks.measure import Figure, Measured
from benchmarks.onestage import VALUE
from benchmarks.sides import RESULT_TTL, Sides, echo_stage, memory_of

AT_ONCE = 1_000
EXPIRY = 5.0
"""Seconds that the server may take beyond a key's time to drop it."""

_ID = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def run(sides: Sides, *, jobs: int = 10_000) -> list[Measured]:
    """Memory of an idle worker; of router and worker once `jobs` jobs went through; the keys left."""
    graph = {"root": echo_stage()}
    while sides.routed < jobs:
        results = [sides.run_graph(graph, VALUE) for _ in range(min(AT_ONCE, jobs - sides.routed))]
        for result in results:
            result.get(timeout=120)
    after = memory_of(sides.router_pid), memory_of(sides.worker_pid)
    until = time.monotonic() + RESULT_TTL + EXPIRY
    while (left := keys_left(sides.store, sides.jobs)) and time.monotonic() < until:
        time.sleep(1)
    return [
        Figure("idle worker without a model, resident memory", sides.idle_mb, "MB", 90),
        Figure(f"router after {sides.routed:,} jobs, resident memory", after[0], "MB", 120),
        Figure(f"worker after {len(sides.jobs):,} jobs, resident memory", after[1], "MB", 120),
        Figure(f"keys of {len(sides.jobs):,} jobs left after their time ({RESULT_TTL:g} s)", left, "keys", 0),
    ]


def keys_left(store: Redis, jobs: set[str], *, but: str | None = None) -> int:
    """How many keys of any of the jobs the server still has, those that begin with `but` left out."""
    return sum(
        1
        for key in store.scan_iter("*", count=5_000)
        if (found := _ID.search(key))
        and found[0].decode() in jobs
        and (but is None or not key.startswith(but.encode()))
    )
