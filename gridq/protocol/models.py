"""The models that cross a process boundary: effects, demands, offers, advertisements, usage, rows."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Json = Any
"""A JSON value: None, bool, int, float, str, list or dict with str keys."""


class ProtocolModel(BaseModel):
    """Frozen; unknown keys are ignored, so that a newer peer may say more."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Effect(BaseModel):
    """One effect: `{"effect": "Llm", "model": "claude"}` is `Effect(effect="Llm", model="claude")`; its
    fields are kept.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    effect: str

    @property
    def fields(self) -> dict[str, Json]:
        return dict(self.model_extra or {})


class Demand(ProtocolModel):
    """What one stage needs of a seat."""

    queue: str = Field(description="the capability, which is the queue's name")
    needs: dict[str, Json] = Field(default_factory=dict, description="what the profile's `matches` compares")
    fallbacks: tuple[Demand, ...] = Field(
        (), description="what it makes do with, the next best first, where no seat can take it; of one kind"
    )

    @property
    def links(self) -> tuple[Demand, ...]:
        """Itself and its fall-backs, the best first."""
        return (self, *self.fallbacks)

    def link(self, queue: str) -> Demand:
        """The one of its links that a seat took from `queue`; itself where none is of that queue."""
        return next((link for link in self.links if link.queue == queue), self)


class Estimate(ProtocolModel):
    """What a stage is expected to use, before it runs."""

    micro_dollars: int = Field(0, ge=0)
    tokens_in: int = Field(0, ge=0)
    tokens_out: int = Field(0, ge=0)

    @property
    def tokens(self) -> int:
        return self.tokens_in + self.tokens_out


MAX_USAGE = 10**12
"""What one attempt may have used of a thing at most, in micro-dollars or tokens: a profile that says more is
mistaken, and sums that scripts keep in 53 bits must stay whole.
"""


class Usage(ProtocolModel):
    """What an attempt used. Integers; money in micro-dollars."""

    micro_dollars: int | None = Field(
        0, ge=0, description="None: it has no price, as on a subscription, or none that is known"
    )
    tokens_in: int = Field(0, ge=0, description="all of them, cached or not")
    tokens_out: int = Field(0, ge=0, description="all of them, reasoning too")
    tokens_cached: int = Field(0, ge=0, description="of those in: read from a cache")
    tokens_cache_written: int = Field(0, ge=0, description="of those in: written to a cache")
    tokens_cache_hour: int = Field(0, ge=0, description="of those written: to be kept for an hour")
    tokens_reasoning: int = Field(0, ge=0, description="of those out")
    tokens_audio_in: int = Field(0, ge=0, description="of those in")
    tokens_audio_out: int = Field(0, ge=0, description="of those out")
    service: str = Field("", description="priority, flex, fast: what is charged otherwise than usual")
    seconds: float = Field(0.0, ge=0)

    def bounded(self) -> Usage:
        """The same, and of nothing more than MAX_USAGE."""
        over = {name: MAX_USAGE for name in _COUNTS if (getattr(self, name) or 0) > MAX_USAGE}
        return self.model_copy(update=over) if over else self

    def tokens(self) -> dict[str, int]:
        """What a row says of them: both numbers, and the parts of which there are any."""
        parts = {name: getattr(self, name) for name in _PARTS}
        told = {name: number for name, number in parts.items() if number}
        return {"tokens_in": self.tokens_in, "tokens_out": self.tokens_out, **told}

    def plus(self, other: Usage) -> Usage:
        """What both used together, in money as far as it has a price."""
        numbers = {name: getattr(self, name) + getattr(other, name) for name in _NUMBERS}
        priced = [one.micro_dollars for one in (self, other) if one.micro_dollars is not None]
        return Usage(micro_dollars=sum(priced) if priced else None, **numbers)


_PARTS = ("tokens_cached", "tokens_cache_written", "tokens_reasoning")
_NUMBERS = [name for name in Usage.model_fields if name not in ("micro_dollars", "service")]
_COUNTS = ["micro_dollars", *(name for name in _NUMBERS if name != "seconds")]


Resource = Literal["money", "tokens", "requests", "jobs", "parallel"]


class Limit(ProtocolModel):
    """At most so much of a thing in a window: micro-dollars, tokens in and out, requests (stages of a seat),
    jobs (of an agent), or `parallel`, stages at once, in the window `-`.

    `window` is `month`, `week` or `day` of the calendar, or such as `5h` (`m`, `h`, `d`): so long, from its
    first use on.
    """

    resource: Resource
    window: str = Field(pattern=r"^(month|week|day|-|[1-9][0-9]{0,5}[mhd])$")
    amount: int = Field(ge=0, le=10**15)


class SeatOffer(ProtocolModel):
    """One seat as a profile's probe found it.

    `name` is unique on the machine (`cpu`, `gpu0`, `openai`); `capability` is the profile's own descriptor as
    JSON; `exclusive` names what two seats must not share (a URL, a login, a device). `config` is for the
    runner only and is never advertised: it may hold secrets.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")
    kind: str
    capability: dict[str, Json]
    concurrency: int = Field(1, ge=1, le=512)
    exclusive: str | None = None
    limits: tuple[Limit, ...] = Field((), description="what it may give in each of its windows")
    requests_per_minute: int | None = Field(None, ge=0, description="None: no limit; 0: none at all")
    config: dict[str, Json] = Field(default_factory=dict)
    program: str = Field("", description="the program that serves it, which its owner may use too")
    note: str = ""


class SeatTerms(ProtocolModel):
    """What a seat's worker tells the server of it at its registration, beside what it serves."""

    limits: tuple[Limit, ...] = ()
    per_minute: int | None = Field(None, description="requests in any minute; None: no limit")
    lends_to: tuple[str, ...] = ()
    owner: str = ""
    families: dict[str, tuple[str, ...]] = Field(default_factory=dict, description="by queue")
    prices: tuple[int, int] | None = Field(None, description="micro-dollars a million tokens, in and out")
    hourly: int | None = Field(None, description="micro-dollars for an hour of a slot; None: it has no price")


class ProbeReport(ProtocolModel):
    """What a probe found, and in words what it did not and why, and what could be lent and is not."""

    found: list[SeatOffer] = Field(default_factory=list)
    missing: list[str] = Field(default_factory=list)
    unlent: list[str] = Field(default_factory=list)


class ServiceTime(ProtocolModel):
    """For how long a stage of one queue holds a slot of a seat, in seconds, as the latest ones did."""

    n: int = Field(ge=1, description="how many were measured")
    mean: float = Field(ge=0)
    p50: float = Field(ge=0, description="the middle")
    p90: float = Field(ge=0, description="nine of ten took no longer")


class Advertisement(ProtocolModel):
    """What a seat's worker tells the grid with each heartbeat. It never carries a ledger."""

    seat: str
    machine: str
    worker: str
    incarnation: str
    kind: str
    concurrency: int
    queues: list[str]
    capability: dict[str, Json] = Field(default_factory=dict)
    state: str = Field(
        "ready",
        description="ready, draining, paused by its owner, or why it takes no work now (circuit_breaker.py)",
    )
    reason: str = ""
    since: float = Field(0.0, description="when this state began, in seconds since 1970; 0: not known")
    until: float | None = Field(None, description="when it ends by itself, where that is known")
    version: str = ""
    owner: str = Field("", description="who lends it, where its seats file says so")
    share: float | None = Field(None, description="the part of its budget that is lent; None: all of it")
    whole_budget: int | None = Field(
        None,
        description="micro-dollars in a window, the part that its owner keeps too; None: no share is kept",
    )
    lends_to: list[str] = Field(
        default_factory=list, description="the agents and teams (team:<name>) it is lent to alone; empty: all"
    )
    started_at: float = 0.0
    metrics: dict[str, float] = Field(default_factory=dict)
    service: dict[str, ServiceTime] = Field(
        default_factory=dict, description="by queue; one that is missing was never measured here"
    )
    timeouts: dict[str, float] = Field(
        default_factory=dict,
        description="seconds, as read back at the worker's start: see workers.process.timeouts",
    )

    def lent_to(self, agent: str, team: str = "") -> bool:
        """Whether it is lent to an agent of a team."""
        return not self.lends_to or agent in self.lends_to or (team != "" and f"team:{team}" in self.lends_to)


class StageCall(ProtocolModel):
    """One stage as its runner gets it: which implementation, its place in the graph."""

    id: str
    name: str
    path: str
    implementation: str = Field(
        description="'builtin:text_template', 'python:pkg.mod:function', 'llm:chat', 'bench:echo'"
    )
    effects: list[Effect] = Field(default_factory=list)
    queue: str = Field(
        "", description="where the seat took it from: of a demand with fall-backs, which of them; '': unknown"
    )
    timeout: float | None = Field(None, description="seconds; None: the operator's stage_timeout")


class HistoryRow(ProtocolModel):
    """One line of a job's history: one stage, as it was recorded."""

    path: str
    stage: str
    queue: str
    worker: str
    attempt: int = 1
    failures: int = Field(0, description="attempts before it that failed by their seats' fault")
    losses: int = Field(0, description="attempts before it that were lost with their worker")
    deaths: int = Field(0, description="attempts before it that killed the process that ran them")
    started: float = Field(0.0, description="seconds since 1970 by the server's clock; 0: not known")
    wait_ms: float = 0.0
    run_ms: float = 0.0
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_cached: int = Field(0, description="of those in: read from a cache")
    tokens_cache_written: int = Field(0, description="of those in: written to a cache")
    tokens_reasoning: int = Field(0, description="of those out")
    micro_dollars: int | None = Field(0, description="None: it has no price, or none that is known")
    state: str = "done"
