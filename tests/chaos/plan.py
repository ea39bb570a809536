"""The plan of one run: jobs and faults, all of it from a seed. The same seed and size give the same plan."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass, field, replace
from typing import Literal

from gridq.errors import ConfigError
from gridq.protocol.models import Json
from tests.chaos.graphs import Made, Maker, spends

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
}
"""Name → what happens."""

_WEIGHTS = {
    "kill": 6, "router-kill": 2, "gateway-kill": 2, "machine": 1, "stop": 5, "drain": 3, "server-restart": 1,
    "server-kill": 1, "cut": 5, "blackhole": 4, "delay": 3, "clock": 2, "client-kill": 2, "script-flush": 2,
    "quota": 2, "pause": 3,
}  # fmt: skip


POORER = ("thrifty", "cat")
"""Agents of little money, and of few jobs: what they submit may be refused."""
QUOTAS = frozenset(f"quota.{who}_{what}" for who in ("agent", "team") for what in ("money", "jobs", "tokens"))
UNREACHABLE = "job.deadline_unreachable"
REFUSED = QUOTAS | {UNREACHABLE}
"""Codes with which a job is refused, at the door or, once accepted, by a router."""


@dataclass(frozen=True, slots=True)
class Job:
    """One job: what is submitted, when, by which door, and what is done to it.

    `at`, `cancel` and `again` are seconds: from the beginning of the run, and from its submission; None:
    never. `again`: it is submitted a second time, under the same id or, where it has one, its idempotency key
    alone.
    """

    id: str
    made: Made
    options: dict[str, Json]
    at: float
    door: Literal["server", "celery", "gateway"] = "server"
    cancel: float | None = None
    again: float | None = None
    may: frozenset[str] = frozenset()
    """Codes of errors that may end it although nothing in its graph fails."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: `at` seconds after the beginning, for `seconds` (inf: for good), of the part that `pick` (0
    to 1) names among those that it can hit; `size` (0 to 1) says how much, where that counts.
    """

    at: float
    kind: str
    pick: float
    seconds: float
    size: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Jobs and faults, each in the order of their times, over `seconds`."""

    seed: int
    seconds: float
    jobs: list[Job]
    faults: list[Fault] = field(default_factory=list)

    @property
    def stages(self) -> int:
        """How many witnessed stages the jobs have between them, the arms of branches not taken included."""
        return sum(len(job.made.stages) for job in self.jobs)

    @property
    def spends(self) -> list[int]:
        """What each of those that seats run will say that it used, in micro-dollars."""
        return [spend for job in self.jobs for spend in spends(job.made.graph)]


def chosen(names: str) -> tuple[str, ...]:
    """The faults that a list such as `kill,cut` names; `all`, `none`. ConfigError: there is no such fault."""
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


def make(stages: int, seed: int, seconds: float, faults: tuple[str, ...], every: float) -> Plan:
    """Jobs of at least `stages` stages, submitted over `seconds`, and faults of the kinds `faults` all the
    while, on average one each `every` seconds.
    """
    # Two sources of chance: other faults are no other jobs.
    jobs = _jobs(random.Random(f"jobs {seed}"), stages, seconds)
    jobs = [by_gateway(random.Random(f"door {job.id}"), job) for job in jobs]
    return Plan(seed, seconds, jobs, faults_of(seed, seconds, faults, every))


def _jobs(chance: random.Random, stages: int, seconds: float) -> list[Job]:
    maker = Maker(chance)
    drafts = []
    total = 0
    while total < stages:
        sort = chance.choices(
            ["plain", "failing", "cancelled", "late", "waiting", "poor", "streamed", *POORER],
            [48, 10, 10, 6, 4, 8, 4, 6, 4],
        )[0]
        maker.tight = sort in POORER
        made = maker.make(
            failing=0.12 if sort == "failing" else 0.0,
            paid=sort in ("poor", *POORER),
            slow=sort in ("cancelled", "late"),
            streamed=sort == "streamed",
        )
        if not made.stages:
            continue
        drafts.append((sort, made, total))
        total += len(made.stages)
    return [job_of(chance, sort, made, seconds * before / total) for sort, made, before in drafts]


def job_of(chance: random.Random, sort: str, made: Made, at: float) -> Job:
    """A job of a sort: plain, failing, cancelled, late, waiting, poor, streamed or an agent of `POORER`, `at`
    seconds after the beginning.
    """
    options: dict[str, Json] = {"agent": chance.choice(["ann", "ben"]), "wait_for_seat": True}
    may: set[str] = set()
    cancel = None
    if chance.random() < 0.3:
        options["priority"] = "batch"
    if chance.random() < 0.2:
        options["session"] = f"s{chance.randrange(5)}"
    if sort == "cancelled":
        cancel = chance.choice([0.0, chance.uniform(0, 1), chance.uniform(0, 6)])
        may = {"job.cancelled"}
    elif sort == "late":
        options["deadline"] = round(chance.uniform(0.5, 6), 2)
        may = {"job.deadline", UNREACHABLE}
    elif sort == "waiting":
        options["queue_timeout"] = round(chance.uniform(0.5, 6), 2)
        may = {"job.queue_timeout", UNREACHABLE}
    elif sort == "poor":
        options["agent"] = "poor"
        may = {"quota.agent_money"}
    elif sort == "streamed":
        options["stream"] = True
    job = Job(
        id=str(uuid.UUID(int=chance.getrandbits(128), version=4)),
        made=made,
        options=options,
        at=round(at, 3),
        door="celery" if chance.random() < 0.4 else "server",
        cancel=cancel,
        again=chance.uniform(0, 8) if chance.random() < 0.15 else None,
        may=frozenset(may),
    )
    return poorly(job, sort) if sort in POORER else job


def poorly(job: Job, agent: str) -> Job:
    """The job of an agent of `POORER`: submitted once, for what is refused leaves its id and its key free."""
    options = {name: value for name, value in job.options.items() if name != "idempotency_key"}
    return replace(job, options={**options, "agent": agent}, may=job.may | QUOTAS, again=None)


def by_gateway(chance: random.Random, job: Job) -> Job:
    """The job, which may go by a gateway instead of the plain client, and may have an idempotency key: then
    it is always submitted twice.
    """
    if job.door == "server" and chance.random() < 0.4:
        job = replace(job, door="gateway")
    # Not where a router may refuse it when it is accepted: what is refused leaves its key free.
    if chance.random() < 0.15 and not job.may & REFUSED:
        again = chance.uniform(0, 8) if job.again is None else job.again
        job = replace(job, options={**job.options, "idempotency_key": f"key of {job.id}"}, again=again)
    return job


def faults_of(seed: int, seconds: float, kinds: tuple[str, ...], every: float) -> list[Fault]:
    """Faults of these kinds over `seconds`, on average one each `every` seconds."""
    chance = random.Random(f"faults {seed}")
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
