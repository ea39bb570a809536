"""Schemas of gridq's own routes: they validate requests and appear in the OpenAPI document, with examples.

The same routes serve noether-grid's clients, so their field names (`job_id`, `status`, `result`,
`spent_cents`, `worker_id`, `healthy` …) stand beside gridq's own.
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
"""The status of each state for noether-grid's clients, which know five."""


class ErrorDetail(BaseModel):
    """The error: what is wrong, where, and what would help. It may have more fields."""

    model_config = ConfigDict(extra="allow")

    code: str = Field(description="The stable error code, such as `job.not_found`.")
    message: str = Field(description="What is wrong, in one sentence.")
    request_id: str = Field(description="The request's ID, also in `x-request-id` and in the gateway's log.")
    path: str | None = Field(None, description="Where: a field, a header, or a path in the graph.")
    expected: str | None = Field(None, description="What was expected there.")
    reason: str | None = Field(None, description="The cause.")
    fix: str | None = Field(None, description="The smallest change that would help.")
    bottleneck: str | None = Field(None, description="429 and 503 only: the limit that applies.")
    capability: str | None = Field(
        None, description="429 and 503 only: the queue; null if the limit is not one of a queue."
    )
    position: int | None = Field(
        None, description="429 and 503 only: the place in the queue; null if there is none."
    )
    starts_in: dict[str, float] | None = Field(
        None,
        description="429 and 503 only: the estimated seconds until the job would start, as `low`, `p50` and "
        "`high`; null if there is no estimate.",
    )
    retry_after: float | None = Field(
        None, description="429 and 503 only: seconds until a retry; null if waiting does not help."
    )


class ErrorBody(BaseModel):
    """The body of every error of gridq's own routes."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [
                {
                    "error": {
                        "code": "job.not_found",
                        "message": "No job '7f1c'",
                        "reason": "never submitted, or its result has expired",
                        "request_id": "req_4bf92f3577b34da6a3ce929d",
                    }
                }
            ]
        },
    )

    error: ErrorDetail = Field(description="The error.")


STATUS_DESCRIPTIONS = {
    400: "The request or the graph is invalid.",
    401: "The API key is missing, invalid or revoked.",
    402: "The job would cost more than its budget.",
    403: "The API key lacks the required scope, or the origin is not allowed.",
    404: "The job, seat or worker does not exist.",
    409: "The request conflicts with the current state.",
    413: "The request body or the graph is too large.",
    429: "A limit is reached. Retry-After says when to retry.",
    502: "The seat has failed.",
    503: "The grid cannot take the request now. Retry-After says when to retry.",
}


def describe_errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI description of a route's errors."""
    return {status: {"model": ErrorBody, "description": STATUS_DESCRIPTIONS[status]} for status in statuses}


class JobAccepted(BaseModel):
    """A job that was admitted."""

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

    job_id: str = Field(description="The job's ID.")
    job: str = Field(description="The same as `job_id`.")
    state: JobState = Field(description="The job's state. An admitted job is `running`.")
    status: str = Field(
        description="The state for noether-grid's clients: queued, running, ok, failed or abandoned."
    )
    url: str = Field(description="The path to read the job at.")
    events: str = Field(description="The path to follow the job's events at.")


class JobResult(BaseModel):
    """The result of an ended job, as noether-grid's clients read it."""

    job_id: str = Field(description="The job's ID.")
    status: Literal["ok", "failed", "abandoned"] = Field(description="How it ended.")
    output: Json = Field(None, description="The job's answer; null unless it is done.")
    spent_cents: int | None = Field(
        description="What the job cost in whole cents, rounded up; null if the price is unknown."
    )
    error: str | None = Field(None, description="Code and message of the error that ended the job.")
    completed_at: datetime | None = Field(None, description="When it ended.")


class JobStatus(BaseModel):
    """A job at one instant. `rows` is its history, one row for each recorded stage."""

    job_id: str = Field(description="The job's ID.")
    job: str = Field(description="The same as `job_id`.")
    state: JobState = Field(description="The job's state.")
    status: Literal["queued", "running", "ok", "failed", "abandoned"] = Field(
        description="The state for noether-grid's clients."
    )
    name: str = Field(description="The name that the submitter gave the job.")
    agent: str = Field(description="The agent that submitted the job.")
    priority: str = Field(description="`interactive` or `batch`.")
    submitted: float = Field(description="When it was submitted. All times are in seconds since 1970, UTC.")
    deadline: float | None = Field(description="When it must have ended; null if it has no deadline.")
    ended: float | None = Field(description="When it ended; null while it runs.")
    now: float = Field(description="The server's time of this view.")
    done: int = Field(description="How many stages are done; of a large plan, how many steps.")
    of: int = Field(description="How many there are.")
    spent_cents: int | None = Field(
        description="What the job cost so far in whole cents, rounded up; null if the price is unknown, as "
        "on a subscription."
    )
    micro_dollars: int | None = Field(description="The same in micro-dollars, not rounded.")
    dispatched_to: str | None = Field(description="The seat that runs it, or ran it last.")
    waits_for: str = Field(description="What the job waits for, in words; empty once it has ended.")
    stages: list[StageView] = Field(description="Its stages and their states.")
    rows: list[HistoryRow] = Field(description="Its history: one row for each recorded stage.")
    error: dict[str, Any] | None = Field(
        description="The error that ended it: `code`, `message` and `details`."
    )
    result: JobResult | None = Field(
        description="The result; null until the job has ended. The answer is `result.output`."
    )


class JobSummary(BaseModel):
    """A job in a list."""

    job_id: str = Field(description="The job's ID.")
    job: str = Field(description="The same as `job_id`.")
    state: JobState = Field(description="The job's state.")
    status: str = Field(description="The state for noether-grid's clients.")
    name: str = Field(description="The name that the submitter gave the job.")
    agent: str = Field(description="The agent that submitted the job.")
    priority: str = Field(description="`interactive` or `batch`.")
    submitted: float = Field(description="When it was submitted, in seconds since 1970.")
    ended: float | None = Field(description="When it ended; null while it runs.")
    steps: int = Field(description="How many steps its plan has.")
    left: int = Field(description="How many steps are left.")


class JobList(BaseModel):
    """One page of jobs, the latest first."""

    jobs: list[JobSummary] = Field(description="The jobs of this page.")
    next: str | None = Field(description="Pass it as `before` to get the next page; null on the last page.")


class CancelResult(BaseModel):
    """The result of a cancellation."""

    job_id: str = Field(description="The job's ID.")
    job: str = Field(description="The same as `job_id`.")
    state: JobState = Field(description="The job's state now.")
    cancelled: bool = Field(description="True if this request cancelled it; false if it had ended before.")


class LlmCapability(BaseModel):
    """A model that a seat serves, as noether-grid's clients read it."""

    provider: str = Field(description="Who runs the model.")
    model: str = Field(description="The model's name.")
    auth_via: str = Field(description="How the worker authenticates with the provider.")
    budget_monthly_cents: int | None = Field(description="The seat's budget; null if it has none.")
    budget_remaining_cents: int | None = Field(description="What is left of the budget.")
    rate_limit_rpm: int | None = Field(description="Requests a minute; null if there is no limit.")


class Worker(LiveSeat):
    """A live seat: gridq's fields, and those of noether-grid."""

    free_slots: int = Field(description="How many stages it would take now.")
    worker_id: str = Field(description="The ID of a worker over HTTP; of any other seat the same as `seat`.")
    url: str = Field(description="The URL of a worker over HTTP; of any other seat `seat:` and its name.")
    capabilities: list[LlmCapability] = Field(description="The models that it serves.")
    in_flight_jobs: int = Field(description="The same as `busy`.")
    last_seen: datetime = Field(
        description="The earliest time at which its lease may have been renewed last."
    )
    healthy: bool = Field(description="True if it takes work.")


class DrainResult(BaseModel):
    """The result of draining or undraining a seat."""

    seat: str = Field(description="The seat's full name.")
    drained: bool = Field(description="True if the seat is to take no new work.")
    drain_acknowledged: bool = Field(description="True once its worker has applied the change.")
    busy: int = Field(description="How many stages still run on it.")


class ModelResult(BaseModel):
    """The result of a command to load or unload a model of a seat."""

    seat: str = Field(description="The seat's full name.")
    model: str = Field(description="The model, as the request names it.")
    state: Literal["waiting", "running", "done"] = Field(
        description="`waiting` until the seat's worker has read the command, `running` until it has done it."
    )


class Queue(BaseModel):
    """The queue of one capability."""

    queue: str = Field(description="The capability, such as `llm:any`.")
    pending: dict[str, int] = Field(description="Ready stages, by priority.")
    running: int = Field(description="Running stages that were taken from it.")
    wake_ups: int = Field(description="Wake-up messages that wait for a worker.")
    concurrency: int = Field(description="Slots of the live seats that serve it.")
    seats: list[str] = Field(description="The live seats that serve it.")
    oldest_ms: float | None = Field(
        description="How long the oldest stage has waited, in milliseconds; null if none waits."
    )
    oldest: dict[str, float] = Field(description="The same for each priority with waiting stages.")


class CapabilityOffer(BaseModel):
    """A capability that stages can use now."""

    queue: str = Field(description="The capability, such as `llm:any`.")
    seats: list[str] = Field(description="The seats that serve it.")
    loaded: list[str] = Field(description="The seats that have its model in memory.")
    loads: bool = Field(description="True if any of the seats loads models into memory.")
    concurrency: int = Field(description="How many stages the seats can run at once.")
    free_slots: int = Field(description="How many slots are free.")


class QuarantineRequest(BaseModel):
    """The quarantined stage that is meant: its job, and its path in the graph or its step's number."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"job": "7f1c0a52", "stage": "root.stages[1]"}]},
    )

    job: str = Field(min_length=1, max_length=128, description="The job's ID, or its first characters.")
    stage: str | int = Field(description="The stage's path, such as `root.stages[1]`, or its step's number.")


class QuarantineResult(BaseModel):
    """The result of a decision about a quarantined stage."""

    job: str = Field(description="The job's ID.")
    stage: str = Field(description="The stage, as the request named it.")
    outcome: Literal["released", "dropped"] = Field(description="What was decided.")
    before: bool = Field(description="True if the same decision was made before.")


class Health(BaseModel):
    """The gateway process is alive."""

    ok: bool = Field(description="Always true.")
    status: str = Field(description="Always `ok`.")
    version: str = Field(description="The gateway's version of gridq.")
    uptime: float = Field(description="Seconds since the process started.")


class Readiness(BaseModel):
    """The readiness of the gateway, and the reason if it is not ready."""

    ready: bool = Field(description="True if the gateway can take work.")
    reason: str = Field(description="Why it is not ready; empty if it is.")
    fix: str = Field(description="What would help; empty if it is ready.")
    routers: int | None = Field(description="Live routers; null if the Redis server does not answer.")


class NotReady(Readiness):
    """Why the gateway cannot take work, with the fields of every 503."""

    code: str = Field(description="The stable error code.")
    bottleneck: str = Field(description="What makes it unavailable.")
    capability: str | None = Field(description="The queue that no seat serves; null if it is none.")
    position: int | None = Field(description="Always null: nothing is queued here.")
    starts_in: dict[str, float] | None = Field(description="Always null: there is no estimate.")
    retry_after: float = Field(description="Seconds until the next check makes sense.")


def to_cents(micro_dollars: int | None) -> int | None:
    """Return micro-dollars as whole cents, rounded up, so that a small cost is not shown as 0. None: the
    price is unknown.

    >>> to_cents(0), to_cents(1), to_cents(10_000), to_cents(None)
    (0, 1, 1, None)
    """
    return None if micro_dollars is None else -(-micro_dollars // MICRO_DOLLARS_PER_CENT)


def format_time(seconds: float | None) -> str | None:
    """Return seconds since 1970 as RFC 3339."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def get_noether_status(view: JobView) -> str:
    """Return a job's status for noether-grid's clients. It is `running` only once a seat has taken one of
    its stages.
    """
    assert view.state is not None
    begun = not view.stages or any(stage.attempts or stage.state == "done" for stage in view.stages)
    if view.state is JobState.RUNNING and not begun:
        return NOETHER_STATUS[JobState.QUEUED]
    return NOETHER_STATUS[view.state]


def redact_error(view: JobView) -> dict[str, Json] | None:
    """Return the error that ended a job, as its callers may see it; None if there is none."""
    return None if view.error is None else redact_record(view.error)


def make_job_status(view: JobView, waits_for: str, spent: int | None) -> dict[str, Json]:
    """Return a job's view as JobStatus, without `result`. `spent` is in micro-dollars."""
    ran = [stage.seat for stage in view.stages if stage.seat]
    return {
        "job_id": view.job,
        **view.to_json(),
        "status": get_noether_status(view),
        "spent_cents": to_cents(spent),
        "micro_dollars": spent,
        "dispatched_to": ran[-1] if ran else None,
        "waits_for": waits_for,
        "error": redact_error(view),
    }


def make_job_result(view: JobView, spent: int | None) -> dict[str, Json]:
    """Return an ended job's view as JobResult, without `output`. `spent` is in micro-dollars."""
    error = view.error
    return {
        "job_id": view.job,
        "status": get_noether_status(view),
        "spent_cents": to_cents(spent),
        "error": None if error is None else f"{error.get('code')}: {error.get('message')}",
        "completed_at": format_time(view.ended),
    }
