"""The plan of a run: its jobs and faults, generated from a seed. The same seed and size give the
same plan.
"""

from __future__ import annotations

import json
import random
import uuid
from dataclasses import dataclass, field, replace
from typing import Literal

from gridq.errors import ConfigError
from gridq.protocol.models import Json
from tests.chaos.endpoints.clients import Request, make_requests
from tests.chaos.graphs import JOB, GeneratedGraph, GraphGenerator, spends

FAULTS = {
    "kill": "kill -9 of a worker, started again after a while or never",
    "router-kill": "kill -9 of a router, started again after a while or never",
    "gateway-kill": "kill -9 of a gateway, started again after a while or never",
    "machine": "kill -9 of every program of a machine at once",
    "stop": "SIGSTOP of a worker, a router, a gateway or the server, SIGCONT after a while",
    "drain": "SIGTERM of a worker, a router or a gateway, started again once it has ended",
    "server-restart": "the server is ended and started again",
    "server-kill": "kill -9 of the server, started again with what its append-only file holds",
    "cut": "every connection of a program is closed, by FIN or RST",
    "blackhole": "a program's packets are dropped for a while, without a word",
    "delay": "each packet of a program takes some ms",
    "clock": "a machine's clock jumps, by up to a day",
    "client-kill": "CLIENT KILL of every connection",
    "script-flush": "the server forgets the scripts",
    "quota": "an agent's money is used up for a while",
    "pause": "an owner keeps a seat for a while: what runs there is handed back",
    "endpoint-dead": "a model endpoint refuses connections for a while",
    "endpoint-refusing": "a model endpoint refuses each call at once: a key, a path, a rate, overload, …",
    "endpoint-slow": "a model endpoint answers after seconds, or piece by piece",
    "endpoint-flapping": "a model endpoint answers each second call",
    "endpoint-half-open": "a model endpoint accepts calls and answers nothing, or breaks off",
}
"""Name → description."""

_WEIGHTS = {
    "kill": 6, "router-kill": 2, "gateway-kill": 2, "machine": 1, "stop": 5, "drain": 3, "server-restart": 1,
    "server-kill": 1, "cut": 5, "blackhole": 4, "delay": 3, "clock": 2, "client-kill": 2, "script-flush": 2,
    "quota": 2, "pause": 3, "endpoint-dead": 2, "endpoint-refusing": 3, "endpoint-slow": 1,
    "endpoint-flapping": 2, "endpoint-half-open": 3,
}  # fmt: skip


ENDPOINT_FAULTS = frozenset(kind for kind in FAULTS if kind.startswith("endpoint-"))
ASKING = 0.1
"""The probability that a stage calls a model."""
STAGES_PER_REQUEST = 4
"""Stages of jobs for each request that clients send through the gateways."""
HUGE_SHARE = 0.4
"""The part of all stages that huge graphs have."""
HUGE_STAGES = 2500
"""The most stages of one of them."""
LIMITED_AGENTS = ("thrifty", "cat")
"""Agents with little money, and with few jobs: their jobs may be refused."""
QUOTAS = frozenset(f"quota.{who}_{what}" for who in ("agent", "team") for what in ("money", "jobs", "tokens"))
UNREACHABLE = "job.deadline_unreachable"
REFUSED = QUOTAS | {UNREACHABLE}
"""Codes with which a job is refused, at once or, after it was accepted, by a router."""


@dataclass(frozen=True, slots=True)
class Job:
    """One job, and the calls for it.

    `at`: seconds from the start of the run to its submission. `channel`: the way in which it is submitted.
    `cancel`, `again`: seconds from its submission to its cancellation, and to a second submission with the
    same id or idempotency key; None: never.
    """

    id: str
    made: GeneratedGraph
    options: dict[str, Json]
    at: float
    channel: Literal["server", "celery", "gateway"] = "server"
    cancel: float | None = None
    again: float | None = None
    allowed_errors: frozenset[str] = frozenset()
    """Codes of errors that may end it although no stage of its graph fails."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `at`: seconds after the start. `seconds`: its duration; inf: for good. `pick` (0 to 1)
    selects its target among the possible ones, `size` (0 to 1) its strength.
    """

    at: float
    kind: str
    pick: float
    seconds: float
    size: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Jobs and faults over `seconds`, each in the order of their times."""

    seed: int
    seconds: float
    jobs: list[Job]
    faults: list[Fault] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    """Those of the clients of the gateways' model APIs."""

    @property
    def stages(self) -> int:
        """Number of witnessed stages of all jobs, also those of branches not taken, and of model calls."""
        return sum(count_stages(job.made) for job in self.jobs)

    @property
    def asked(self) -> int:
        """Number of stages and requests that call a model."""
        return len(self.requests) + sum(len(job.made.asked) for job in self.jobs)

    @property
    def spends(self) -> list[int]:
        """The micro-dollars that each stage that seats run will report."""
        return [spend for job in self.jobs for spend in spends(job.made.graph)]


def parse_faults(names: str) -> tuple[str, ...]:
    """Parse `all`, `none` or a list such as `kill,cut`. ConfigError: there is no such fault."""
    if names in ("all", "none", ""):
        return tuple(FAULTS) if names == "all" else ()
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in FAULTS:
            raise ConfigError(
                f"There is no fault {name!r}",
                {"path": "--faults", "expected": "all, none, or some of " + ", ".join(FAULTS)},
            )
    return tuple(name for name in FAULTS if name in wanted)


def make_plan(stages: int, seed: int, seconds: float, faults: tuple[str, ...], every: float) -> Plan:
    """Return a plan of jobs with at least `stages` stages, submitted over `seconds`, and of faults of the
    kinds `faults`, on average one every `every` seconds.
    """
    # Separate random sources: other faults must not change the jobs.
    jobs = _jobs(random.Random(f"jobs {seed}"), stages, seconds)
    jobs = [address(choose_channel(random.Random(f"door {job.id}"), job)) for job in jobs]
    requests = make_requests(seed, stages // STAGES_PER_REQUEST, seconds)
    return Plan(seed, seconds, jobs, make_faults(seed, seconds, faults, every), requests)


def count_stages(made: GeneratedGraph) -> int:
    """Return the number of a graph's stages that a witness sees."""
    return len(made.stages) + len(made.asked)


def address(job: Job) -> Job:
    """Return the job with its id in the graph, where model calls name it."""
    graph = json.loads(json.dumps(job.made.graph).replace(JOB, job.id))
    return replace(job, made=replace(job.made, graph=graph))


def _jobs(chance: random.Random, stages: int, seconds: float) -> list[Job]:
    generator = GraphGenerator(chance)
    generator.asking = ASKING
    huge = _make_huge_jobs(chance, generator, stages * HUGE_SHARE, seconds)
    left = stages - sum(count_stages(job.made) for job in huge)
    drafts = []
    total = 0
    while total < left:
        sort = chance.choices(
            ["plain", "failing", "cancelled", "late", "waiting", "poor", "streamed", *LIMITED_AGENTS],
            [48, 10, 10, 6, 4, 8, 4, 6, 4],
        )[0]
        generator.tight = sort in LIMITED_AGENTS
        made = generator.generate(
            failing=0.12 if sort == "failing" else 0.0,
            paid=sort in ("poor", *LIMITED_AGENTS),
            slow=sort in ("cancelled", "late"),
            streamed=sort == "streamed",
        )
        if not made.stages:
            continue
        drafts.append((sort, made, total))
        total += count_stages(made)
    jobs = [make_job(chance, sort, made, seconds * before / total) for sort, made, before in drafts]
    return sorted(jobs + huge, key=lambda job: job.at)


def _make_huge_jobs(
    chance: random.Random, generator: GraphGenerator, stages: float, seconds: float
) -> list[Job]:
    """Return jobs of huge graphs with about `stages` stages together, in the first part of the run. The one
    with the most stages runs to its end.
    """
    jobs: list[Job] = []
    layered = chance.random() < 0.5
    while stages >= 1:
        sort = chance.choices(["plain", "failing", "cancelled"], [3, 1, 1])[0] if jobs else "plain"
        size = min(round(stages), HUGE_STAGES)
        made = generator.generate_huge(size, layered=layered, failing=0.001 if sort == "failing" else 0.0)
        jobs.append(make_job(chance, sort, made, seconds * chance.uniform(0.05, 0.7)))
        stages -= size
        layered = not layered
    return jobs


def make_job(chance: random.Random, sort: str, made: GeneratedGraph, at: float) -> Job:
    """Return a job of a sort, submitted `at` seconds after the start. Sorts: plain, failing, cancelled, late,
    waiting, poor, streamed, and the names of LIMITED_AGENTS.
    """
    options: dict[str, Json] = {"agent": chance.choice(["ann", "ben"]), "wait_for_seat": True}
    allowed_errors: set[str] = set()
    cancel = None
    if chance.random() < 0.3:
        options["priority"] = "batch"
    if chance.random() < 0.2:
        options["session"] = f"s{chance.randrange(5)}"
    if sort == "cancelled":
        cancel = chance.choice([0.0, chance.uniform(0, 1), chance.uniform(0, 6)])
        allowed_errors = {"job.cancelled"}
    elif sort == "late":
        options["deadline"] = round(chance.uniform(0.5, 6), 2)
        allowed_errors = {"job.deadline", UNREACHABLE}
    elif sort == "waiting":
        options["queue_timeout"] = round(chance.uniform(0.5, 6), 2)
        allowed_errors = {"job.queue_timeout", UNREACHABLE}
    elif sort == "poor":
        options["agent"] = "poor"
        allowed_errors = {"quota.agent_money"}
    elif sort == "streamed":
        options["stream"] = True
    job = Job(
        id=str(uuid.UUID(int=chance.getrandbits(128), version=4)),
        made=made,
        options=options,
        at=round(at, 3),
        channel="celery" if chance.random() < 0.4 else "server",
        cancel=cancel,
        again=chance.uniform(0, 8) if chance.random() < 0.15 else None,
        allowed_errors=frozenset(allowed_errors),
    )
    return limit_agent(job, sort) if sort in LIMITED_AGENTS else job


def limit_agent(job: Job, agent: str) -> Job:
    """Return the job as one of a limited agent. It is submitted once: a refused job leaves its id and key
    free.
    """
    options = {name: value for name, value in job.options.items() if name != "idempotency_key"}
    return replace(
        job, options={**options, "agent": agent}, allowed_errors=job.allowed_errors | QUOTAS, again=None
    )


def choose_channel(chance: random.Random, job: Job) -> Job:
    """Return the job, perhaps submitted through a gateway, and perhaps with an idempotency key. With a key it
    is always submitted twice.
    """
    if job.channel == "server" and chance.random() < 0.4:
        job = replace(job, channel="gateway")
    # Not if a router may refuse it after it was accepted: a refused job leaves its key free.
    if chance.random() < 0.15 and not job.allowed_errors & REFUSED:
        again = chance.uniform(0, 8) if job.again is None else job.again
        job = replace(job, options={**job.options, "idempotency_key": f"key of {job.id}"}, again=again)
    return job


def make_faults(seed: int, seconds: float, kinds: tuple[str, ...], every: float) -> list[Fault]:
    """Return faults of these kinds over `seconds`, on average one of the grid every `every` seconds, and one
    of the endpoints every other time.
    """
    of_endpoints = tuple(kind for kind in kinds if kind in ENDPOINT_FAULTS)
    of_grid = tuple(kind for kind in kinds if kind not in ENDPOINT_FAULTS)
    made = _make_series(random.Random(f"faults {seed}"), seconds, of_grid, every)
    made += _make_series(random.Random(f"endpoints {seed}"), seconds, of_endpoints, 2 * every)
    return sorted(made, key=lambda fault: fault.at)


def _make_series(chance: random.Random, seconds: float, kinds: tuple[str, ...], every: float) -> list[Fault]:
    made: list[Fault] = []
    at = 2.0
    while kinds and at < seconds:
        kind = chance.choices(kinds, [_WEIGHTS[name] for name in kinds])[0]
        lasts = chance.choice([chance.uniform(0.1, 1), chance.uniform(1, 4), chance.uniform(4, 9)])
        if kind in ("kill", "router-kill", "gateway-kill", "machine") and chance.random() < 0.05:
            lasts = float("inf")
        elif kind in ("server-restart", "server-kill"):
            lasts = min(lasts, 4.0)
        made.append(Fault(round(at, 2), kind, chance.random(), round(lasts, 2), chance.random()))
        at += chance.expovariate(1 / every)
    return made
