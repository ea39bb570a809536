"""Routes for jobs: submit, read, wait, cancel, list. `gridq.gateway.routes.events` follows one."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query, Request
from fastapi.responses import Response
from starlette.requests import ClientDisconnect

from gridq.client.broker_client import BrokerClient
from gridq.config.settings import Settings
from gridq.errors import NoLiveSeat, RequestError
from gridq.gateway.auth.caller import Caller, require_scope
from gridq.gateway.grid.connection import GridConnection
from gridq.gateway.http.disconnect import DisconnectWatch
from gridq.gateway.http.request_body import read_body, run_for_body
from gridq.gateway.http.request_options import read_request_options
from gridq.gateway.http.schemas import (
    NOETHER_STATUS,
    CancelResult,
    JobAccepted,
    JobList,
    JobStatus,
    describe_errors,
    make_job_result,
    make_job_status,
)
from gridq.gateway.routes.job_spec import JobSpec, read_spec
from gridq.gateway.streaming.sse import encode_json
from gridq.jobs.record import JOB_ID
from gridq.jobs.waiting import build_not_found_error
from gridq.limits import api_keys
from gridq.process.heap import pause_gc
from gridq.protocol.money import sum_costs
from gridq.protocol.states import JobState
from gridq.store import values
from gridq.submission.request import encode_graph
from gridq.views import job_ids, job_list, wait_reasons
from gridq.views.jobs import MAX_STEPS, JobView, encode_rows

router = APIRouter(tags=["jobs"])

MAX_WAIT_SECONDS = 60.0
"""The longest that one request waits for the end of a job."""

JSON_LEVELS_PER_NODE = 2
"""Levels of JSON nesting for one level of a graph: the node, and the list or object that contains it."""

JobId = Annotated[str, Path(description="The job's ID, or its first characters, at least four.")]
Reader = Annotated[Caller, Depends(require_scope("read"))]


async def find_job(grid: GridConnection, caller: Caller, given: str) -> str:
    """Return the ID of the job that `given` names, among those that the caller may see.

    Raises JobNotFound and AmbiguousJob.
    """
    if not JOB_ID.fullmatch(given):
        raise build_not_found_error(given[:128])
    agent = None if caller.sees_all else caller.agent
    return await grid.call(job_ids.find_job, grid.client.redis, grid.keys, given, agent=agent)


@router.post(
    "/jobs",
    status_code=202,
    summary="Submit a graph",
    response_model=JobAccepted,
    responses=describe_errors(400, 401, 402, 403, 404, 409, 413, 429, 503),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": JobSpec.model_json_schema()}},
        }
    },
)
async def submit_job(
    request: Request,
    caller: Annotated[Caller, Depends(require_scope("submit"))],
    idempotency_key: Annotated[
        str | None,
        Header(
            description="Repeating the same key and body returns the same job.", pattern=r"^[ -~]{1,255}$"
        ),
    ] = None,
) -> Response:
    """Submit a graph with its input. A refused job is not queued.

    The headers `x-gridq-priority`, `x-gridq-deadline` and so on set the same options as the body's fields,
    which take precedence.
    """
    grid: GridConnection = request.app.state.grid
    raw = await read_body(request.receive)
    spec = await run_for_body(len(raw), read_spec, raw, _compute_max_depth(grid))
    base = read_request_options(request.scope["headers"], caller.agent, stream=False).job_options
    if None not in (spec.idempotency_key, idempotency_key) and spec.idempotency_key != idempotency_key:
        raise RequestError(
            "The idempotency keys in the header and the body differ",
            {"path": "idempotency_key", "fix": "send only one of the two"},
        )
    job_options = spec.options(base)
    if caller.key:  # the API key determines the agent
        job_options = job_options.model_copy(update={"agent": caller.agent})
    graph, value = await grid.call(_encode_spec, spec, grid.config)
    try:
        job = await grid.submit(graph, value, job_options, key=caller.key, job=spec.job, detached=True)
    except NoLiveSeat as exc:
        exc.details.pop("served", None)  # 503 rather than 404: the path exists, its seats do not
        raise
    state: JobState | None = None
    if spec.job is not None or job_options.idempotency_key is not None:  # it may be an existing job
        state = await grid.call(grid.client.status, job)
    state = state or JobState.RUNNING
    accepted = JobAccepted(
        job_id=job,
        job=job,
        state=state,
        status="queued" if state is JobState.RUNNING else NOETHER_STATUS[state],
        url=f"/jobs/{job}",
        events=f"/jobs/{job}/events",
    )
    return _make_json_response(accepted.model_dump_json().encode(), job, 202, location=f"/jobs/{job}")


@router.get(
    "/jobs/{id}",
    summary="Read a job, or wait for its end",
    response_model=JobStatus,
    responses=describe_errors(400, 401, 403, 404, 429, 503),
)
async def read_job(
    request: Request,
    id: JobId,
    caller: Reader,
    wait: Annotated[
        float,
        Query(ge=0, allow_inf_nan=False, description="Seconds to wait for the job's end, at most 60."),
    ] = 0.0,
) -> Response:
    """Read the state of a job and its stages; once it has ended, also its answer or error."""
    grid: GridConnection = request.app.state.grid
    job = await find_job(grid, caller, id)
    if wait > 0:
        with grid.relay.follow(job) as follower, DisconnectWatch(request.receive) as client:
            try:
                await follower.wait_for_end(min(wait, MAX_WAIT_SECONDS))
            except asyncio.CancelledError:
                if not client.disconnected:
                    raise
                client.uncancel()
                raise ClientDisconnect from None
    view, spent, body = await grid.call(_read_job, grid.client, job, caller.operates)
    if view.state is None:
        raise build_not_found_error(job)
    if not view.state.is_final:
        return _make_json_response(body[:-1] + b',"result":null}', job)
    answer = b"null"
    if view.state is JobState.DONE:
        answer = await grid.read_answer(job, await grid.read_end(job))
    result = encode_json(make_job_result(view, spent))
    # The stored text of the answer is sent as it is, because it may be many megabytes.
    return _make_json_response(body[:-1] + b',"result":' + result[:-1] + b',"output":' + answer + b"}}", job)


def _read_job(client: BrokerClient, job: str, with_tracebacks: bool) -> tuple[JobView, int | None, bytes]:
    """Return the job's view, what its stages cost in micro-dollars, and its status as JSON, which may have
    thousands of rows.
    """
    view = client.view(job)
    waits_for = wait_reasons.explain_wait(client.redis, client.keys, view)
    is_large = len(view.rows) >= MAX_STEPS
    with pause_gc(is_large):
        if is_large:  # the view has only the last rows
            view.rows = client.rows(job)
        if not with_tracebacks:
            view.hide_tracebacks()
        spent = sum_costs(row.micro_dollars for row in view.rows)
        status = make_job_status(replace(view, rows=[]), waits_for, spent)
        del status["rows"]
        return view, spent, encode_json(status)[:-1] + b',"rows":' + encode_rows(view.rows) + b"}"


@router.delete(
    "/jobs/{id}",
    summary="Cancel a job",
    response_model=CancelResult,
    responses=describe_errors(400, 401, 403, 404, 429, 503),
)
async def cancel_job(
    request: Request, id: JobId, caller: Annotated[Caller, Depends(require_scope("submit", "operate"))]
) -> CancelResult:
    """Cancel a job in any state. A job that has ended is not changed, so you may repeat the request."""
    grid: GridConnection = request.app.state.grid
    job = await find_job(grid, caller, id)
    if not caller.may_cancel(await grid.read_agent(job)):
        raise api_keys.build_scope_error(caller.key, "operate")
    cancelled = await grid.cancel(job)
    state = await grid.call(grid.client.status, job)
    return CancelResult(job_id=job, job=job, state=state or JobState.CANCELLED, cancelled=cancelled)


@router.get(
    "/jobs",
    summary="List jobs",
    response_model=JobList,
    responses=describe_errors(400, 401, 403, 429, 503),
)
async def list_jobs(
    request: Request,
    caller: Reader,
    *,
    state: Annotated[JobState | None, Query(description="Only jobs in this state.")] = None,
    limit: Annotated[int, Query(ge=1, le=500, description="Maximum number of jobs to return.")] = 20,
    agent: Annotated[str | None, Query(max_length=64, description="Only jobs of this agent.")] = None,
    before: Annotated[str | None, Query(description="The `next` of the previous page.")] = None,
) -> Any:
    """List jobs, the latest first: those that wait or run, and those whose result is still kept. You see
    your own jobs; with the scope `read-all` everybody's.
    """
    grid: GridConnection = request.app.state.grid
    if not caller.sees_all:
        if agent not in (None, caller.agent):
            raise api_keys.build_scope_error(caller.key, "read-all")
        agent = caller.agent
    page = await grid.call(
        job_list.list_jobs, grid.client.redis, grid.keys, limit, state, agent=agent, before=before
    )
    lines = [{"job_id": one.job, "status": NOETHER_STATUS[one.state], **one.to_json()} for one in page.jobs]
    return {"jobs": lines, "next": page.after}


def _encode_spec(spec: JobSpec, config: Settings) -> tuple[bytes, bytes]:
    """Return graph and input as JSON texts. Raises GraphError, InputTooLarge and ValueNotJson."""
    value = values.encode(spec.input, limit=config.max_value, what="input", path="input")
    return encode_graph(spec.graph, config), value


def _compute_max_depth(grid: GridConnection) -> int:
    return max(
        grid.options.max_json_depth, JSON_LEVELS_PER_NODE * grid.config.max_depth + JSON_LEVELS_PER_NODE
    )


def _make_json_response(body: bytes, job: str, status: int = 200, **headers: str) -> Response:
    return Response(body, status, {"x-gridq-job": job, **headers}, media_type="application/json")
