"""The client that reaches the grid by a gateway: HTTP and an API key are all it needs."""

from __future__ import annotations

import asyncio
import json as jsons
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Literal, TypeVar

from pydantic import SecretStr

from gridq.client import responses
from gridq.client.base import AsyncClient, Client, Reader, state_called
from gridq.client.event_stream import OVER, Following
from gridq.client.gateway_calls import AsyncGateways, Call, Gateways, bearer
from gridq.client.waiting import Steps, look, place_of, the_end
from gridq.config.settings import Settings, settings
from gridq.errors import BrokerUnreachable, GridError, JobNotFound, KeyLimitReached
from gridq.jobs.record import check_id, new_id, options_of
from gridq.jobs.server_outage import Absence
from gridq.jobs.waiting import Piece, too_long
from gridq.protocol.models import Json, Row
from gridq.protocol.states import JobState
from gridq.seats.registry import LiveSeat
from gridq.store import values
from gridq.submission.inbox import graph_text
from gridq.views.jobs import JobSummary, JobView
from gridq.views.quarantine import Quarantined
from gridq.views.queues import QueueView

HELD = 30.0
"""Seconds for which a gateway may hold a submission until somebody serves what it needs."""

PAGE = 500
"""Jobs of one page of the list at most."""

T = TypeVar("T")


class GatewayClient(Client):
    """A client of the grid behind one or more gateways. Threads may share it.

    Where a gateway does not answer the next one is asked. Who waits for a job bears that all of them are away
    for a while, as with the server itself.
    """

    def __init__(
        self, url: str | None = None, key: str | None = None, *, config: Settings | None = None
    ) -> None:
        self.config = config or settings()
        self.url = url or self.config.url or ""
        self.gateways = Gateways(self.url, self.config.key if key is None else SecretStr(key))

    def submit(self, graph: Json, input: Json = None, *, job: str | None = None, **options: Json) -> str:
        return responses.accepted(self.gateways.ask(submission(self.config, graph, input, job, options)))

    def result(self, job: str, timeout: float | None = None) -> Json:
        return _answer(job, timeout, self._follow(the_end(job, timeout), timeout))

    def wait(self, job: str, timeout: float) -> bool:
        return responses.state(self._follow(the_end(job, timeout), timeout)).final

    def stream(self, job: str, timeout: float | None = None) -> Iterator[Piece]:
        following = Following(job, timeout)
        while not following.ended:
            fault: GridError | None = None
            try:
                with self.gateways.follow(following.call()) as chunks:
                    following.ended = chunks is None
                    for chunk in chunks or ():
                        yield from following.feed(chunk)
                        if following.leaves():
                            break
            except (BrokerUnreachable, KeyLimitReached) as exc:
                fault = exc
            if following.late():
                raise too_long(job, timeout or 0.0, self.waits_for(job))
            time.sleep(following.pause(fault))
        self.result(job, OVER)

    def cancel(self, job: str) -> bool:
        return responses.cancelled(self.gateways.ask(Call("DELETE", place_of(job))))

    def quarantined(self) -> list[Quarantined]:
        return responses.quarantined(self.gateways.ask(Call("GET", "/quarantine")))

    def release(self, job: str, stage: str | int, by: str = "an operator") -> bool:
        return self._act("release", job, stage)

    def drop(self, job: str, stage: str | int, by: str = "an operator") -> bool:
        return self._act("drop", job, stage)

    def find(self, given: str) -> str:
        return responses.job(self.gateways.ask(look(given)))

    def status(self, job: str) -> JobState | None:
        return self._known(job, responses.state, None)

    def rows(self, job: str) -> list[Row]:
        return self._known(job, responses.rows, [])

    def view(self, job: str) -> JobView:
        return responses.view(self.gateways.ask(look(job)))

    def reader(self, job: str) -> Reader:
        return _JobReader(self, job)

    def waits_for(self, job: str) -> str:
        return self._known(job, responses.waits_for, "")

    def jobs(self, limit: int = 20, state: JobState | str | None = None) -> list[JobSummary]:
        wanted = state_called(state)
        found: list[JobSummary] = []
        asked: dict[str, str | int | float] = {} if wanted is None else {"state": str(wanted)}
        while len(found) < limit:
            call = Call("GET", "/jobs", {**asked, "limit": min(limit - len(found), PAGE)})
            some, after = responses.page(self.gateways.ask(call))
            found += some
            if after is None:
                break
            asked["before"] = after
        return found

    def queues(self) -> list[QueueView]:
        return responses.queues(self.gateways.ask(Call("GET", "/queues")))

    def seats(self) -> list[LiveSeat]:
        return responses.seats(self.gateways.ask(Call("GET", "/workers", {"routers": "true"})))

    def workers(self) -> list[LiveSeat]:
        return responses.seats(self.gateways.ask(Call("GET", "/workers")))

    def close(self) -> None:
        self.gateways.close()

    def _known(self, job: str, read: Callable[[Any], T], unknown: T) -> T:
        """What `read` makes of a job, `unknown` where there is none."""
        try:
            return read(self.gateways.ask(look(job)))
        except JobNotFound:
            return unknown

    def _act(self, verb: Literal["release", "drop"], job: str, stage: str | int) -> bool:
        body = jsons.dumps({"job": job, "stage": stage}).encode()
        return responses.acted(self.gateways.ask(Call("POST", f"/quarantine/{verb}", body=body)))

    def _follow(self, steps: Steps[T], timeout: float | None) -> T:
        """Make the calls that `steps` asks for until it has its result."""
        away = Absence(timeout)
        try:
            step = next(steps)
            while True:
                if isinstance(step, float):
                    time.sleep(step)
                    step = next(steps)
                    continue
                try:
                    reply = away.ask(self.gateways.ask, step)
                except KeyLimitReached as exc:
                    step = steps.throw(exc)
                else:
                    step = steps.send(reply)
        except StopIteration as stop:
            value: T = stop.value
            return value


class AsyncGatewayClient(AsyncClient):
    """The same for asyncio."""

    sync: GatewayClient

    def __init__(
        self, url: str | None = None, key: str | None = None, *, config: Settings | None = None
    ) -> None:
        self.sync = GatewayClient(url, key, config=config)
        self.gateways = AsyncGateways(self.sync.gateways)

    async def submit(
        self, graph: Json, input: Json = None, *, job: str | None = None, **options: Json
    ) -> str:
        return responses.accepted(
            await self.gateways.ask(submission(self.sync.config, graph, input, job, options))
        )

    async def result(self, job: str, timeout: float | None = None) -> Json:
        return _answer(job, timeout, await self._follow(the_end(job, timeout), timeout))

    async def wait(self, job: str, timeout: float) -> bool:
        return responses.state(await self._follow(the_end(job, timeout), timeout)).final

    async def stream(self, job: str, timeout: float | None = None) -> AsyncIterator[Piece]:
        following = Following(job, timeout)
        while not following.ended:
            fault: GridError | None = None
            try:
                async with self.gateways.follow(following.call()) as chunks:
                    following.ended = chunks is None
                    if chunks is not None:
                        async for chunk in chunks:
                            for piece in following.feed(chunk):
                                yield piece
                            if following.leaves():
                                break
            except (BrokerUnreachable, KeyLimitReached) as exc:
                fault = exc
            if following.late():
                raise too_long(job, timeout or 0.0, await self.waits_for(job))
            await asyncio.sleep(following.pause(fault))
        await self.result(job, OVER)

    async def close(self) -> None:
        self.sync.close()
        await self.gateways.close()

    async def _follow(self, steps: Steps[T], timeout: float | None) -> T:
        away = Absence(timeout)
        try:
            step = next(steps)
            while True:
                if isinstance(step, float):
                    await asyncio.sleep(step)
                    step = next(steps)
                    continue
                try:
                    reply = await away.ask_async(self.gateways.ask, step)
                except KeyLimitReached as exc:
                    step = steps.throw(exc)
                else:
                    step = steps.send(reply)
        except StopIteration as stop:
            value: T = stop.value
            return value


class _JobReader:
    """Asks for one job again and again."""

    def __init__(self, client: GatewayClient, job: str) -> None:
        self._client = client
        self._job = job

    def read(self, *, rows: bool = True) -> JobView:
        try:
            return self._client.view(self._job)
        except JobNotFound:
            return JobView(self._job, None)


def submission(config: Settings, graph: Json, input: Json, job: str | None, options: dict[str, Json]) -> Call:
    """The call that submits. What can be found wrong here is not sent: GraphError, InputTooLarge,
    ValueNotJson, ConfigError.

    A job without an id or an idempotency key of its submitter's gets an id here, so that the call may be sent
    again and is no second job.
    """
    about = options_of(options)
    value = values.encode(input, limit=config.max_value, what="input", path="input")
    text = graph_text(graph, config).decode("utf-8", "surrogatepass")
    said = about.model_dump(mode="json", exclude={"stream"}, exclude_defaults=True)
    if about.stream is True:
        said["stream"] = True
    if about.idempotency_key is not None:
        said["idempotency_key"] = about.idempotency_key
    elif job is None:
        job = new_id()
    if job is not None:
        said["job"] = check_id(job)
    # The graph goes as text, which may be nested more deeply than a gateway lets a body be.
    head = jsons.dumps({**said, "graph": text}, separators=(",", ":")).encode()
    return Call(
        "POST",
        "/jobs",
        body=head[:-1] + b',"input":' + value + b"}",
        headers=bearer(about.key),
        wait=HELD,
        way="submission",
    )


def _answer(job: str, timeout: float | None, status: dict[str, Json]) -> Json:
    """The answer of a job by its status; raises its error, or WaitTimeout where it has not ended."""
    if not responses.state(status).final:
        raise too_long(job, timeout or 0.0, responses.waits_for(status))
    return responses.outcome(status)
