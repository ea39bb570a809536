"""What a backlog costs: a grid with 100,000 queued jobs beside an empty one, call by call in the server and
as a whole submit; and the bytes of a queued job.

Both stand on one server under prefixes of their own and take turns, so noise hits both.
"""

from __future__ import annotations

from itertools import count
from typing import Any

from benchmarks.measure import Figure, Measured, alternate, percentile
from benchmarks.scripts import QUEUE, State, timing, undisturbed
from benchmarks.sides import Sides, echo_stage, memory_of_server
from gridq.client import BrokerClient
from gridq.jobs.record import make_job_id
from gridq.store.scripts import NewJob, Scripts, Word

P99_US = 1000.0
GROWTH = 1.2
"""How much slower a call may be than on an empty grid."""

BYTES = 4096
"""What a queued job may hold beside its input."""

INPUT = "x" * 1000
PIPED = 500
SUBMITS = 300


class _Piped(Scripts):
    """Scripts whose calls are only sent: their replies are the pipeline's."""

    def run(self, script: str, *words: Word) -> Any:
        self.client.evalsha(self.shas[script], 0, *words)
        return [b"ok"]


class Corner:
    """A grid with one seat that is live and idle."""

    def __init__(self, sides: Sides, name: str) -> None:
        self.state = State(sides.store, sides.config, name)
        self.state.seat("m.s", concurrency=2)
        self.client = BrokerClient(sides.server.url, config=self.state.scripts.config)
        self._numbers = count()
        self.compiled = self.client.admission.compile(b'{"root": {"op": "Stage", "id": "bench_echo"}}')

    def admit(self, scripts: Scripts | None = None) -> None:
        """One job, as a submit writes it."""
        compiled = self.compiled
        job = NewJob(
            job=make_job_id(), agent=f"a{next(self._numbers) % 50}", priority=0, deadline_ms=3_600_000,
            result_ttl_ms=60_000, celery=False, stream=False, wait_for_seat=False,
            input=f'"{INPUT}"'.encode(), answer=compiled.answer, steps=compiled.steps,
            stages=compiled.stages, queues=compiled.needs, ready=compiled.ready, fields=compiled.fields,
        )  # fmt: skip
        (scripts or self.state.scripts).admit(job)

    def pile(self, jobs: int) -> None:
        """Let so many jobs wait."""
        for first in range(0, jobs, PIPED):
            pipe = self.state.store.pipeline(transaction=False)
            scripts = _Piped(pipe, self.state.scripts.config)
            for _ in range(min(PIPED, jobs - first)):
                self.admit(scripts)
            pipe.execute()

    def cycle(self) -> None:
        """A job comes by each door, the oldest is claimed and completed, and the sweep looks."""
        scripts = self.state.scripts
        self.admit()
        self.state.complete(self.state.claim("m.s"), "m.s", go_on=False)
        job = make_job_id()
        scripts.enqueue(
            job, agent="a0", deadline_ms=3_600_000, result_ttl_ms=60_000, celery=True, stream=False, graph=b"{}",
            input=f'"{INPUT}"'.encode(), options=b"{}",
        )  # fmt: skip
        scripts.stop(job, "cancelled", "{}")
        scripts.renew("m.s", "inc", [])
        scripts.sweep()

    def submit(self) -> None:
        """A whole submit, as an agent's program makes it."""
        self.client.submit({"root": echo_stage()}, INPUT)

    def close(self) -> None:
        self.client.close()
        self.state.close()


CALLS = {"admit": "submit (admit)", "enqueue": "submit by Celery (enqueue)", "claim": "claim",
         "complete": "complete", "renew": "renew", "sweep": "sweep"}  # fmt: skip


def run(sides: Sides, *, jobs: int = 100_000, samples: int = 1_000) -> list[Measured]:
    """Bytes a job, growth of each call, p99 of claim and complete, growth of a whole submit."""
    with undisturbed(sides.server.pid):
        empty, full = Corner(sides, "empty"), Corner(sides, "full")
        try:
            before = memory_of_server(sides.store)
            full.pile(jobs)
            bytes_each = (memory_of_server(sides.store) - before) * 1e6 / jobs - len(INPUT) - 2
            with timing(sides.store, empty.state.scripts, full.state.scripts) as (light, heavy):
                alternate(samples, empty.cycle, full.cycle)
            bare, loaded = alternate(min(SUBMITS, samples), empty.submit, full.submit)
        finally:
            empty.close()
            full.close()
    queued = f"{jobs:,} queued"
    found: list[Measured] = [
        Figure(f"bytes of a job with {queued}, beside its input", bytes_each, "B", BYTES)
    ]
    for name, title in CALLS.items():
        growth = percentile(heavy[name], 0.5) / percentile(light[name], 0.5)
        found.append(Figure(f"{title} with {queued}, p50 beside an empty grid's", growth, "times", GROWTH))
    found.append(
        Figure(f"a whole submit with {queued}, p50 beside an empty grid's", loaded / bare, "times", GROWTH)
    )
    for name in ("claim", "complete"):
        p99 = percentile(heavy[name], 0.99)
        found.append(Figure(f"{name} with {queued}, p99 in the server", p99, "µs", P99_US))
    return found


assert QUEUE == "bench:any", "the corners' seat serves what bench_echo needs"
