"""Forward a request of a model API through the grid: submit its body as it came, answer as its client
expects.

If the client disconnects, the job is cancelled, unless the request asked to detach.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from urllib.parse import quote

from redis.exceptions import RedisError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gridq.errors import BrokerError, DemandUnmet, GridError, InvalidField, JobNotFound, RequestError
from gridq.gateway.auth.caller import Caller, identify
from gridq.gateway.grid.connection import EndedJob, GridConnection, sum_cents
from gridq.gateway.grid.snapshot import get_snapshot
from gridq.gateway.http import errors
from gridq.gateway.http.disconnect import DisconnectWatch
from gridq.gateway.http.request_body import read_json, read_models, read_stream, run_for_body
from gridq.gateway.http.request_options import RequestOptions, read_request_options
from gridq.gateway.streaming import sse
from gridq.gateway.streaming.follower import Entry, Follower
from gridq.gateway.streaming.resume import EventId
from gridq.jobs.record import make_job_id
from gridq.jobs.server_outage import OutageRetry
from gridq.jobs.waiting import build_not_found_error
from gridq.protocol.betas import find_needed_betas
from gridq.protocol.models import HistoryRow, Json
from gridq.protocol.response_object import BACKGROUND, make_path_mark
from gridq.protocol.states import JobState

log = logging.getLogger(__name__)

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class ModelApi:
    """The formats of one model API.

    `event_name` returns the name of an event by its data. `end` is the data of the event that marks a
    complete stream, empty if the last piece does. `error_body` returns the body of an error.

    `read_config` returns what the headers of a request add to its stage's config, and raises InvalidField.
    `find_vendor_part` returns the place of what only a seat of this API can serve, "" if there is none.
    `read_background` returns the answer as it is queued, without an id, if a body asks for one in the
    background, and raises InvalidField for what the grid refuses. `names_answers` is True if the answer's id
    is that of its job. `response_type` is the class of its responses, if it is not ModelApiResponse.
    """

    name: str
    event_name: Callable[[bytes], bytes]
    end: bytes
    error_body: Callable[[GridError, str], dict[str, Json]]
    read_config: Callable[[Request], dict[str, Json]] = lambda request: {}
    find_vendor_part: Callable[[dict[str, Json]], str] = lambda body: ""
    read_background: Callable[[dict[str, Json]], dict[str, Json] | None] = lambda body: None
    names_answers: bool = False
    response_type: type[ModelApiResponse] | None = None


HEAD_WAITS = 3
"""The head of a stream waits for at most as many times the silence that a stream may have."""

BETA = re.compile(r"[a-z0-9-]{1,100}")
MAX_BETAS = 50


def read_betas(request: Request) -> dict[str, Json]:
    """Return the stage's config for the headers `anthropic-beta`. Raises InvalidField for an invalid name."""
    stated = ",".join(request.headers.getlist("anthropic-beta")).split(",")
    names = [name.strip() for name in stated if name.strip()]
    if len(names) > MAX_BETAS or not all(map(BETA.fullmatch, names)):
        raise InvalidField(
            "The header anthropic-beta is not valid",
            {
                "path": "anthropic-beta",
                "expected": f"at most {MAX_BETAS} names of letters, digits and hyphens",
            },
        )
    return {"betas": list(dict.fromkeys(names))} if names else {}


OPENAI = ModelApi("openai", lambda piece: b"", b"[DONE]", errors.format_openai_error)
ANTHROPIC = ModelApi(
    "anthropic", sse.get_event_type, b"", errors.format_anthropic_error, read_config=read_betas
)


async def forward(request: Request, api: ModelApi, path: str) -> ModelApiResponse:
    """Check a request to `path` of a model API. Returns the response, which submits the job when it is
    sent.

    The ID of a job with a stream, or with an answer that has the job's ID, ends with its path. A job of
    another path is not resumed, because its pieces have another format.

    Raises the errors of `identify`, `read_request_options` and `read_json`, MissingField,
    InvalidField and JobNotFound.
    """
    grid: GridConnection = request.app.state.grid
    caller = await identify(request, "submit")
    headers = request.scope["headers"]
    before = b'{"api":"%b","path":"%b","body":' % (api.name.encode(), path.encode())
    body, value = await read_json(request.receive, grid.options.max_json_depth, before, b"}")
    stream = read_stream(body) and path != "embeddings"  # embeddings are never streamed
    background = api.read_background(body)
    session = None if path == "embeddings" else grid.conversations.find(headers, body, caller.agent)
    job_options = read_request_options(
        headers, caller.agent, stream=stream or background is not None, session=session
    )
    model = read_models(body, job_options.models)
    detach = job_options.detach or background is not None
    mark = make_path_mark(path)
    if job_options.resume is not None:
        await identify(request, "read", "read-all")
        job = job_options.resume.job
        agent = await grid.read_agent(job)
        if not caller.may_see(agent):
            raise build_not_found_error(job)
        if not job.endswith(mark):
            raise RequestError(
                f"The job {job} is not a stream of {request.url.path}",
                {
                    "path": "last-event-id",
                    "expected": f"the ID of an event from a stream of {request.url.path}",
                    "fix": f"follow the job at /jobs/{job}/events, or send the request without Last-Event-ID",
                },
            )
        detach = detach or not caller.may_cancel(agent)
    config: dict[str, Json] = {"model": model, **api.read_config(request)}
    if path == "embeddings":
        config["embeddings"] = True
    vendor_part = api.find_vendor_part(body)
    if vendor_part:
        config["responses"] = True
    needed = await run_for_body(len(value), find_needed_betas, body, config.get("betas", ()))
    if needed:
        config["needs_betas"], vendor_part = needed, f"anthropic-beta: {needed[0]}"
    stage = {"op": "Stage", "id": "llm_api_request", "config": config}
    graph = sse.encode_json({"root": stage})
    job = make_job_id()
    if background is not None:
        job += BACKGROUND + mark
    elif stream or api.names_answers:
        job += mark
    return (api.response_type or ModelApiResponse)(
        grid,
        api,
        caller,
        job_options,
        job=job,
        graph=graph,
        value=value,
        stream=stream,
        detached=detach,
        queued=background,
        vendor_part=vendor_part,
    )


class ModelApiResponse(Response):
    """The response to a request of a model API: it submits the job, waits for it and sends the answer."""

    background = None  # no task runs after it has been sent

    def __init__(
        self,
        grid: GridConnection,
        api: ModelApi,
        caller: Caller,
        options: RequestOptions,
        *,
        job: str,
        graph: bytes,
        value: bytes | bytearray,
        stream: bool,
        detached: bool,
        queued: dict[str, Json] | None = None,
        vendor_part: str = "",
    ) -> None:
        self.grid = grid
        self.api = api
        self.caller = caller
        self.options = options
        self.new_job = job
        self.graph = graph
        self.value = value
        self.stream = stream or options.resume is not None
        self.job = ""
        self.detached = detached
        self.vendor_part = vendor_part
        self.queued = queued
        """The answer as it is queued, if it is one in the background."""

        self.dropped: list[str] = []
        """The parts of the request that had no effect on the seat, as far as they are known by now."""

        self.head_sent = False
        """True once the response head is sent, which tells the client the job's ID."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        with DisconnectWatch(receive) as client:
            try:
                await self._run(request, send)
            except asyncio.CancelledError:
                if client.disconnected:
                    client.uncancel()
                # If the gateway shuts down, a client that knows its job can resume it at another gateway.
                known = self.head_sent or self.options.resume is not None
                if not self.detached and self.job and (client.disconnected or not known):
                    await self._cancel_job()
                if not client.disconnected:
                    raise
            except GridError as error:
                await self._send_error(request, error, receive, send)

    async def _run(self, request: Request, send: Send) -> None:
        with await self._follow_job() as follower:
            request.state.body.release()
            if self.stream:
                await self._stream_pieces(follower, request, send)
            else:
                await follower.wait_for_end()
                await self._send_whole(request, send)

    async def _follow_job(self) -> Follower:
        """Return a follower of the job. Submits the job, unless the request resumes one."""
        relay = self.grid.relay
        if self.options.resume is not None:
            self.job, after = self.options.resume
            return relay.follow(self.job, after)
        job = self.new_job
        follower = relay.follow(job, fresh=True)
        try:
            self.job = await self.grid.submit(
                self.graph,
                self.value,
                self.options.job_options,
                key=self.caller.key,
                job=job,
                follower=follower,
                detached=self.detached,
                client_waits=not self.detached,
            )
        except BaseException:
            follower.close()
            raise
        self.graph = self.value = (
            b""  # stored in the grid by now; freed, because many requests may wait with large bodies
        )
        if self.job == job:
            return follower
        follower.close()
        return relay.follow(self.job)

    async def _send_whole(self, request: Request, send: Send) -> None:
        ended = await self._read_ended()
        body = await OutageRetry(None).call_async(partial(self.grid.read_answer, self.job), ended.end)
        headers = self._job_headers(request)
        headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        headers += make_usage_headers(ended.rows)
        self.head_sent = True
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _read_ended(self) -> EndedJob:
        """Return how the job ended. Retries while the server is away."""
        ended: EndedJob = await OutageRetry(None).call_async(self.grid.read_ended, self.job)
        return ended

    async def _stream_pieces(self, follower: Follower, request: Request, send: Send) -> None:
        """Send each piece as it arrives. Nothing is sent before the first, or before the first comment that
        keeps a silent stream open, so that an earlier error has its own status. The first comment waits for
        what can still fail fast.
        """
        keep_alive_seconds = self.grid.options.keep_alive
        started = time.monotonic()
        while True:
            entry = await follower.next(keep_alive_seconds if self.head_sent else keep_alive_seconds / 2)
            if entry is None:
                if not self.head_sent and await self._may_fail_fast(time.monotonic() - started):
                    continue
                await self._send(await get_snapshot(request.app).make_comment(self.job), request, send)
                continue
            frames = []
            while entry is not None and entry.end is None:
                if entry.dropped:
                    self.dropped = json.loads(entry.dropped)
                frames.append(self._format_piece(entry))
                entry = await follower.next() if follower.has_entries else None
            if entry is None:
                await self._send(b"".join(frames), request, send)
                continue
            if frames:
                await self._send(b"".join(frames), request, send)
            headers = b""
            try:
                ended = await self._read_ended()
                if entry.end is not JobState.DONE:
                    raise ended.end.to_error() or GridError("The job failed")
                made = make_usage_headers(ended.rows)
                headers = b"".join(b": %b: %b\n" % header for header in made)
            except JobNotFound:  # its result has expired, but its stream is complete
                if entry.end is not JobState.DONE:
                    raise
            last = entry.id or follower.position.decode()
            end = sse.format_event(self.api.end, id=str(EventId(self.job, last))) if self.api.end else b""
            await self._send(headers + end, request, send, more=False)
            return

    async def _may_fail_fast(self, silent_seconds: float) -> bool:
        """Return whether the stage may yet fail before its endpoint has begun to work: it waits for a seat,
        or has been running for a moment only. After HEAD_WAITS silences it no longer counts.
        """
        keep_alive_seconds = self.grid.options.keep_alive
        if silent_seconds < keep_alive_seconds:
            return True
        if silent_seconds >= HEAD_WAITS * keep_alive_seconds:
            return False
        with suppress(RedisError):
            running = await self.grid.read_running_seconds(self.job)
            return running is None or running < keep_alive_seconds / 2
        return False

    def _format_piece(self, entry: Entry) -> bytes:
        assert entry.piece is not None
        return sse.format_event(
            entry.piece, id=str(EventId(self.job, entry.id)), event=self.api.event_name(entry.piece)
        )

    async def _send(self, data: bytes, request: Request, send: Send, *, more: bool = True) -> None:
        if not self.head_sent:
            self.head_sent = True
            headers = [*self._job_headers(request), *_make_dropped_header(self.dropped), *sse.HEADERS]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": data, "more_body": more})

    def _job_headers(self, request: Request) -> Headers:
        return [
            (b"x-gridq-job", self.job.encode()),
            (b"x-request-id", errors.get_request_id(request).encode()),
        ]

    async def _send_error(self, request: Request, error: GridError, receive: Receive, send: Send) -> None:
        """Report the error: by the status, or if the stream has begun by its last event."""
        if self.job:
            error.details.setdefault("job", self.job)
        if self.vendor_part and isinstance(error, DemandUnmet):
            error.details.setdefault("param", self.vendor_part)
        if not self.head_sent:
            headers: dict[str, str] = {"x-gridq-job": self.job} if self.job else {}
            await errors.make_error_response(request, error, headers)(request.scope, receive, send)
            return
        errors.log_error(request, error)
        data = sse.encode_json(self._make_error_body(error, errors.get_request_id(request)))
        frame = sse.format_event(data, event=self.api.event_name(data))
        await send({"type": "http.response.body", "body": frame})

    def _make_error_body(self, error: GridError, request_id: str) -> dict[str, Json]:
        return self.api.error_body(error, request_id)

    async def _cancel_job(self) -> None:
        try:
            await self.grid.cancel(self.job)
        except BrokerError:
            self.grid.orphaned_jobs.add(self.job)
        except GridError:  # it has ended
            pass


MAX_DROPPED_FIELDS_BYTES = 2000
"""The longest value of the header `x-gridq-dropped-fields`."""


def _make_dropped_header(places: Sequence[str]) -> Headers:
    """Return the header that names the parts of the request that had no effect, none if all had.

    What a client may have named itself, such as a property of a schema, is percent-encoded.
    """
    text = ", ".join(quote(place, safe="[].-_$~: ", errors="surrogatepass") for place in places)
    if len(text) > MAX_DROPPED_FIELDS_BYTES:
        text = text[:MAX_DROPPED_FIELDS_BYTES].rpartition(", ")[0] + ", ..."
    return [(b"x-gridq-dropped-fields", text.encode())] if text else []


def make_usage_headers(rows: list[HistoryRow]) -> Headers:
    """Return headers about the job's execution. They are known once it has ended, so a whole response has
    them in its head, and a stream in a comment before its end.
    """
    if not rows:
        return []
    headers = [
        (b"x-gridq-worker", rows[-1].worker.encode()),
        (b"x-gridq-queue-wait-ms", b"%.1f" % rows[-1].wait_ms),
        *_make_dropped_header(rows[-1].dropped_fields),
    ]
    cost = sum_cents(rows)
    return headers if cost is None else [*headers, (b"x-gridq-cost-cents", b"%g" % cost)]
