"""A job as data: its options, its plan as fields of a Redis hash, its end."""

from __future__ import annotations

import difflib
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, SecretStr, ValidationError

from gridq.config.settings import Settings
from gridq.errors import ConfigError, GridError, error_from_record, first_fault, quote
from gridq.graph.plan import Plan, dump_step
from gridq.protocol.calendar import format_iso_time
from gridq.protocol.meters import format_local_time
from gridq.protocol.models import Json, ProtocolModel
from gridq.protocol.states import JobState
from gridq.store import values

if TYPE_CHECKING:
    from gridq.graph.nodes import Graph

COST_STEPS_MICRO_DOLLARS = (0, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)
"""Estimates are rounded up to one of these, so that stages of similar cost share a class."""

JOB_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}")
"""The pattern of a whole job id, which becomes part of key names."""


CONVERSATION = "@"
"""The prefix of a session that a gateway has named after the conversation of a request."""

SeatId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.@-]{1,128}$")]
"""A seat's full id, such as `desk.gpu0`."""


class JobOptions(ProtocolModel):
    """The options of a job, beside its graph and its input."""

    agent: str = Field("default", pattern=r"^[A-Za-z0-9_.@-]{1,64}$")
    name: str | None = Field(
        None,
        min_length=1,
        max_length=64,
        pattern=r"^[\w .:/@+-]+$",  # with {1,64} in it the compiled pattern takes 6 MB of every process
        description="the name in lists and monitors; default: the graph's name, else that of its only stage",
    )
    priority: Literal["interactive", "batch"] = "interactive"
    deadline: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None, description="seconds until the job expires; default: GRIDQ_DEADLINE"
    )
    queue_timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None,
        description="seconds that a stage may wait for a seat before the job expires; default: until the "
        "deadline",
    )
    budget_cents: Annotated[float, Field(ge=0, le=10**11)] | None = Field(
        None,
        description="the most that the job may cost, in cents. A job with a higher estimate is refused; a "
        "running job fails at the stage that exceeds it. Default: no limit",
    )
    wait_for_seat: bool = Field(False, description="accept the job even if no live seat serves what it needs")
    session: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9_.:@-]{1,64}$",
        description="jobs of one agent and session go to the seat that served the last one, if it is free",
    )
    prefer: SeatId | None = Field(
        None, description="the seat that is woken first for the job's stages, if it is idle and serves them"
    )
    avoid: Annotated[tuple[SeatId, ...], Field(max_length=16)] = Field(
        (), description="seats that may not take any of the job's stages"
    )
    pin: SeatId | None = Field(None, description="the only seat that may take the stages that it serves")
    stream: Literal[False, True, "end"] = Field(
        False, description="keep the pieces of the answers for `stream`; `end`: only signal the end"
    )

    idempotency_key: str | None = Field(
        None,
        exclude=True,
        pattern=r"^[ -~]{1,255}$",
        description="submissions with the same key and body become one job, as long as its result is kept",
    )
    key: SecretStr | None = Field(
        None, exclude=True, description="the submitter's API key, which is never stored; default: GRIDQ_KEY"
    )

    @property
    def prio(self) -> int:
        """The priority as a number, as the scripts compare it: the lower goes first."""
        return 0 if self.priority == "interactive" else 1


def parse_options(given: dict[str, Json]) -> JobOptions:
    """Validate a job's options. Raises ConfigError, which names the invalid one."""
    unknown = set(given) - set(JobOptions.model_fields)
    if unknown:
        name = min(unknown)
        near = difflib.get_close_matches(name, ("graph", "input", *JobOptions.model_fields), 1)
        raise ConfigError(
            f"Unknown option {quote(name)}",
            {
                "path": name,
                "expected": "one of " + ", ".join(JobOptions.model_fields),
                "fix": f"use {near[0]!r}" if near else "remove it",
            },
        )
    try:
        return JobOptions(**given)
    except ValidationError as exc:
        name, reason = first_fault(exc)
        raise ConfigError(
            f"The option {name!r} is invalid", {"path": name, "reason": reason, **_suggest_value(name)}
        ) from None


def _suggest_value(option: str) -> dict[str, str]:
    in_seconds = option in ("deadline", "queue_timeout")
    return {"fix": f"write seconds as a number, such as {option}=300"} if in_seconds else {}


def choose_job_name(graph: Graph, plan: Plan) -> str:
    """Return the default name of a job: the graph's `name`, else that of its only stage, else `graph`."""
    name = graph.extra.get("name")
    names = [op.name for step in plan.steps for op in step.ops]
    if not isinstance(name, str) or not name:
        name = names[0] if len(names) == 1 else "graph"
    return re.sub(r"[^\w .:/@+-]", "_", name)[:64]


def get_deadline_ms(about: JobOptions, config: Settings) -> int:
    """Return the milliseconds to the job's deadline, at most what the operator allows."""
    return int(min(about.deadline or config.deadline, config.max_deadline) * 1000)


def get_queue_timeout_ms(about: JobOptions, config: Settings) -> int | None:
    """Return how many milliseconds a stage may wait for a seat; None: no limit of its own."""
    seconds = about.queue_timeout
    return None if seconds is None else max(int(min(seconds, config.max_deadline) * 1000), 1)


def get_budget_micro_dollars(about: JobOptions) -> int | None:
    """Return the most that the job may cost, in micro-dollars; None: no limit of its own."""
    return None if about.budget_cents is None else round(about.budget_cents * 10_000)


def make_job_id() -> str:
    return str(uuid.uuid4())


def check_job_id(job: str) -> str:
    """Return `job`. Raises ConfigError if it cannot be a job id, which is part of key names."""
    if not isinstance(job, str) or not JOB_ID.fullmatch(job):
        raise ConfigError(
            f"Invalid job id {quote(job)}", {"expected": "1 to 128 letters, digits, '_', '.' or '-'"}
        )
    return job


def round_up_cost(micro_dollars: int) -> int:
    """Round an estimate up to one of COST_STEPS_MICRO_DOLLARS."""
    return next((step for step in COST_STEPS_MICRO_DOLLARS if step >= micro_dollars), micro_dollars)


def build_plan_fields(plan: Plan) -> tuple[list[str | int], list[int], list[str]]:
    """Return a plan as (fields and values of the job's hash, the steps that are ready at once, the queues
    needed).

    Of queues joined by | one is needed. `gridq.store.keys` describes the fields.
    """
    dependents: list[list[int]] = [[] for _ in plan.steps]
    for index, step in enumerate(plan.steps):
        for before in step.after:
            dependents[before].append(index)
    fields: list[str | int] = []
    ready = []
    for index, step in enumerate(plan.steps):
        header = " ".join(
            (
                step.queue,
                str(round_up_cost(step.micro_dollars)),
                "-" if step.scope is None else str(step.scope),
                ",".join(map(str, dependents[index])) or "-",
                ",".join(map(str, step.refs)) or "-",
                "1" if step.reads_input else "0",
                step.path,
            )
        )
        fields += (f"header:{index}", header, f"spec:{index}", dump_step(step))
        if step.fallbacks:
            fields += (f"chain:{index}", format_chain(step.queues, [""] * len(step.queues)))
        if step.after:
            fields += (f"dependencies:{index}", len(step.after))
        else:
            ready.append(index)
    for arms in plan.arms:
        fields += (f"arm:{arms.gate}:1", " ".join(map(str, arms.if_true)))
        fields += (f"arm:{arms.gate}:0", " ".join(map(str, arms.if_false)))
    inner: list[list[int]] = [[] for _ in plan.scopes]
    for number, scope in enumerate(plan.scopes):
        above = scope.parent
        while above is not None:
            inner[above].append(number)
            above = plan.scopes[above].parent
    for number, scope in enumerate(plan.scopes):
        steps = " ".join(f"{step}={count}" for step, count in scope.steps)
        parent = "-" if scope.parent is None else scope.parent
        nested = " ".join(map(str, inner[number]))
        fields += (f"scope:{number}", f"{parent} {scope.max_attempts} {scope.delay_ms} {steps};{nested}")
    return fields, ready, sorted({"|".join(step.queues) for step in plan.steps})


def format_chain(links: Sequence[str], unfit: Sequence[str]) -> str:
    """Return the field `chain:<step>` of a step with fall-backs that has not become ready yet.

    `unfit`: for each of its queues the seats that may not take it from there, separated by commas
    (store/lua/lib/fallbacks.lua).
    """
    return " ".join(["1", *(f"{queue}|{names}" for queue, names in zip(links, unfit, strict=True))])


def parse_chain(field: str) -> tuple[int, list[str]]:
    """Read a field `chain:<step>`: (the index of the queue where the step is or was last, its queues)."""
    at, *links = field.split(" ")
    return int(at) - 1, [link.partition("|")[0] for link in links]


@dataclass(frozen=True, slots=True)
class End:
    """The end of a job: its final state, and the stored answer or error."""

    state: JobState
    payload: bytes

    @classmethod
    def parse(cls, data: bytes) -> End:
        state, _, payload = data.partition(b"\n")
        return cls(JobState(state.decode()), payload)

    def to_error(self) -> GridError | None:
        """Return the error of a job that did not succeed; else None."""
        return None if self.state is JobState.DONE else error_from_record(self.to_record())

    def to_record(self) -> Any:
        """Return the error as JSON.

        The scripts know no time zone, so the time at which a budget resets is formatted here: in `reason` for
        people, in `retry_at` for programs.
        """
        record = values.decode(self.payload)
        details = record.get("details") if isinstance(record, dict) else None
        if isinstance(details, dict) and isinstance(details.get("resets_at"), int):
            resets_at = details.pop("resets_at")
            details["reason"] = f"{details.get('reason')}, until {format_local_time(resets_at)}"
            details["retry_at"] = format_iso_time(resets_at, "UTC")
        return record
