"""The events of a job as a server-sent event stream: pieces of its answers, changes of its stages, its end.

| event | data | has an ID |
|---|---|---|
| `piece` | `{"path", "piece"}` | yes |
| `stage` | `{"path", "stage", "state", "queue", "seat", "attempts", "wait_ms", "run_ms"}` | no |
| `progress` | `{"done", "of"}` | no |
| `end` | `{"job", "state", "status", "spent_cents", "micro_dollars", "error"}` | if the job has a stream |
| `error` | the error in gridq's own format; the last event | no |

An ID is `<job>/<entry>`. Send it back as Last-Event-ID or `?after=` to resume after that event, at any
gateway. Each connection starts with the current state of every stage, so a client misses no change in
between.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response, StreamingResponse

from gridq.errors import BrokerUnreachable, GridError
from gridq.gateway.grid.connection import GridConnection
from gridq.gateway.grid.snapshot import JOB_CACHE_SECONDS, GridSnapshot, get_snapshot
from gridq.gateway.http.errors import format_grid_error, get_request_id
from gridq.gateway.http.schemas import describe_errors, get_noether_status, redact_error, to_cents
from gridq.gateway.routes.jobs import JobId, Reader, find_job
from gridq.gateway.streaming.follower import Follower
from gridq.gateway.streaming.resume import BEGINNING, EventId, find_resume_entry, parse_entry_id
from gridq.gateway.streaming.sse import encode_json, format_event
from gridq.jobs import waiting
from gridq.jobs.waiting import build_not_found_error
from gridq.protocol.money import sum_costs
from gridq.store.connection import translate_errors
from gridq.views.jobs import JobView

router = APIRouter(tags=["jobs"])

MIN_POLL_SECONDS, MAX_POLL_SECONDS = JOB_CACHE_SECONDS, 2.0
"""Bounds of the time between two polls of a job's stages. It doubles while nothing changes."""

RECONNECT_FRAME = b"retry: 1000\n\n"
"""Tells browsers to reconnect after 1000 ms."""

STAGE_FIELDS = ("path", "stage", "state", "queue", "seat", "attempts", "wait_ms", "run_ms")


@router.get(
    "/jobs/{id}/events",
    summary="Follow a job",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "The job's events.",
            "content": {
                "text/event-stream": {
                    "schema": {"type": "string"},
                    "example": 'event: progress\ndata: {"done":0,"of":1}\n\n'
                    'id: 7f1c/1764330000000-0\nevent: piece\ndata: {"path":"root","piece":"Hel"}\n\n'
                    'id: 7f1c/1764330000001-0\nevent: end\ndata: {"job":"7f1c","state":"done"}\n\n',
                }
            },
        },
        204: {"description": "The job has ended and there are no events after the given one."},
        **describe_errors(400, 401, 403, 404, 409, 429, 503),
    },
)
async def follow_job(
    request: Request,
    id: JobId,
    caller: Reader,
    *,
    after: Annotated[
        str | None, Query(description="Resume after this event: its ID, or its entry alone.")
    ] = None,
    last_event_id: Annotated[str | None, Header(description="The same, as browsers send it.")] = None,
    pieces: Annotated[
        bool, Query(description="Refuse a job that was submitted without `stream`: it keeps no pieces.")
    ] = False,
) -> Response:
    """Follow a job's events from the beginning, or after a given event, to its end. If the client
    disconnects, the job goes on.
    """
    grid: GridConnection = request.app.state.grid
    job = await find_job(grid, caller, id)
    if pieces:
        await _check_streamed(grid, job)
    after_entry = find_resume_entry(job, last_event_id or after)
    if after_entry != BEGINNING and await _is_complete(grid, job, after_entry):
        return Response(status_code=204)
    stream = _EventStream(grid, get_snapshot(request.app), job, after_entry, get_request_id(request))
    headers = {"x-gridq-job": job, "cache-control": "no-cache", "x-accel-buffering": "no"}
    return StreamingResponse(stream.frames(), media_type="text/event-stream", headers=headers)


async def _check_streamed(grid: GridConnection, job: str) -> None:
    """Raise NotStreamed if the job does not keep the pieces of its answers."""
    with translate_errors(grid.client.url):
        both = grid.redis.pipeline(transaction=True)
        for command in waiting.build_stream_check(grid.keys, job):
            both.execute_command(*command)
        waiting.check_streamed(job, await both.execute())


async def _is_complete(grid: GridConnection, job: str, after_entry: str) -> bool:
    """Return True if the job has ended and its stream has nothing after `after_entry`."""
    with translate_errors(grid.client.url):
        both = grid.redis.pipeline(transaction=False)
        both.exists(grid.keys("result", job))
        both.xrevrange(grid.keys("stream", job), count=1)
        ended, last = await both.execute()
    return bool(ended) and (not last or parse_entry_id(last[0][0]) <= parse_entry_id(after_entry))


class _EventStream:
    """The events that one client reads."""

    def __init__(
        self, grid: GridConnection, snapshot: GridSnapshot, job: str, after_entry: str, request_id: str
    ) -> None:
        self.grid = grid
        self.snapshot = snapshot
        self.cached_view = snapshot.job(job)
        self.job = job
        self.after_entry = after_entry
        self.request_id = request_id
        self._stages: dict[str, tuple[Any, ...]] = {}
        self._progress = (-1, -1)
        self._pause = MIN_POLL_SECONDS

    async def frames(self) -> AsyncIterator[bytes]:
        """Yield the frames up to the job's end, an error, or the gateway's shutdown."""
        yield RECONNECT_FRAME
        try:
            with self.grid.relay.follow(self.job, self.after_entry) as follower:
                async for part in self._follow(follower):
                    yield part
        except GridError as exc:
            yield format_event(encode_json(format_grid_error(exc, self.request_id)), event=b"error")

    async def _follow(self, follower: Follower) -> AsyncIterator[bytes]:
        look_at = 0.0
        alive_at = time.monotonic() + self.grid.options.keep_alive
        while not self.grid.closing:
            now = time.monotonic()
            if now >= look_at:
                parts = await self._read_changes()
                self._pause = MIN_POLL_SECONDS if parts else min(self._pause * 2, MAX_POLL_SECONDS)
                look_at = time.monotonic() + self._pause
                if parts:
                    alive_at = now + self.grid.options.keep_alive
                    yield b"".join(parts)
            entry = await follower.next(max(min(look_at, alive_at) - time.monotonic(), 0))
            pieces = []
            while entry is not None and entry.piece is not None:  # send together what arrived together
                data = b'{"path":%b,"piece":%b}' % (encode_json(entry.path), entry.piece)
                pieces.append(format_event(data, id=str(EventId(self.job, entry.id)), event=b"piece"))
                entry = await follower.next() if follower.has_entries else None
            if pieces:
                alive_at = time.monotonic() + self.grid.options.keep_alive
                yield b"".join(pieces)
            if entry is not None:
                yield await self._read_end(entry.id)
                return
            if time.monotonic() >= alive_at:
                yield await self.snapshot.make_comment(self.job)
                alive_at = time.monotonic() + self.grid.options.keep_alive

    async def _read_changes(self) -> list[bytes]:
        """Return the changes since the last poll; none while the server is away, which the relay waits for
        too.
        """
        try:
            return self._changes(await self._read_view())
        except BrokerUnreachable:
            return []

    async def _read_end(self, entry: str) -> bytes:
        """Return the last changes and the end event."""
        pauses = iter((0.0, 0.0))  # the cached view, and one being read now, may be from before the end
        while True:
            try:
                view = await self._read_view()
            except BrokerUnreachable:
                if self.grid.closing:
                    raise
            else:
                assert view.state is not None
                if view.state.is_final:
                    return b"".join(self._changes(view)) + self._end(view, entry)
                self.cached_view.invalidate()
            await asyncio.sleep(next(pauses, MIN_POLL_SECONDS))

    async def _read_view(self) -> JobView:
        view = await self.cached_view.get()
        if view.state is None:
            raise build_not_found_error(self.job)
        return view

    def _changes(self, view: JobView) -> list[bytes]:
        """Return what changed since the last poll: the state, seat and attempts of each stage, and the
        progress.
        """
        parts = []
        for stage in view.stages:
            now = (stage.state, stage.seat, stage.attempts)
            if self._stages.get(stage.path) != now:
                self._stages[stage.path] = now
                fields = {name: getattr(stage, name) for name in STAGE_FIELDS}
                parts.append(format_event(encode_json(fields), event=b"stage"))
        if (view.done, view.of) != self._progress:
            self._progress = (view.done, view.of)
            parts.append(format_event(encode_json({"done": view.done, "of": view.of}), event=b"progress"))
        return parts

    def _end(self, view: JobView, entry: str) -> bytes:
        spent = sum_costs(row.micro_dollars for row in view.rows)
        fields = {
            "job": self.job,
            "state": view.state,
            "status": get_noether_status(view),
            "spent_cents": to_cents(spent),
            "micro_dollars": spent,
            "error": redact_error(view),
        }
        event_id = str(EventId(self.job, entry)) if entry else ""
        return format_event(encode_json(fields), id=event_id, event=b"end")
