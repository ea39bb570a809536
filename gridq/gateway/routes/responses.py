"""Routes of OpenAI's Responses API: create a response, follow, read, cancel and delete one in the background.

The grid keeps no responses. A response in the background is a job, and can be read for as long as the job's
answer is kept. `openai.types.responses` is the source of all objects and events.
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Send

from gridq.errors import BrokerError, GatewayStops, GridError, InvalidField, JobNotFound, StreamTrimmed
from gridq.gateway.auth.caller import Caller, identify
from gridq.gateway.grid.connection import GridConnection
from gridq.gateway.http import errors
from gridq.gateway.http.request_body import read_json, read_models, run_for_body
from gridq.gateway.http.request_options import RequestOptions
from gridq.gateway.routes.model_api import (
    ModelApi,
    ModelApiResponse,
    forward,
    make_usage_headers,
)
from gridq.gateway.streaming import sse
from gridq.gateway.streaming.follower import Entry, Follower
from gridq.gateway.streaming.resume import BEGINNING, SEQUENCE_NUMBER, EventId, find_resume_entry
from gridq.jobs.record import JobOptions
from gridq.limits import api_keys
from gridq.protocol.models import Json
from gridq.protocol.queue_names import get_name
from gridq.protocol.response_needs import find_vendor_part
from gridq.protocol.response_object import make_response, make_response_id, parse_response_id
from gridq.protocol.states import JobState, StageState
from gridq.protocol.token_count import count_response_tokens
from gridq.views.jobs import JobView

router = APIRouter(tags=["openai"])

STATELESS = {"previous_response_id": "responses", "conversation": "conversations"}
"""Fields that refer to what the grid does not keep."""

NOT_OF_THE_JOB = (BrokerError, GatewayStops, JobNotFound)
"""Errors that say nothing about the response itself, which can be read later."""


ResponseId = Annotated[str, Path(description="The id of a response that was created in the background.")]


def read_background(body: dict[str, Json]) -> dict[str, Json] | None:
    """Return the response as it is queued, without an id, if a body asks for one in the background.

    Raises InvalidField if it refers to an earlier response or a conversation.
    """
    for field, what in STATELESS.items():
        if body.get(field) is not None:
            raise InvalidField(
                f"`{field}` is not supported: the grid keeps no {what}",
                {
                    "path": field,
                    "param": field,
                    "expected": "absent",
                    "fix": "send the earlier items again in `input`",
                },
            )
    background = body.get("background")
    if background is not None and not isinstance(background, bool):
        raise InvalidField(
            "`background` is not a boolean", {"path": "background", "expected": "true or false"}
        )
    return make_response(body, "", 0, "queued") if background else None


class ResponsesResponse(ModelApiResponse):
    """The response to a request of the Responses API."""

    skip_until: int | None = None
    """The number of an event; those up to it are not sent."""

    is_kept = False
    """True if it follows a background response: then an error is always an event of it."""

    head: dict[str, Json] | None = None
    """The response without output, as far as it is known."""

    _head_text = b""
    """The head of a response in the background, as JSON."""

    _last_number = -1

    async def _run(self, request: Request, send: Send) -> None:
        if self.queued is None or self.stream:
            await super()._run(request, send)
            return
        (await self._follow_job()).close()
        request.state.body.release()
        if self.job == self.new_job:
            answer = _make_json_response(self._head_text, self.job)
        else:  # an earlier request with the same idempotency key made it
            answer = await _answer(request, self.grid, self.job)
        self.head_sent = True
        await answer(request.scope, request.receive, send)

    async def _follow_job(self) -> Follower:
        """Return a follower of the job. Stores a response in the background before its job is submitted."""
        if self.queued is None or self.options.resume is not None:
            return await super()._follow_job()
        self.head = {**self.queued, "id": make_response_id(self.new_job), "created_at": int(time.time())}
        self._head_text = await run_for_body(len(self.value), _encode_head, self.head)
        await self.grid.store_response(self.new_job, self._head_text, self.options.job_options)
        try:
            follower = await super()._follow_job()
        except BrokerError:
            raise  # the job may have been admitted: what is kept goes with it, or expires
        except GridError:
            await self._drop_head()
            raise
        if self.job != self.new_job:  # its idempotency key has found another job
            await self._drop_head()
        return follower

    async def _drop_head(self) -> None:
        with contextlib.suppress(BrokerError):  # it expires
            await self.grid.delete_response(self.new_job)

    def _format_piece(self, entry: Entry) -> bytes:
        assert entry.piece is not None
        if self.head is None:
            response = json.loads(entry.piece).get("response")
            self.head = response if isinstance(response, dict) else {}
        found = SEQUENCE_NUMBER.match(entry.piece)
        if found:
            self._last_number = int(found[1])
            if self.skip_until is not None and self._last_number <= self.skip_until:
                return b""
        return super()._format_piece(entry)

    async def _send_error(self, request: Request, error: GridError, receive: Receive, send: Send) -> None:
        if isinstance(error, StreamTrimmed):
            error.details["fix"] = "retrieve the response without `stream` once it has ended"
        elif self.is_kept and self.job and not isinstance(error, NOT_OF_THE_JOB):
            await self._send(b"", request, send)
        await super()._send_error(request, error, receive, send)

    def _make_error_body(self, error: GridError, request_id: str) -> dict[str, Json]:
        """Return the event that ends a failed response. Its error has one of the codes of the API, and the
        grid's own in `gridq_code`. If the response goes on, and can be read later, it is an `error`.
        """
        number = self._last_number + 1
        if isinstance(error, StreamTrimmed) or (self.is_kept and isinstance(error, NOT_OF_THE_JOB)):
            body = errors.format_openai_error(error, request_id)["error"]
            return {**body, "type": "error", "sequence_number": number}
        head = self.head or make_response({}, make_response_id(self.job), int(time.time()), "failed")
        response = _fail(head, error, request_id)
        return {"type": "response.failed", "sequence_number": number, "response": response}


RESPONSES = ModelApi(
    "responses",
    sse.get_event_type,
    b"",
    errors.format_openai_error,
    find_vendor_part=find_vendor_part,
    read_background=read_background,
    names_answers=True,
    response_type=ResponsesResponse,
)


@router.post("/v1/responses", summary="Create a response", response_class=Response)
async def create_response(request: Request) -> Response:
    """Create a response, whole, as a stream of events, or in the background.

    Nothing is stored: `store` is always false. With `background`, the response is a job: read it at
    `/v1/responses/{id}` for as long as the job's answer is kept.
    """
    return await forward(request, RESPONSES, "responses")


@router.post("/v1/responses/input_tokens", summary="Count the tokens of a request", response_class=Response)
async def count_input_tokens(request: Request) -> Response:
    """Return an estimate of the tokens of a request's items, instructions and tools. No model is called."""
    grid: GridConnection = request.app.state.grid
    await identify(request, "submit")
    body, raw = await read_json(request.receive, grid.options.max_json_depth)
    read_background(body)
    read_models(body)
    if not isinstance(body.get("input"), str | list):
        raise InvalidField(
            "`input` is not a string or a list of items", {"path": "input", "expected": "a string or a list"}
        )
    tokens = await run_for_body(len(raw), count_response_tokens, body)
    return JSONResponse({"object": "response.input_tokens", "input_tokens": tokens})


@router.get("/v1/responses/{id}", summary="Read a background response", response_class=Response)
async def read_response(
    request: Request,
    id: ResponseId,
    stream: Annotated[bool, Query(description="Follow its events from the beginning.")] = False,
    starting_after: Annotated[
        int | None, Query(ge=0, description="With `stream`: the `sequence_number` to follow after.")
    ] = None,
    last_event_id: Annotated[
        str | None, Header(description="With `stream`: the `id` of the event to follow after.")
    ] = None,
) -> Response:
    """Read a response that was created in the background, or follow its events.

    About the last 10,000 events are kept. Read the response whole if you need earlier ones.
    """
    grid: GridConnection = request.app.state.grid
    caller = await identify(request, "read", "read-all")
    job, _ = await _find_job(grid, caller, id)
    if not stream:
        return await _answer(request, grid, job)
    after = find_resume_entry(job, last_event_id)
    if after == BEGINNING and starting_after is not None:
        after = await grid.find_entry(job, starting_after)
    options = RequestOptions(JobOptions(agent=caller.agent), resume=EventId(job, after))
    response = ResponsesResponse(
        grid, RESPONSES, caller, options, job=job, graph=b"", value=b"", stream=True, detached=True
    )
    response.head = await grid.read_response(job)
    response.skip_until, response.is_kept = starting_after, True
    return response


@router.post("/v1/responses/{id}/cancel", summary="Cancel a background response", response_class=Response)
async def cancel_response(request: Request, id: ResponseId) -> Response:
    """Cancel a response in the background. One that has ended is not changed."""
    grid: GridConnection = request.app.state.grid
    caller = await identify(request, "submit", "operate")
    job = await _find_own_job(grid, caller, id)
    await grid.cancel(job)
    may_read = not caller.key or not caller.scopes.isdisjoint(("read", "read-all"))
    return await _answer(request, grid, job, with_output=may_read)


@router.delete("/v1/responses/{id}", summary="Delete a background response", response_class=Response)
async def delete_response(request: Request, id: ResponseId) -> Response:
    """Cancel a response in the background, and delete its answer, its events and its idempotency key."""
    grid: GridConnection = request.app.state.grid
    caller = await identify(request, "submit", "operate")
    job = await _find_own_job(grid, caller, id)
    await grid.cancel(job)
    if not await grid.call(grid.client.scripts.forget, job):
        raise _make_not_found_error(id)
    return JSONResponse({"id": id, "object": "response", "deleted": True})


async def _find_job(grid: GridConnection, caller: Caller, response_id: str) -> tuple[str, str]:
    """Return the job of a response and its agent. Raises JobNotFound, also if the caller may not see it."""
    job = parse_response_id(response_id)
    try:
        agent = None if job is None else await grid.read_agent(job)
    except JobNotFound:
        agent = None
    if job is None or agent is None or not caller.may_see(agent):
        raise _make_not_found_error(response_id)
    return job, agent


async def _find_own_job(grid: GridConnection, caller: Caller, response_id: str) -> str:
    """Return the job of a response that the caller may cancel."""
    job, agent = await _find_job(grid, caller, response_id)
    if not caller.may_cancel(agent):
        raise api_keys.build_scope_error(caller.key, "operate")
    return job


def _make_not_found_error(response_id: str) -> JobNotFound:
    return JobNotFound(
        f"Response {response_id[:80]!r} not found",
        {
            "path": "id",
            "param": "id",
            "reason": "only background responses are kept, and only as long as the answer of a job",
            "fix": 'create it with "background": true',
        },
    )


async def _answer(request: Request, grid: GridConnection, job: str, *, with_output: bool = True) -> Response:
    """Return a response as it is now."""
    try:
        view: JobView = await grid.call(grid.client.view, job)
        ended = await grid.read_ended(job) if view.state in _FINAL_STATUSES else None
    except JobNotFound:
        raise _make_not_found_error(make_response_id(job)) from None
    headers = {"x-gridq-job": job}
    if ended is not None and view.state is JobState.DONE:
        headers |= {name.decode(): text.decode() for name, text in make_usage_headers(ended.rows)}
        answer = await grid.read_answer(job, ended.end)
        if not with_output:
            answer = sse.encode_json({**json.loads(answer), "output": []})
        return Response(answer, headers=headers, media_type="application/json")
    runs = any(stage.state is StageState.RUNNING for stage in view.stages)
    final = _FINAL_STATUSES.get(view.state) if view.state else None
    status = final or ("in_progress" if runs else "queued")
    head = await grid.read_response(job)
    if head is None and final is None and await grid.call(grid.client.status, job) in _FINAL_STATUSES:
        return await _answer(request, grid, job, with_output=with_output)  # it has ended since
    response = {**head, "status": status} if head else _make_bare_response(view, job, status)
    error = ended.end.to_error() if ended is not None else None
    if error is not None and view.state is not JobState.CANCELLED:
        response = _fail(response, error, errors.get_request_id(request))
    return _make_json_response(sse.encode_json(response), job)


def _make_json_response(response: bytes, job: str) -> Response:
    return Response(response, headers={"x-gridq-job": job}, media_type="application/json")


def _encode_head(head: dict[str, Json]) -> bytes:
    """Return a response as JSON. It repeats parts of the request, whose lone surrogates are escaped.

    Raises InvalidField for a number that Python reads as infinite, such as 1e400.
    """
    try:
        return json.dumps(head, separators=(",", ":"), allow_nan=False).encode()
    except ValueError:
        raise InvalidField(
            "The body has a number that is too large", {"path": "body", "expected": "numbers up to 1.7e308"}
        ) from None


def _make_bare_response(view: JobView, job: str, status: str) -> dict[str, Json]:
    """Return a response whose request is no longer known."""
    model = next((get_name(stage.queue) for stage in view.stages if stage.queue), "")
    about = {"model": model, "background": True}
    return make_response(about, make_response_id(job), int(view.submitted), status)


_FINAL_STATUSES = {
    JobState.DONE: "completed",
    JobState.FAILED: "failed",
    JobState.EXPIRED: "failed",
    JobState.CANCELLED: "cancelled",
}

_PROMPT_STATUSES = (400, 413, 422)
"""Statuses that say that the request is at fault."""


def _fail(response: dict[str, Any], error: GridError, request_id: str) -> dict[str, Any]:
    """Return `response` as failed with `error`."""
    status = errors.find_status(error)
    code = "invalid_prompt" if status in _PROMPT_STATUSES else "server_error"
    if status == 429:
        code = "rate_limit_exceeded"
    body = errors.format_openai_error(error, request_id)["error"]
    details = {**body, "code": code, "gridq_code": error.code}
    return {**response, "status": "failed", "error": details, "output": response.get("output") or []}
