"""A job as data: its options, its plan as the fields of a Redis hash, its end."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, SecretStr, ValidationError

from gridq.config.settings import Settings
from gridq.errors import ConfigError, GridError, error_from_record, first_fault
from gridq.graph.plan import Plan, dump_step
from gridq.protocol.calendar import format_iso_time
from gridq.protocol.meters import format_local_time
from gridq.protocol.models import Json, ProtocolModel
from gridq.protocol.states import JobState
from gridq.store import values

if TYPE_CHECKING:
    from gridq.graph.nodes import Graph

COST_STEPS_MICRO_DOLLARS = (0, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)
"""The steps, in micro-dollars, that an estimate is rounded up to, so that stages of like cost share a class.
"""

_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}")


SeatId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.@-]{1,128}$")]
"""A seat's name, such as `desk.gpu0`."""


class JobOptions(ProtocolModel):
    """What a submitter may say about a job, beside graph and input."""

    agent: str = Field("default", pattern=r"^[A-Za-z0-9_.@-]{1,64}$")
    name: str | None = Field(
        None,
        min_length=1,
        max_length=64,
        pattern=r"^[\w .:/@+-]+$",  # with {1,64} in it the compiled pattern takes 6 MB of every process
        description="what lists and monitors call the job; None: the graph's own name, else its only stage's",
    )
    priority: Literal["interactive", "batch"] = "interactive"
    deadline: Annotated[float, Field(gt=0)] | None = Field(
        None, description="seconds from now; None: GRIDQ_DEADLINE"
    )
    queue_timeout: Annotated[float, Field(gt=0)] | None = Field(
        None,
        description="seconds that a stage may stand ready with nobody taking it; then the job expires. None: "
        "to the deadline",
    )
    budget_cents: Annotated[float, Field(ge=0, le=10**11)] | None = Field(
        None,
        description="cents that its recorded stages together may cost: it is refused where it is estimated "
        "at more, and fails with the stage that goes over. None: no limit",
    )
    wait_for_seat: bool = Field(False, description="accept the job though no live seat serves what it needs")
    session: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9_.:@-]{1,64}$",
        description="an agent's jobs of one session go to the seat that served the last, where it is free",
    )
    prefer: SeatId | None = Field(
        None, description="the seat that is woken first for its stages, where it is idle and serves them"
    )
    avoid: Annotated[tuple[SeatId, ...], Field(max_length=16)] = Field(
        (), description="seats that may take none of its stages"
    )
    pin: SeatId | None = Field(
        None, description="the only seat that may take those of its stages which it serves"
    )
    stream: Literal[False, True, "end"] = Field(
        False, description="keep the pieces of the answers for `stream`; `end`: only the word that it ended"
    )

    idempotency_key: str | None = Field(
        None,
        exclude=True,
        pattern=r"^[ -~]{1,255}$",
        description="the same key and body are the same job, as long as its result is kept",
    )
    key: SecretStr | None = Field(
        None, exclude=True, description="the submitter's API key; None: GRIDQ_KEY. It is stored nowhere"
    )

    @property
    def prio(self) -> int:
        """The priority as the scripts compare it: the lower goes first."""
        return 0 if self.priority == "interactive" else 1


def parse_options(given: dict[str, Json]) -> JobOptions:
    """The options as a model; ConfigError names the one at fault."""
    unknown = set(given) - set(JobOptions.model_fields)
    if unknown:
        raise ConfigError(
            f"There is no option {min(unknown)!r}",
            {"path": min(unknown), "expected": "one of " + ", ".join(JobOptions.model_fields)},
        )
    try:
        return JobOptions(**given)
    except ValidationError as exc:
        name, reason = first_fault(exc)
        raise ConfigError(f"The option {name!r} is not usable", {"path": name, "reason": reason}) from None


def choose_job_name(graph: Graph, plan: Plan) -> str:
    """What a job of this graph is called where its submitter does not say: the graph's `name`, else that of
    its only stage, else `graph`.
    """
    name = graph.extra.get("name")
    names = [op.name for step in plan.steps for op in step.ops]
    if not isinstance(name, str) or not name:
        name = names[0] if len(names) == 1 else "graph"
    return re.sub(r"[^\w .:/@+-]", "_", name)[:64]


def get_deadline_ms(about: JobOptions, config: Settings) -> int:
    """The job's time to its deadline, never more than the operator allows."""
    return int(min(about.deadline or config.deadline, config.max_deadline) * 1000)


def get_queue_timeout_ms(about: JobOptions, config: Settings) -> int | None:
    """How long a stage may stand ready; None: without a limit of its own."""
    seconds = about.queue_timeout
    return None if seconds is None else max(int(min(seconds, config.max_deadline) * 1000), 1)


def get_budget_micro_dollars(about: JobOptions) -> int | None:
    """What the job may cost, in micro-dollars; None: without a limit of its own."""
    return None if about.budget_cents is None else round(about.budget_cents * 10_000)


def make_job_id() -> str:
    """An id that no other job has."""
    return str(uuid.uuid4())


def check_job_id(job: str) -> str:
    """`job` itself; ConfigError where it cannot be a job's id (the id is part of key names)."""
    if not isinstance(job, str) or not _ID.fullmatch(job):
        raise ConfigError(
            f"{job!r} cannot be a job's id", {"expected": "1 to 128 letters, digits, '_', '.' or '-'"}
        )
    return job


def round_up_cost(micro_dollars: int) -> int:
    """The step of the ladder that an estimate stands on."""
    return next((step for step in COST_STEPS_MICRO_DOLLARS if step >= micro_dollars), micro_dollars)


def build_plan_fields(plan: Plan) -> tuple[list[str | int], list[int], list[str]]:
    """(fields and values of the job's hash, the steps ready at once, the queues needed: of those with |
    between them one). store/lua says what each field is.
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
            fields += (f"chain:{index}", format_chain(step.links, [""] * len(step.links)))
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
    return fields, ready, sorted({"|".join(step.links) for step in plan.steps})


def format_chain(links: Sequence[str], unfit: Sequence[str]) -> str:
    """The field fb:<step> of a step with fall-backs that has not become ready yet. `unfit`: for each of its
    queues the seats that may not take it from there, with commas between (store/lua/lib/chain.lua).
    """
    return " ".join(["1", *(f"{queue}|{names}" for queue, names in zip(links, unfit, strict=True))])


def parse_chain(field: str) -> tuple[int, list[str]]:
    """(which of its queues a step stands or stood in last, its queues) of a field fb:<step>."""
    at, *links = field.split(" ")
    return int(at) - 1, [link.partition("|")[0] for link in links]


@dataclass(frozen=True, slots=True)
class End:
    """How a job ended: its final state and the stored answer or error."""

    state: JobState
    payload: bytes

    @classmethod
    def read(cls, data: bytes) -> End:
        state, _, payload = data.partition(b"\n")
        return cls(JobState(state.decode()), payload)

    def error(self) -> GridError | None:
        """The error of a job that did not end well."""
        return None if self.state is JobState.DONE else error_from_record(self.record())

    def record(self) -> Any:
        """That error as JSON. Scripts know no time zone: when a budget turns for which the job waited is told
        here, to a reader in their own time, and to a program as `retry_at`.
        """
        record = values.decode(self.payload)
        details = record.get("details") if isinstance(record, dict) else None
        if isinstance(details, dict) and isinstance(details.get("turns_at"), int):
            turn = details.pop("turns_at")
            details["reason"] = f"{details.get('reason')}, until {format_local_time(turn)}"
            details["retry_at"] = format_iso_time(turn, "UTC")
        return record
