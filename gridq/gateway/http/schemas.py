"""What the grid's own routes take and give: models for checking and for OpenAPI, with examples.

noether-grid's clients are served by the same routes: their names (`job_id`, `status`, `result`,
`spent_cents`, `worker_id`, `healthy` …) stand beside the grid's own.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gridq.gateway.http.errors import redact_record
from gridq.protocol.models import HistoryRow, Json
from gridq.protocol.states import JobState
from gridq.seats.registry import LiveSeat
from gridq.views.jobs import JobView, StageView

MICRO_DOLLARS_PER_CENT = 10_000
"""Micro-dollars in one cent."""

NOETHER_STATUS: dict[JobState, str] = {
    JobState.QUEUED: "queued",
    JobState.RUNNING: "running",
    JobState.DONE: "ok",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "failed",
    JobState.EXPIRED: "abandoned",
}
"""What noether-grid's clients, which know five words, are told of each state."""


class ErrorDetail(BaseModel):
    """What is wrong, where, and what helps; more details may stand beside these."""

    model_config = ConfigDict(extra="allow")

    code: str = Field(description="stable, as in gridq.errors")
    message: str
    request_id: str
    path: str | None = None
    expected: str | None = None
    reason: str | None = None
    fix: str | None = Field(None, description="the smallest change that would help")
    bottleneck: str | None = Field(None, description="with every 429 and 503: which limit binds")
    capability: str | None = Field(None, description="there: the queue; null where none is what binds")
    position: int | None = Field(None, description="there: its place in line; null where there is none")
    starts_in: dict[str, float] | None = Field(None, description="there: low, p50, high in seconds, or null")
    retry_after: float | None = Field(None, description="there: seconds; null where no waiting helps")


class ErrorBody(BaseModel):
    """The body of every error of the grid's own routes."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [
                {
                    "error": {
                        "code": "job.not_found",
                        "message": "There is no job '7f1c'",
                        "reason": "never submitted, or its result has expired",
                        "request_id": "req_4bf92f3577b34da6a3ce929d",
                    }
                }
            ]
        },
    )

    error: ErrorDetail


STATUS_DESCRIPTIONS = {
    400: "the request is malformed, or the graph wrong",
    401: "the key is missing, unknown or revoked",
    402: "the job's budget is too small for it",
    403: "the key is not for this",
    404: "there is none",
    409: "it contradicts what is there",
    413: "it is too large",
    429: "a limit is reached; Retry-After says when to ask again",
    503: "it cannot be done now; Retry-After says when to ask again",
}


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What OpenAPI says of the errors of a route."""
    return {status: {"model": ErrorBody, "description": STATUS_DESCRIPTIONS[status]} for status in statuses}


class JobAccepted(BaseModel):
    """A job that was taken."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "job_id": "7f1c0a52-7c5e-4a52-9d0e-0d0f3c5f6a11",
                    "job": "7f1c0a52-7c5e-4a52-9d0e-0d0f3c5f6a11",
                    "state": "running",
                    "status": "queued",
                    "url": "/jobs/7f1c0a52-7c5e-4a52-9d0e-0d0f3c5f6a11",
                    "events": "/jobs/7f1c0a52-7c5e-4a52-9d0e-0d0f3c5f6a11/events",
                }
            ]
        }
    )

    job_id: str = Field(description="its id")
    job: str = Field(description="the same")
    state: JobState = Field(description="running from the moment its plan is written")
    status: str = Field(description="in noether-grid's words: queued, running, ok, failed or abandoned")
    url: str = Field(description="where it can be asked for")
    events: str = Field(description="where its pieces and stages can be followed")


class JobResult(BaseModel):
    """How a job ended, as noether-grid's clients read it."""

    job_id: str
    status: Literal["ok", "failed", "abandoned"]
    output: Json = Field(None, description="the answer; null where there is none")
    spent_cents: int | None = Field(
        description="whole cents, rounded up; null: no price is known for what it used"
    )
    error: str | None = None
    completed_at: datetime | None = None


class JobStatus(BaseModel):
    """A job at one instant. `rows` is its trace: one line for each stage that was recorded."""

    job_id: str
    job: str
    state: JobState
    status: Literal["queued", "running", "ok", "failed", "abandoned"] = Field(
        description="the state in noether-grid's words"
    )
    name: str
    agent: str
    priority: str
    submitted: float = Field(description="seconds since 1970, as all times here")
    deadline: float | None
    ended: float | None
    now: float
    done: int = Field(description="stages (of a large plan steps) that are done")
    of: int = Field(description="of how many")
    spent_cents: int | None = Field(
        description="whole cents, rounded up; null: no price is known for what it used, as on a subscription"
    )
    micro_dollars: int | None = Field(description="the same, exactly")
    dispatched_to: str | None = Field(description="who runs it, or ran it last")
    waits_for: str = Field(description="in words, what it waits for; empty where it has ended")
    stages: list[StageView]
    rows: list[HistoryRow]
    error: dict[str, Any] | None = Field(description="what ended it: code, message, details")
    result: JobResult | None = Field(description="null until it has ended; its answer is `result.output`")


class JobSummary(BaseModel):
    """One line of the list of jobs."""

    job_id: str
    job: str
    state: JobState
    status: str
    name: str
    agent: str
    priority: str
    submitted: float
    ended: float | None
    steps: int
    left: int


class JobList(BaseModel):
    """Jobs, the latest first, and where the next page begins."""

    jobs: list[JobSummary]
    next: str | None = Field(description="give it as `before` for the next page; null: this was the last")


class CancelResult(BaseModel):
    """What came of a cancellation."""

    job_id: str
    job: str
    state: JobState = Field(description="where the job stands now")
    cancelled: bool = Field(description="false: it had ended before")


class LlmCapability(BaseModel):
    """A model that a seat serves, in noether-grid's words."""

    provider: str
    model: str
    auth_via: str
    budget_monthly_cents: int | None = Field(description="null: no budget is set")
    budget_remaining_cents: int | None
    rate_limit_rpm: int | None


class Worker(LiveSeat):
    """A live seat, with noether-grid's fields beside the grid's own."""

    free_slots: int = Field(description="how many stages it would take now")
    worker_id: str = Field(description="the same as `seat`")
    url: str = Field(description="an enrolled worker's own; of any other seat the queue on which it listens")
    capabilities: list[LlmCapability]
    in_flight_jobs: int = Field(description="the same as `busy`")
    last_seen: datetime
    healthy: bool = Field(description="it takes work")


class DrainResult(BaseModel):
    """A seat that was told to take nothing more, or to take work again."""

    seat: str
    drained: bool
    drain_acknowledged: bool = Field(description="false: its worker has not heeded it yet")
    busy: int = Field(description="stages that still run there")


class Queue(BaseModel):
    """One capability's queue."""

    queue: str
    pending: dict[str, int] = Field(description="ready stages by priority")
    running: int
    wake_ups: int
    concurrency: int
    seats: list[str]
    oldest_ms: float | None = Field(description="how long its oldest stage waits")
    oldest: dict[str, float] = Field(description="the same by priority, where any waits")


class CapabilityOffer(BaseModel):
    """A capability that a stage can ask for now."""

    queue: str
    seats: list[str]
    loaded: list[str] = Field(description="the seats that have its model loaded")
    loads: bool = Field(description="whether any of them loads models at all")
    concurrency: int
    free: int


class QuarantineRequest(BaseModel):
    """Which stage an operator means, by its path in the graph or its step's number."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"job": "7f1c0a52", "stage": "root.stages[1]"}]},
    )

    job: str = Field(min_length=1, max_length=128)
    stage: str | int


class QuarantineResult(BaseModel):
    """What came of it."""

    job: str
    stage: str
    outcome: Literal["released", "dropped"]
    before: bool = Field(description="it was so before")


class Health(BaseModel):
    """The process lives."""

    ok: bool
    status: str
    version: str
    uptime: float = Field(description="seconds")


class Readiness(BaseModel):
    """Whether the gateway can take work, and why not."""

    ready: bool
    reason: str = Field(description="empty where it is")
    fix: str
    routers: int | None = Field(description="live routers; null: the server does not answer")


class NotReady(Readiness):
    """Why the gateway cannot take work: what every 503 says."""

    code: str = Field(description="stable, as in gridq.errors")
    bottleneck: str = Field(description="which limit binds")
    capability: str | None = Field(description="the queue that nobody serves; null where it is none")
    position: int | None = Field(description="null: there is no line to stand in")
    starts_in: dict[str, float] | None = Field(description="null: nobody knows")
    retry_after: float = Field(description="seconds")


def to_cents(micro_dollars: int | None) -> int | None:
    """Micro-dollars in whole cents, rounded up: what was spent is never nothing. None: no price is known.

    >>> cents(0), cents(1), cents(10_000), cents(None)
    (0, 1, 1, None)
    """
    return None if micro_dollars is None else -(-micro_dollars // MICRO_DOLLARS_PER_CENT)


def format_time(seconds: float | None) -> str | None:
    """Seconds since 1970 as RFC 3339."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def status_of(view: JobView) -> str:
    """The job's state in noether-grid's words: it runs only once a seat has taken a stage of it."""
    assert view.state is not None
    begun = not view.stages or any(stage.attempts or stage.state == "done" for stage in view.stages)
    if view.state is JobState.RUNNING and not begun:
        return NOETHER_STATUS[JobState.QUEUED]
    return NOETHER_STATUS[view.state]


def public_error(view: JobView) -> dict[str, Json] | None:
    """What ended a job, as its callers are told; None where nothing did."""
    return None if view.error is None else redact_record(view.error)


def job_status(view: JobView, waits_for: str, spent: int | None) -> dict[str, Json]:
    """A job's view as JobStatus has it, but for `result`; `spent` in micro-dollars."""
    ran = [stage.seat for stage in view.stages if stage.seat]
    return {
        "job_id": view.job,
        **view.to_json(),
        "status": status_of(view),
        "spent_cents": to_cents(spent),
        "micro_dollars": spent,
        "dispatched_to": ran[-1] if ran else None,
        "waits_for": waits_for,
        "error": public_error(view),
    }


def job_result(view: JobView, spent: int | None) -> dict[str, Json]:
    """How an ended job fared, as JobResult has it, but for `output`; `spent` in micro-dollars."""
    error = view.error
    return {
        "job_id": view.job,
        "status": status_of(view),
        "spent_cents": to_cents(spent),
        "error": None if error is None else f"{error.get('code')}: {error.get('message')}",
        "completed_at": format_time(view.ended),
    }
