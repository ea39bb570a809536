"""A job's events as an SSE stream: the pieces of its answers, how its stages fare, its end.

| event | data | has an id |
|---|---|---|
| `piece` | `{"path", "piece"}` | yes |
| `stage` | `{"path", "stage", "state", "queue", "seat", "attempts", "wait_ms", "run_ms"}` | no |
| `progress` | `{"done", "of"}` | no |
| `end` | `{"job", "state", "status", "spent_cents", "micro_dollars", "error"}` | where the job has a stream |
| `error` | the error, in the grid's shape; the stream ends with it | no |

An id is `<job>/<entry>`: sent back as Last-Event-ID, or as `?after=`, it goes on behind that piece at any
gateway. Each connection begins with where every stage stands, so nothing of that is missed in between.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response, StreamingResponse

from gridq.errors import BrokerUnreachable, GridError, RequestError
from gridq.gateway.grid.connection import Door
from gridq.gateway.grid.snapshot import WATCHED, Kept, glance_of
from gridq.gateway.http.errors import grid_error, request_id_of
from gridq.gateway.http.schemas import cents, error_of, faults, status_of
from gridq.gateway.routes.jobs import Id, Reader, find
from gridq.gateway.streaming.follower import Follower, order
from gridq.gateway.streaming.sse import KEEP_ALIVE, frame
from gridq.jobs.waiting import build_not_found_error
from gridq.protocol.models import Json
from gridq.protocol.money import total
from gridq.store.connection import translated
from gridq.views.jobs import JobView

router = APIRouter(tags=["jobs"])

SOONEST, LATEST = WATCHED, 2.0
"""Seconds between two looks at a job's stages: doubled as long as nothing changes."""

RECONNECT = b"retry: 1000\n\n"
"""How soon a browser asks again, in ms."""

_ENTRY = re.compile(r"[0-9]{1,18}(-[0-9]{1,18})?")

SHOWN = ("path", "stage", "state", "queue", "seat", "attempts", "wait_ms", "run_ms")


@router.get(
    "/jobs/{id}/events",
    summary="Follow a job",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "the events",
            "content": {
                "text/event-stream": {
                    "schema": {"type": "string"},
                    "example": 'event: progress\ndata: {"done":0,"of":1}\n\n'
                    'id: 7f1c/1764330000000-0\nevent: piece\ndata: {"path":"root","piece":"Hel"}\n\n'
                    'id: 7f1c/1764330000001-0\nevent: end\ndata: {"job":"7f1c","state":"done"}\n\n',
                }
            },
        },
        204: {"description": "the job has ended, and nothing stands behind the given event"},
        **faults(400, 401, 403, 404, 429, 503),
    },
)
async def events(
    request: Request,
    id: Id,
    caller: Reader,
    *,
    after: Annotated[
        str | None, Query(description="the id of the last event that was seen, or its entry alone")
    ] = None,
    last_event_id: Annotated[str | None, Header(description="the same, as browsers say it")] = None,
) -> Response:
    """The events of a job from its beginning, or behind one of them, to its end. Watching keeps nothing alive
    and ends nothing: the job goes on where its watcher goes away.
    """
    door: Door = request.app.state.door
    job = await find(door, caller, id)
    place = entry_of(job, last_event_id or after)
    if place != "0" and await _told(door, job, place):
        return Response(status_code=204)
    story = _Story(door, glance_of(request.app).job(job), job, place, request_id_of(request))
    headers = {"x-gridq-job": job, "cache-control": "no-cache", "x-accel-buffering": "no"}
    return StreamingResponse(story.told(), media_type="text/event-stream", headers=headers)


def entry_of(job: str, event: str | None) -> str:
    """The entry of the job's stream that an event's id names: `<job>/<entry>`, or the entry alone; `0` where
    none is given. RequestError: it is none, or of another job.
    """
    if not event:
        return "0"
    named, _, entry = event.rpartition("/")
    if (named and named != job) or not _ENTRY.fullmatch(entry):
        raise RequestError(
            "The event's id is none of this job's",
            {"path": "after", "expected": f"{job}/<entry>, as an event's `id:` says", "fix": "leave it out"},
        )
    return entry


async def _told(door: Door, job: str, place: str) -> bool:
    """Whether the job has ended and its stream holds nothing behind `place`."""
    with translated(door.client.url):
        both = door.redis.pipeline(transaction=False)
        both.exists(door.keys("result", job))
        both.xrevrange(door.keys("stream", job), count=1)
        ended, last = await both.execute()
    return bool(ended) and (not last or order(last[0][0]) <= order(place))


class _Story:
    """One reader's connection."""

    def __init__(self, door: Door, look: Kept[JobView], job: str, place: str, request_id: str) -> None:
        self.door = door
        self.look = look
        self.job = job
        self.place = place
        self.request_id = request_id
        self._stages: dict[str, tuple[Any, ...]] = {}
        self._progress = (-1, -1)
        self._pause = SOONEST

    async def told(self) -> AsyncIterator[bytes]:
        """The frames, up to the job's end, a fault, or the end of the gateway."""
        yield RECONNECT
        try:
            with self.door.relay.follow(self.job, self.place) as follower:
                async for part in self._follow(follower):
                    yield part
        except GridError as exc:
            yield frame(_text(grid_error(exc, self.request_id)), event=b"error")

    async def _follow(self, follower: Follower) -> AsyncIterator[bytes]:
        look_at = 0.0
        alive_at = time.monotonic() + self.door.options.keep_alive
        while not self.door.closing:
            now = time.monotonic()
            if now >= look_at:
                parts = await self._news()
                self._pause = SOONEST if parts else min(self._pause * 2, LATEST)
                look_at = time.monotonic() + self._pause
                if parts:
                    alive_at = now + self.door.options.keep_alive
                    yield b"".join(parts)
            entry = await follower.next(max(min(look_at, alive_at) - time.monotonic(), 0))
            pieces = []
            while entry is not None and entry.piece is not None:  # what came together goes out together
                data = b'{"path":%b,"piece":%b}' % (_text(entry.path), entry.piece)
                pieces.append(frame(data, id=f"{self.job}/{entry.id}", event=b"piece"))
                entry = await follower.next() if follower.ready else None
            if pieces:
                alive_at = time.monotonic() + self.door.options.keep_alive
                yield b"".join(pieces)
            if entry is not None:
                yield await self._last(entry.id)
                return
            if time.monotonic() >= alive_at:
                yield KEEP_ALIVE
                alive_at = time.monotonic() + self.door.options.keep_alive

    async def _news(self) -> list[bytes]:
        """What has changed; nothing while the server is away: the relay waits for it too."""
        try:
            return self._changes(await self._look())
        except BrokerUnreachable:
            return []

    async def _last(self, entry: str) -> bytes:
        """The last changes, and the end."""
        pauses = iter((0.0, 0.0))  # what is known, and a look that is under way, may be from before the end
        while True:
            try:
                view = await self._look()
            except BrokerUnreachable:
                if self.door.closing:
                    raise
            else:
                assert view.state is not None
                if view.state.final:
                    return b"".join(self._changes(view)) + self._end(view, entry)
                self.look.forget()
            await asyncio.sleep(next(pauses, SOONEST))

    async def _look(self) -> JobView:
        view = await self.look.get()
        if view.state is None:
            raise build_not_found_error(self.job)
        return view

    def _changes(self, view: JobView) -> list[bytes]:
        """What has changed since the look before: of each stage its state, its seat, its tries."""
        parts = []
        for stage in view.stages:
            now = (stage.state, stage.seat, stage.attempts)
            if self._stages.get(stage.path) != now:
                self._stages[stage.path] = now
                about = {name: getattr(stage, name) for name in SHOWN}
                parts.append(frame(_text(about), event=b"stage"))
        if (view.done, view.of) != self._progress:
            self._progress = (view.done, view.of)
            parts.append(frame(_text({"done": view.done, "of": view.of}), event=b"progress"))
        return parts

    def _end(self, view: JobView, entry: str) -> bytes:
        spent = total(row.micro_dollars for row in view.rows)
        about = {
            "job": self.job,
            "state": view.state,
            "status": status_of(view),
            "spent_cents": cents(spent),
            "micro_dollars": spent,
            "error": error_of(view),
        }
        return frame(_text(about), id=f"{self.job}/{entry}" if entry else "", event=b"end")


def _text(value: Json) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
