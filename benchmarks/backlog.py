"""Measure the cost of a backlog: a grid with 100,000 queued jobs against an empty one.

Times are those of each script in the server and of a complete submit; memory is that of a queued job. Both
grids are on one server under different prefixes and take turns, so that noise affects both.
"""

from __future__ import annotations

from itertools import count
from typing import Any

from benchmarks.measure import Figure, Measurement, alternate, compute_percentile
from benchmarks.scripts import QUEUE, State, prioritize_server, record_times
from benchmarks.sides import Sides, make_echo_node, read_server_memory_mb
from gridq.client import BrokerClient
from gridq.jobs.record import make_job_id
from gridq.store.scripts import NewJob, Scripts, Word

MAX_P99_US = 1000.0
MAX_GROWTH = 1.2
"""How many times slower a call may be than on an empty grid."""

MAX_JOB_BYTES = 4096
"""The memory of a queued job without its input."""

INPUT = "x" * 1000
PIPELINED_JOBS = 500
SUBMITS = 300


class _PipelinedScripts(Scripts):
    """Scripts on a pipeline: calls are queued, and `execute` returns the replies."""

    def run(self, script: str, *words: Word) -> Any:
        self.client.evalsha(self.shas[script], 0, *words)
        return [b"ok"]


class BacklogGrid:
    """A grid with one live, idle seat."""

    def __init__(self, sides: Sides, name: str) -> None:
        self.state = State(sides.store, sides.config, name)
        self.state.add_seat("m.s", concurrency=2)
        self.client = BrokerClient(sides.server.url, config=self.state.scripts.config)
        self._numbers = count()
        self.compiled = self.client.admission.compile(b'{"root": {"op": "Stage", "id": "bench_echo"}}')

    def admit(self, scripts: Scripts | None = None) -> None:
        """Write one job as a submit does."""
        compiled = self.compiled
        job = NewJob(
            job=make_job_id(), agent=f"a{next(self._numbers) % 50}", priority=0, deadline_ms=3_600_000,
            result_ttl_ms=60_000, celery=False, stream=False, wait_for_seat=False,
            input=f'"{INPUT}"'.encode(), answer=compiled.answer, steps=compiled.steps,
            stages=compiled.stages, queues=compiled.needs, ready=compiled.ready, fields=compiled.fields,
        )  # fmt: skip
        (scripts or self.state.scripts).admit(job)

    def add_jobs(self, jobs: int) -> None:
        """Add this many queued jobs."""
        for first in range(0, jobs, PIPELINED_JOBS):
            pipe = self.state.store.pipeline(transaction=False)
            scripts = _PipelinedScripts(pipe, self.state.scripts.config)
            for _ in range(min(PIPELINED_JOBS, jobs - first)):
                self.admit(scripts)
            pipe.execute()

    def run_cycle(self) -> None:
        """Submit a job directly and one through Celery, run the oldest, cancel one, renew and sweep."""
        scripts = self.state.scripts
        self.admit()
        self.state.complete(self.state.claim("m.s"), "m.s", claim_next=False)
        job = make_job_id()
        scripts.enqueue(
            job, agent="a0", deadline_ms=3_600_000, result_ttl_ms=60_000, celery=True, stream=False,
            graph=b"{}", input=f'"{INPUT}"'.encode(), options=b"{}",
        )  # fmt: skip
        scripts.stop(job, "cancelled", "{}")
        scripts.renew("m.s", "inc", [])
        scripts.sweep()

    def submit(self) -> None:
        """Submit one job with the client."""
        self.client.submit({"root": make_echo_node()}, INPUT)

    def close(self) -> None:
        self.client.close()
        self.state.close()


SCRIPT_TITLES = {"admit": "submit (admit)", "enqueue": "submit by Celery (enqueue)", "claim": "claim",
         "complete": "complete", "renew": "renew", "sweep": "sweep"}  # fmt: skip


def run(sides: Sides, *, jobs: int = 100_000, samples: int = 1_000) -> list[Measurement]:
    """Return the memory of a job, the growth of each call and of a submit, and p99 of claim and complete."""
    with prioritize_server(sides.server.pid):
        empty, full = BacklogGrid(sides, "empty"), BacklogGrid(sides, "full")
        try:
            before = read_server_memory_mb(sides.store)
            full.add_jobs(jobs)
            bytes_each = (read_server_memory_mb(sides.store) - before) * 1e6 / jobs - len(INPUT) - 2
            with record_times(sides.store, empty.state.scripts, full.state.scripts) as (light, heavy):
                alternate(samples, empty.run_cycle, full.run_cycle)
            bare, loaded = alternate(min(SUBMITS, samples), empty.submit, full.submit)
        finally:
            empty.close()
            full.close()
    queued = f"{jobs:,} queued"
    found: list[Measurement] = [
        Figure(f"bytes of a job with {queued}, beside its input", bytes_each, "B", MAX_JOB_BYTES)
    ]
    for name, title in SCRIPT_TITLES.items():
        growth = compute_percentile(heavy[name], 0.5) / compute_percentile(light[name], 0.5)
        found.append(
            Figure(f"{title} with {queued}, p50 beside an empty grid's", growth, "times", MAX_GROWTH)
        )
    found.append(
        Figure(
            f"a whole submit with {queued}, p50 beside an empty grid's", loaded / bare, "times", MAX_GROWTH
        )
    )
    for name in ("claim", "complete"):
        p99 = compute_percentile(heavy[name], 0.99)
        found.append(Figure(f"{name} with {queued}, p99 in the server", p99, "µs", MAX_P99_US))
    return found


assert QUEUE == "bench:any", "the grid's seat must serve bench_echo"
