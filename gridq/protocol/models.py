"""The models that cross a process boundary: effects, demands, offers, advertisements, usage, history."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Json = Any
"""A JSON value: None, bool, int, float, str, list or dict with str keys."""


class ProtocolModel(BaseModel):
    """A frozen model that ignores unknown keys, so that a newer peer may send more."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Effect(BaseModel):
    """One effect of a stage, with its fields.

    `{"effect": "Llm", "model": "claude"}` is `Effect(effect="Llm", model="claude")`.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    effect: str

    @property
    def fields(self) -> dict[str, Json]:
        return dict(self.model_extra or {})


class Demand(ProtocolModel):
    """The requirements of one stage on a seat."""

    queue: str = Field(description="the capability, which is also the queue's name")
    needs: dict[str, Json] = Field(
        default_factory=dict, description="what the profile's `matches` compares with a seat's capability"
    )
    fallbacks: tuple[Demand, ...] = Field(
        (), description="demands of the same kind to use if no seat can take this one, the best first"
    )

    @property
    def alternatives(self) -> tuple[Demand, ...]:
        """This demand and its fallbacks, the best first."""
        return (self, *self.fallbacks)

    def find_alternative(self, queue: str) -> Demand:
        """Return the alternative of `queue`.

        If there is none, the grid has routed the stage to `queue` by an alias: this demand there. An empty
        `queue` is not known: this demand.
        """
        known = next((demand for demand in self.alternatives if demand.queue == queue), None)
        if known is not None or not queue:
            return known or self
        return self.model_copy(update={"queue": queue, "fallbacks": ()})


class Estimate(ProtocolModel):
    """The expected usage of a stage, before it runs."""

    micro_dollars: int = Field(0, ge=0)
    tokens_in: int = Field(0, ge=0)
    tokens_out: int = Field(0, ge=0)
    gpu_seconds: float | None = Field(
        None, ge=0, description="for how long the stage declares to use a device; null: it does not say"
    )

    @property
    def tokens(self) -> int:
        return self.tokens_in + self.tokens_out


MAX_USAGE = 10**12
"""The most that counts of one attempt's use, in micro-dollars or tokens. A profile that reports more is
mistaken, and the sums that scripts keep must stay exact within 53 bits.
"""


class Usage(ProtocolModel):
    """The usage of an attempt, in integers; money is in micro-dollars."""

    micro_dollars: int | None = Field(
        0, ge=0, description="null if it has no price (a subscription), or the price is not known"
    )
    tokens_in: int = Field(0, ge=0, description="all input tokens, cached ones included")
    tokens_out: int = Field(0, ge=0, description="all output tokens, reasoning included")
    tokens_cached: int = Field(0, ge=0, description="the part of `tokens_in` that was read from a cache")
    tokens_cache_written: int = Field(
        0, ge=0, description="the part of `tokens_in` that was written to a cache"
    )
    tokens_cache_hour: int = Field(
        0, ge=0, description="the part of `tokens_cache_written` that is kept for an hour"
    )
    tokens_reasoning: int = Field(0, ge=0, description="the part of `tokens_out` that was reasoning")
    tokens_audio_in: int = Field(0, ge=0, description="the part of `tokens_in` that was audio")
    tokens_audio_out: int = Field(0, ge=0, description="the part of `tokens_out` that was audio")
    service: str = Field("", description="the service tier if it has its own price: priority, flex, fast")
    seconds: float = Field(0.0, ge=0, description="how long it used a device")

    @property
    def gpu_ms(self) -> int:
        """How long it used a device, in ms, rounded to the nearest."""
        return round(min(self.seconds * 1000, MAX_USAGE))

    def clamp(self) -> Usage:
        """Return this usage with no count above MAX_USAGE."""
        over = {name: MAX_USAGE for name in _COUNTS if (getattr(self, name) or 0) > MAX_USAGE}
        return self.model_copy(update=over) if over else self

    def get_token_fields(self) -> dict[str, int]:
        """Return the token counts for a history row: in and out, and the parts that are not zero."""
        parts = {name: getattr(self, name) for name in _TOKEN_PARTS}
        nonzero = {name: number for name, number in parts.items() if number}
        return {"tokens_in": self.tokens_in, "tokens_out": self.tokens_out, **nonzero}

    def add(self, other: Usage) -> Usage:
        """Return the sum of both; its cost is that of the parts with a known price."""
        numbers = {name: getattr(self, name) + getattr(other, name) for name in _NUMBERS}
        priced = [one.micro_dollars for one in (self, other) if one.micro_dollars is not None]
        return Usage(micro_dollars=sum(priced) if priced else None, **numbers)


_TOKEN_PARTS = ("tokens_cached", "tokens_cache_written", "tokens_reasoning")
_NUMBERS = [name for name in Usage.model_fields if name not in ("micro_dollars", "service")]
_COUNTS = ["micro_dollars", *(name for name in _NUMBERS if name != "seconds")]


Resource = Literal["money", "tokens", "requests", "jobs", "parallel", "gpu_seconds"]


class Limit(ProtocolModel):
    """The most that may be used of a resource in a window.

    Amounts are micro-dollars, tokens (in and out), requests (stages of a seat), jobs (of an agent), with
    `gpu_seconds` ms for which stages use a device, or with `parallel` stages that run at the same time, whose
    window is `-`. Other windows are the calendar's `month`, `week` or `day`, or a length such as `5h` (`m`,
    `h`, `d`) that begins with the first use.
    """

    resource: Resource
    window: str = Field(pattern=r"^(month|week|day|-|[1-9][0-9]{0,5}[mhd])$")
    amount: int = Field(ge=0, le=10**15)


class SeatOffer(ProtocolModel):
    """One seat as a profile's probe found it.

    `config` is for the seat's own worker only. It may hold secrets and is never advertised.
    """

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9_-]*$", description="unique on the machine: `cpu`, `gpu0`, `openai`"
    )
    kind: str
    capability: dict[str, Json] = Field(description="the profile's own description of the seat, as JSON")
    concurrency: int = Field(1, ge=1, le=512)
    exclusive: str | None = Field(
        None, description="what no second seat may use: a URL, a login, a device; null: nothing"
    )
    limits: tuple[Limit, ...] = Field((), description="what the seat may be used for in each window")
    requests_per_minute: int | None = Field(None, ge=0, description="null: no limit; 0: none at all")
    config: dict[str, Json] = Field(default_factory=dict)
    program: str = Field("", description="the program behind the seat, which its owner may use too")
    note: str = ""
    stamp: str = Field(
        "", description="what makes it another seat, if its profile follows the rest at work; empty: all"
    )
    announcement: str = Field(
        "", description="the file that announces the seat, and what it says; empty: none does"
    )
    notice: str = Field(
        "", description="what its owner is told if the seat is lent without a table, and how to leave it out"
    )


class SeatTerms(ProtocolModel):
    """The limits, prices and lending rules that a worker registers for its seat."""

    limits: tuple[Limit, ...] = ()
    requests_per_minute: int | None = Field(None, description="requests in any minute; null: no limit")
    lends_to: tuple[str, ...] = ()
    owner: str = ""
    families: dict[str, tuple[str, ...]] = Field(
        default_factory=dict, description="the model families that budgets name, by queue"
    )
    prices: tuple[int, int] | None = Field(
        None, description="micro-dollars per million tokens, in and out; null: no price"
    )
    hourly: int | None = Field(
        None, description="micro-dollars for an hour of a slot; null: its time is not counted"
    )
    keeps_prompts: bool = Field(False, description="a prompt that it has seen before takes it less time")


class ProbeReport(ProtocolModel):
    """The result of a probe: the seats found, and in words what is missing and what is not lent."""

    found: list[SeatOffer] = Field(default_factory=list)
    missing: list[str] = Field(default_factory=list)
    not_lent: list[str] = Field(default_factory=list)


class ServiceTime(ProtocolModel):
    """The times that recent stages of one queue occupied a slot of a seat, in seconds."""

    n: int = Field(ge=1, description="how many stages were measured")
    mean: float = Field(ge=0)
    p50: float = Field(ge=0, description="the median")
    p90: float = Field(ge=0, description="the time within which nine of ten finished")


class ModelCooldown(ProtocolModel):
    """A model that takes no work after a failure, while its seat's others do."""

    model: str
    queues: list[str] = Field(description="those that the seat does not serve meanwhile")
    state: str
    reason: str
    since: float = Field(description="in seconds since 1970, as `until`")
    until: float | None = None


class Advertisement(ProtocolModel):
    """The state of a seat, which its worker publishes with each heartbeat.

    The usage of its budgets is not part of it.
    """

    seat: str
    machine: str
    worker: str
    incarnation: str
    kind: str
    concurrency: int
    queues: list[str]
    last_resort: list[str] = Field(
        default_factory=list, description="queues that it serves only while no other seat of the grid does"
    )
    capability: dict[str, Json] = Field(default_factory=dict)
    state: str = Field(
        "ready",
        description="`ready`, `draining`, `paused`, or why it takes no work (gridq.protocol.seat_states)",
    )
    reason: str = ""
    since: float = Field(0.0, description="when this state began, in seconds since 1970; 0: not known")
    until: float | None = Field(None, description="when this state ends by itself; null: not known")
    models_in_cooldown: list[ModelCooldown] = Field(
        default_factory=list, description="not in `queues` and `capability`; empty if all models work"
    )
    version: str = ""
    owner: str = Field("", description="who lends the seat, if its seats file says so")
    share: float | None = Field(None, description="the part of its budget that is lent; null: all of it")
    whole_budget: int | None = Field(
        None, description="micro-dollars in a window, the owner's part included; null: nothing is kept back"
    )
    lends_to: list[str] = Field(
        default_factory=list, description="the agents and teams (`team:<name>`) that may use it; empty: all"
    )
    started_at: float = 0.0
    metrics: dict[str, float] = Field(default_factory=dict)
    details: dict[str, Json] = Field(
        default_factory=dict, description="what its profile shows beyond the metrics; empty for most"
    )
    service: dict[str, ServiceTime] = Field(
        default_factory=dict, description="by queue; a queue that is missing was not measured yet"
    )
    timeouts: dict[str, float] = Field(
        default_factory=dict, description="in seconds, as workers.process.timeouts read them at the start"
    )

    def is_lent_to(self, agent: str, team: str = "") -> bool:
        """Return whether an agent of a team may use the seat."""
        return not self.lends_to or agent in self.lends_to or (team != "" and f"team:{team}" in self.lends_to)


class StageCall(ProtocolModel):
    """One stage as its runner gets it: its implementation, and its place in the graph."""

    id: str
    name: str
    path: str
    implementation: str = Field(
        description="`builtin:text_template`, `python:pkg.mod:function`, `llm:chat`, …"
    )
    effects: list[Effect] = Field(default_factory=list)
    queue: str = Field("", description="the queue that the seat took the stage from; empty: not known")
    timeout: float | None = Field(None, description="in seconds; null: GRIDQ_STAGE_TIMEOUT")


class HistoryRow(ProtocolModel):
    """One recorded stage in a job's history."""

    path: str
    stage: str
    queue: str
    worker: str
    attempt: int = 1
    failures: int = Field(0, description="earlier attempts that failed by the fault of their seats")
    losses: int = Field(0, description="earlier attempts that were lost with their worker")
    deaths: int = Field(0, description="earlier attempts that killed the process that ran them")
    started: float = Field(0.0, description="seconds since 1970 by the server's clock; 0: not known")
    wait_ms: float = 0.0
    run_ms: float = 0.0
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_cached: int = Field(0, description="the part of `tokens_in` that was read from a cache")
    tokens_cache_written: int = Field(0, description="the part of `tokens_in` that was written to a cache")
    tokens_reasoning: int = Field(0, description="the part of `tokens_out` that was reasoning")
    micro_dollars: int | None = Field(0, description="null if it has no price, or the price is not known")
    gpu_seconds: float = Field(0.0, description="how long it used a device")
    dropped_fields: list[str] = Field(
        default_factory=list, description="parts of the stage's input that had no effect on the seat"
    )
    state: str = "done"
    traceback: str = Field("", description="where the stage's own code failed; empty for other agents")
