"""Measure each script in the server, with 10 to 10,000 pending stages or ranked seats.

Times are the server's own, from its slow log with a threshold of zero. All data is written by the scripts,
except for the ranks, which normally come from a governor.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import Any

from redis import Redis

from benchmarks.measure import Figure, Measurement, compute_percentile
from benchmarks.sides import Sides
from gridq.app import app
from gridq.config.settings import Settings
from gridq.graph.plan import Op, Plan, Step
from gridq.jobs.record import COST_STEPS_MICRO_DOLLARS, build_plan_fields
from gridq.messaging import wake_ups
from gridq.protocol.models import Usage
from gridq.store.replies import Accepted, Claim, read_claim
from gridq.store.scripts import NewJob, Scripts, Word, order_arguments

QUEUE = "bench:any"
AGENTS = 50
COSTS = (
    *COST_STEPS_MICRO_DOLLARS,
    *(step * 10 for step in range(2 * COST_STEPS_MICRO_DOLLARS[-1], 2 * COST_STEPS_MICRO_DOLLARS[-1] + 11)),
)
"""Costs of 18 cost classes: those of COST_STEPS_MICRO_DOLLARS, and some above."""

NO_USAGE = Usage()
BATCH_STAGES = 500
MAX_P99_US = 1000.0
"""The bound of the 99th percentile."""

Times = dict[str, list[float]]


@dataclass
class Table:
    """The times in µs by script and size: `rows[name][size]` is (p50, p99)."""

    sizes: tuple[int, ...]
    rows: dict[str, dict[int, tuple[float, float]]] = field(default_factory=dict)

    def add(self, name: str, size: int, times: Sequence[float]) -> None:
        self.rows.setdefault(name, {})[size] = (
            compute_percentile(times, 0.5),
            compute_percentile(times, 0.99),
        )

    def to_markdown(self) -> list[str]:
        """Return the table in Markdown."""
        head = "| script | " + " | ".join(f"{size:,}" for size in self.sizes) + " |"
        body = [
            f"| {name} | "
            + " | ".join(f"{found[size][0]:.0f} / {found[size][1]:.0f}" for size in self.sizes)
            + " |"
            for name, found in self.rows.items()
        ]
        return [head, "|---" * (len(self.sizes) + 1) + "|", *body]

    def make_figures(self) -> list[Measurement]:
        """Return the p99 at the largest size, and the growth from the smallest, which may be logarithmic at
        most.
        """
        small, large = self.sizes[0], self.sizes[-1]
        found: list[Measurement] = []
        for name, by_size in self.rows.items():
            found.append(
                Figure(f"{name} at {large:,}, p99 in the server", by_size[large][1], "µs", MAX_P99_US)
            )
            growth = by_size[large][0] / max(by_size[small][0], 1.0)
            found.append(
                Figure(
                    f"{name}, growth of p50 from {small:,} to {large:,}",
                    growth,
                    "times",
                    _bound_growth(small, large),
                )
            )
        return found


@cache
def _make_plan(costs: tuple[int, ...]) -> tuple[list[str | int], list[int], list[str]]:
    ops = (Op("$", "s", "s", "bench:echo", ["in"]),)
    steps = tuple(Step("$", QUEUE, ops, ["op", 0], reads_input=True, micro_dollars=cost) for cost in costs)
    return build_plan_fields(Plan(steps, 0))


def _bound_growth(small: int, large: int) -> float:
    return round((len(str(large)) - 1) / max(1, len(str(small)) - 1), 2)


class State:
    """A grid under a prefix of its own, with pending stages and live seats."""

    def __init__(self, store: Redis, config: Settings, name: str) -> None:
        self.store = store
        self.scripts = Scripts(store, config.model_copy(update={"prefix": f"bench-{name}:"}))
        self.keys = self.scripts.keys
        self._jobs = count()
        self._nonces = count()
        wake_ups.write_templates(app, self.store, self.keys)
        for script in self.scripts.sources.values():
            self.store.script_load(script)

    def close(self) -> None:
        names = list(self.store.scan_iter(self.keys.prefix + "*", count=5000))
        for at in range(0, len(names), 5000):
            self.store.unlink(*names[at : at + 5000])

    def add_seat(self, name: str, concurrency: int = 1) -> None:
        self.scripts.register(
            name, "inc", host="here", concurrency=concurrency, queues=[QUEUE], record_ttl_ms=3_600_000
        )

    def admit(self, costs: Sequence[int] = (0,), agent: str = "") -> None:
        """Admit a job with one ready stage for each of `costs` (micro-dollars).

        Its agent is `agent`, or by default the next of AGENTS agents.
        """
        number = next(self._jobs)
        fields, ready, needs = _make_plan(tuple(costs))
        job = NewJob(
            job=f"j{number}", agent=agent or f"a{number % AGENTS}", priority=0, deadline_ms=3_600_000,
            result_ttl_ms=60_000, celery=False, stream=False, wait_for_seat=True, input=b'"x"', answer=0,
            steps=len(costs), queues=needs, ready=ready, fields=fields, micro_dollars=sum(costs),
            stages=len(costs),
        )  # fmt: skip
        assert self.scripts.admit(job) == Accepted()

    def fill(self, size: int, costs: Sequence[int] = (0,)) -> None:
        """Add `size` pending stages, with all agents and all `costs` in turn."""
        each = max(1, size // AGENTS)
        for first in range(0, size, each):
            self.admit([costs[number % len(costs)] for number in range(first, min(first + each, size))])

    def claim(self, seat: str, slot: str = "inc.0") -> Claim:
        found = self.scripts.claim(seat, "inc", slot, f"n{next(self._nonces)}")
        assert isinstance(found, Claim), found
        return found

    def hand_back(self, claim: Claim, seat: str) -> None:
        assert (
            self.scripts.fail(claim.lease, "back", pause_ms=0, used=Usage(), error="{}", row="", seat=seat)
            == "again"
        )

    def complete(self, claim: Claim, seat: str, *, claim_next: bool, used: Usage = NO_USAGE) -> Claim | str:
        result, _, after = self.scripts.complete(
            claim.lease, b'"x"', used=used, rows="[]", seat=seat, incarnation="inc", slot="inc.0",
            nonce=f"n{next(self._nonces)}", go_on=claim_next,
        )  # fmt: skip
        assert result == 1
        return after

    def exclude_seat(self, seat: str, number: int) -> None:
        """Let `seat` claim and fail `number` stages, so that they exclude it."""
        while number > 0:
            size = min(BATCH_STAGES, number)
            leases = self._call_all(
                "claim",
                [
                    {
                        "seat": seat,
                        "incarnation": "inc",
                        "slot": f"inc.{slot}",
                        "nonce": f"n{next(self._nonces)}",
                    }
                    for slot in range(size)
                ],
            )
            claims = [read_claim(reply) for reply in leases]
            got = [claim for claim in claims if isinstance(claim, Claim)]
            assert len(got) == size
            failures: dict[str, Word] = {
                "kind": "seat", "pause_ms": 3_000_000, "used": "0", "error_record": "{}", "row": "",
                "seat": seat, "events": "", "uuid": "", "why": "",
            }  # fmt: skip
            self._call_all("fail", [{"lease": claim.lease, **failures} for claim in got])
            number -= size

    def _call_all(self, name: str, calls: Sequence[dict[str, Word]]) -> list[Any]:
        pipe = self.store.pipeline(transaction=False)
        for arguments in calls:
            pipe.evalsha(self.scripts.shas[name], 0, *order_arguments(name, arguments))
        return pipe.execute()

    @contextmanager
    def record_times(self) -> Iterator[Times]:
        """Yield the time of each script call within the block in µs, filled in at its end."""
        with record_times(self.store, self.scripts) as (times,):
            yield times


@contextmanager
def record_times(store: Redis, *grids: Scripts) -> Iterator[tuple[Times, ...]]:
    """Yield the same for several grids on one server, one item for each."""
    found: tuple[Times, ...] = tuple(defaultdict(list) for _ in grids)
    store.config_set("slowlog-max-len", 200_000)
    store.slowlog_reset()
    store.config_set("slowlog-log-slower-than", 0)
    try:
        yield found
    finally:
        store.config_set("slowlog-log-slower-than", -1)
    names = {
        sha.encode(): (name, times)
        for scripts, times in zip(grids, found, strict=True)
        for name, sha in scripts.shas.items()
    }
    entries: Any = store.slowlog_get(200_000)
    for entry in entries:
        words = entry["command"].split(b" ", 2)
        if len(words) > 1 and words[1] in names:
            name, times = names[words[1]]
            times[name].append(float(entry["duration"]))
    store.slowlog_reset()


def run(
    sides: Sides, *, sizes: tuple[int, ...] = (10, 1_000, 10_000), samples: int = 1_000
) -> tuple[Table, list[Measurement]]:
    """Return the table and its figures."""
    table = Table(sizes)
    with prioritize_server(sides.server.pid):
        for size in sizes:
            for measure in (
                _measure_claims,
                _measure_classes,
                _measure_excluded,
                _measure_excluded_classes,
                _measure_ranked,
            ):
                state = State(sides.store, sides.config, f"{measure.__name__.strip('_')}-{size}")
                try:
                    for row, times in measure(state, size, samples):
                        table.add(row, size, times)
                finally:
                    state.close()
    return table, table.make_figures()


@contextmanager
def prioritize_server(server: int | None) -> Iterator[None]:
    """Raise the server's priority if this user may, so that its wait for a core is not measured."""
    with suppress(PermissionError):
        os.sched_setscheduler(server or 0, os.SCHED_RR, os.sched_param(1))
    try:
        yield
    finally:
        with suppress(PermissionError):
            os.sched_setscheduler(server or 0, os.SCHED_OTHER, os.sched_param(0))


Rows = list[tuple[str, list[float]]]


def _measure_claims(state: State, size: int, samples: int) -> Rows:
    """All pending stages are for the seat and of one cost class."""
    state.add_seat("s")
    state.fill(size)
    rows = [("claim", _time_claims(state, samples))]
    claim: Claim | str = state.claim("s")
    with state.record_times() as times:
        for _ in range(samples):
            state.admit()
            assert isinstance(claim, Claim)
            claim = state.complete(claim, "s", claim_next=True)
    return [*rows, ("complete and claim the next", times["complete"])]


def _measure_classes(state: State, size: int, samples: int) -> Rows:
    """The same, in as many cost classes as there may be."""
    state.add_seat("s")
    state.fill(size, COSTS)
    return [(f"claim, {len(COSTS)} classes", _time_claims(state, samples))]


def _measure_excluded(state: State, size: int, samples: int) -> Rows:
    """All pending stages but the last exclude the seat."""
    return [("claim behind stages of others", _claim_last(state, size, samples, (0,)))]


def _measure_excluded_classes(state: State, size: int, samples: int) -> Rows:
    """The same, with the other stages in many cost classes."""
    return [
        (f"claim behind stages of others, {len(COSTS)} classes", _claim_last(state, size, samples, COSTS[1:]))
    ]


def _claim_last(state: State, size: int, samples: int, costs: Sequence[int]) -> list[float]:
    state.add_seat("s", concurrency=BATCH_STAGES)
    state.add_seat("other", concurrency=BATCH_STAGES)
    state.fill(size - 1, costs)
    state.exclude_seat("s", size - 1)
    state.admit()
    assert state.store.hlen(state.keys("classes", QUEUE)) == min(len(costs), size - 1) + 1
    return _time_claims(state, samples)


def _time_claims(state: State, samples: int) -> list[float]:
    """Claim a stage and hand it back, `samples` times."""
    with state.record_times() as times:
        for _ in range(samples):
            state.hand_back(state.claim("s"), "s")
    return times["claim"]


def _measure_ranked(state: State, size: int, samples: int) -> Rows:
    """`size` seats are ranked and idle; each admitted job wakes up one of them."""
    names = [f"s{number}" for number in range(size)]
    ranks: dict[str, float] = {name: number / size for number, name in enumerate(names)}
    state.store.zadd(state.keys("rank", QUEUE), ranks, xx=False)
    state.store.expire(state.keys("rank", QUEUE), 3600)
    for name in names:
        state.add_seat(name)
    with state.record_times() as times:
        for number in range(samples):
            state.admit()
            name = names[number % size]
            state.complete(state.claim(name), name, claim_next=False)
            _take_wake_ups(state, names)
    rows = [("admit one stage and wake a seat, seats ranked", times["admit"])]
    return [*rows, ("complete and leave the slot, seats ranked", times["complete"])]


def _take_wake_ups(state: State, names: Sequence[str]) -> None:
    """Consume the wake-up as a worker would. Only the best-ranked seats get one."""
    pipe = state.store.pipeline(transaction=False)
    for name in names[:20]:
        pipe.delete(state.keys.queue(f"seat:{name}"))
    pipe.execute()
