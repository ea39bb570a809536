"""Jobs over HTTP: submit, wait, cancel, list. `gridq.gateway.routes.events` follows one."""

from __future__ import annotations

import asyncio
import json
import re
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
from gridq.gateway.http.request_body import read_body
from gridq.gateway.http.request_options import read_request_options
from gridq.gateway.http.schemas import (
    NOETHER_STATUS,
    CancelResult,
    JobAccepted,
    JobList,
    JobStatus,
    error_responses,
    job_result,
    job_status,
)
from gridq.gateway.routes.job_spec import JobSpec, read_spec
from gridq.jobs.waiting import build_not_found_error
from gridq.limits import api_keys
from gridq.protocol.money import sum_costs
from gridq.protocol.states import JobState
from gridq.store import values
from gridq.submission.request import encode_graph
from gridq.views import job_ids, job_list, queues
from gridq.views.jobs import MAX_STEPS, JobView

router = APIRouter(tags=["jobs"])

MAX_WAIT_SECONDS = 60.0
"""Seconds for which one request waits for a job's end at most."""

JSON_LEVELS_PER_NODE = 2
"""Levels of JSON that one level of a graph has: the node, and the list or record that it stands in."""

_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}")

JobId = Annotated[str, Path(description="the job's id, or the beginning of it, four characters at least")]
Reader = Annotated[Caller, Depends(require_scope("read"))]


async def find_job(grid: GridConnection, caller: Caller, given: str) -> str:
    """The id of the job that `given` means among those that the caller may see. JobNotFound, AmbiguousJob."""
    if not _ID.fullmatch(given):
        raise build_not_found_error(given[:128])
    agent = None if caller.sees_all else caller.agent
    return await grid.call(job_ids.find, grid.client.redis, grid.keys, given, agent=agent)


@router.post(
    "/jobs",
    status_code=202,
    summary="Submit a graph",
    response_model=JobAccepted,
    responses=error_responses(400, 401, 402, 403, 404, 409, 413, 429, 503),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": JobSpec.model_json_schema()}},
        }
    },
)
async def submit(
    request: Request,
    caller: Annotated[Caller, Depends(require_scope("submit"))],
    idempotency_key: Annotated[
        str | None, Header(description="the same key and body are the same job", pattern=r"^[ -~]{1,255}$")
    ] = None,
) -> Response:
    """Admit a graph with its input. Nothing is queued where it is refused.

    The headers `x-gridq-priority`, `x-gridq-deadline` and so on say the same as the body's fields; the body
    goes before.
    """
    grid: GridConnection = request.app.state.grid
    raw = await read_body(request.receive)
    spec = read_spec(raw, depth=_max_json_depth(grid))
    base = read_request_options(request.scope["headers"], caller.agent, stream=False).about
    if None not in (spec.idempotency_key, idempotency_key) and spec.idempotency_key != idempotency_key:
        raise RequestError(
            "The idempotency keys of header and body differ",
            {"path": "idempotency_key", "fix": "give it once"},
        )
    about = spec.options(base)
    if caller.key:  # a key names its agent itself
        about = about.model_copy(update={"agent": caller.agent})
    graph, value = await grid.call(_encode_spec, spec, grid.config)
    try:
        job = await grid.submit(graph, value, about, key=caller.key, job=spec.job, detached=True)
    except NoLiveSeat as exc:
        exc.details.pop("served", None)  # a graph that waits for its seats is no path that is not there: 503
        raise
    state: JobState | None = None
    if spec.job is not None or about.idempotency_key is not None:  # it may be one of before
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
    return _json_response(accepted.model_dump_json().encode(), 202, location=f"/jobs/{job}", job=job)


@router.get(
    "/jobs/{id}",
    summary="Ask for a job, and wait for its end",
    response_model=JobStatus,
    responses=error_responses(400, 401, 403, 404, 429, 503),
)
async def read(
    request: Request,
    id: JobId,
    caller: Reader,
    wait: Annotated[
        float,
        Query(ge=0, allow_inf_nan=False, description="seconds to wait for its end, at most 60"),
    ] = 0.0,
) -> Response:
    """Where a job and each of its stages stand, or how they went; with its answer or its error."""
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
    view, waits_for, spent = await grid.call(_read_job, grid.client, job)
    if view.state is None:
        raise build_not_found_error(job)
    body = json.dumps(job_status(view, waits_for, spent), separators=(",", ":")).encode()
    if not view.state.final:
        return _json_response(body[:-1] + b',"result":null}', job=job)
    answer = b"null"
    if view.state is JobState.DONE:
        answer = await grid.read_answer(job, (await grid.read_ended(job)).end)
    result = json.dumps(job_result(view, spent), separators=(",", ":")).encode()
    # The stored text of the answer goes out as it is: it may be many megabytes.
    return _json_response(body[:-1] + b',"result":' + result[:-1] + b',"output":' + answer + b"}}", job=job)


def _read_job(client: BrokerClient, job: str) -> tuple[JobView, str, int | None]:
    """(the job now, what it waits for, what its stages cost in micro-dollars)."""
    view = client.view(job)
    waits_for = queues.waits_for(client.redis, client.keys, view)
    if len(view.rows) >= MAX_STEPS:  # of a large plan it has the last ones
        view.rows = client.rows(job)
    return view, waits_for, sum_costs(row.micro_dollars for row in view.rows)


@router.delete(
    "/jobs/{id}",
    summary="Cancel a job",
    response_model=CancelResult,
    responses=error_responses(400, 401, 403, 404, 429, 503),
)
async def cancel(
    request: Request, id: JobId, caller: Annotated[Caller, Depends(require_scope("submit", "operate"))]
) -> CancelResult:
    """Cancel a job wherever it stands. One that has ended stays as it is; the same again is harmless."""
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
    responses=error_responses(400, 401, 403, 429, 503),
)
async def jobs(
    request: Request,
    caller: Reader,
    *,
    state: Annotated[JobState | None, Query(description="only those in it")] = None,
    limit: Annotated[int, Query(ge=1, le=500, description="how many at most")] = 20,
    agent: Annotated[str | None, Query(max_length=64, description="only those of this agent")] = None,
    before: Annotated[str | None, Query(description="`next` of the page before")] = None,
) -> Any:
    """The jobs that wait or run, and those whose result is still kept, the latest first: one's own, or with
    the scope `read-all` everybody's.
    """
    grid: GridConnection = request.app.state.grid
    if not caller.sees_all:
        if agent not in (None, caller.agent):
            raise api_keys.build_scope_error(caller.key, "read-all")
        agent = caller.agent
    page = await grid.call(
        job_list.jobs, grid.client.redis, grid.keys, limit, state, agent=agent, before=before
    )
    lines = [{"job_id": one.job, "status": NOETHER_STATUS[one.state], **one.to_json()} for one in page.jobs]
    return {"jobs": lines, "next": page.after}


def _encode_spec(spec: JobSpec, config: Settings) -> tuple[bytes, bytes]:
    """Graph and input as the JSON texts that are admitted. GraphError, InputTooLarge, ValueNotJson."""
    value = values.encode(spec.input, limit=config.max_value, what="input", path="input")
    return encode_graph(spec.graph, config), value


def _max_json_depth(grid: GridConnection) -> int:
    return max(grid.options.max_json_depth, JSON_LEVELS_PER_NODE * grid.config.max_depth + JSON_LEVELS_PER_NODE)


def _json_response(body: bytes, status: int = 200, *, location: str = "", job: str = "") -> Response:
    headers = {"cache-control": "no-store", "x-gridq-job": job}
    if location:
        headers["location"] = location
    return Response(body, status, headers, media_type="application/json")
