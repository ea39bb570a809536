"""Reach a grid through a gateway. HTTP and an API key are all that this client needs."""

from __future__ import annotations

import asyncio
import json as jsons
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Literal, TypeVar

from pydantic import SecretStr

from gridq.client import responses
from gridq.client.base import BaseAsyncClient, BaseClient, Reader, parse_state
from gridq.client.event_stream import END_WAIT_SECONDS, EventStream
from gridq.client.gateway_calls import AsyncGateways, Call, Gateways, build_auth_header
from gridq.client.long_polling import Steps, build_job_call, build_job_path, poll_until_end
from gridq.config.settings import Settings, settings
from gridq.errors import BrokerUnreachable, GridError, JobNotFound, KeyLimitReached
from gridq.jobs.record import check_job_id, make_job_id, parse_options
from gridq.jobs.server_outage import OutageRetry
from gridq.jobs.waiting import Piece, build_timeout_error
from gridq.protocol.models import HistoryRow, Json
from gridq.protocol.states import JobState
from gridq.seats.registry import LiveSeat
from gridq.store import values
from gridq.submission.request import encode_graph
from gridq.views.jobs import JobSummary, JobView
from gridq.views.quarantine import Quarantined
from gridq.views.queues import QueueView

ADMISSION_WAIT_SECONDS = 30.0
"""The longest time that a gateway may hold a submission until a seat serves what it needs."""

MAX_JOBS_PER_PAGE = 500

T = TypeVar("T")


class GatewayClient(BaseClient):
    """A client of the grid behind one or more gateways. Threads may share it.

    If one gateway does not answer, the next is tried. Methods that wait for a job also survive a while
    without any gateway, as they do without the Redis server.
    """

    def __init__(
        self, url: str | None = None, key: str | None = None, *, config: Settings | None = None
    ) -> None:
        self.config = config or settings()
        self.url = url or self.config.url or ""
        self.gateways = Gateways(self.url, self.config.key if key is None else SecretStr(key))

    def submit(self, graph: Json, input: Json = None, *, job: str | None = None, **options: Json) -> str:
        return responses.read_job_id(
            self.gateways.send(build_submission(self.config, graph, input, job, options))
        )

    def result(self, job: str, timeout: float | None = None) -> Json:
        return _read_result(job, timeout, self._run_steps(poll_until_end(job, timeout), timeout))

    def wait(self, job: str, timeout: float) -> bool:
        return responses.read_state(self._run_steps(poll_until_end(job, timeout), timeout)).is_final

    def stream(self, job: str, timeout: float | None = None) -> Iterator[Piece]:
        events = EventStream(job, timeout)
        while not events.ended:
            error: GridError | None = None
            try:
                with self.gateways.stream(events.build_call()) as chunks:
                    events.ended = chunks is None
                    for chunk in chunks or ():
                        yield from events.feed(chunk)
                        if events.should_disconnect():
                            break
            except (BrokerUnreachable, KeyLimitReached) as exc:
                error = exc
            if events.has_timed_out():
                raise build_timeout_error(job, timeout or 0.0, self.waits_for(job))
            time.sleep(events.get_pause(error))
        self.result(job, END_WAIT_SECONDS)

    def cancel(self, job: str) -> bool:
        return responses.read_cancelled(self.gateways.send(Call("DELETE", build_job_path(job))))

    def quarantined(self) -> list[Quarantined]:
        return responses.read_quarantined(self.gateways.send(Call("GET", "/quarantine")))

    def release(self, job: str, stage: str | int, by: str = "an operator") -> bool:
        return self._post_quarantine("release", job, stage)

    def drop(self, job: str, stage: str | int, by: str = "an operator") -> bool:
        return self._post_quarantine("drop", job, stage)

    def find(self, prefix: str) -> str:
        return responses.read_job_id(self.gateways.send(build_job_call(prefix)))

    def status(self, job: str) -> JobState | None:
        return self._read_if_found(job, responses.read_state, None)

    def rows(self, job: str) -> list[HistoryRow]:
        return self._read_if_found(job, responses.parse_rows, [])

    def view(self, job: str) -> JobView:
        return responses.read_view(self.gateways.send(build_job_call(job)))

    def reader(self, job: str) -> Reader:
        return _JobReader(self, job)

    def waits_for(self, job: str) -> str:
        return self._read_if_found(job, responses.read_waits_for, "")

    def jobs(self, limit: int = 20, state: JobState | str | None = None) -> list[JobSummary]:
        state_filter = parse_state(state)
        found: list[JobSummary] = []
        params: dict[str, str | int | float] = {} if state_filter is None else {"state": str(state_filter)}
        while len(found) < limit:
            call = Call("GET", "/jobs", {**params, "limit": min(limit - len(found), MAX_JOBS_PER_PAGE)})
            page, cursor = responses.read_job_page(self.gateways.send(call))
            found += page
            if cursor is None:
                break
            params["before"] = cursor
        return found

    def queues(self) -> list[QueueView]:
        return responses.read_queues(self.gateways.send(Call("GET", "/queues")))

    def seats(self) -> list[LiveSeat]:
        return responses.read_seats(self.gateways.send(Call("GET", "/workers", {"routers": "true"})))

    def workers(self) -> list[LiveSeat]:
        return responses.read_seats(self.gateways.send(Call("GET", "/workers")))

    def close(self) -> None:
        self.gateways.close()

    def _read_if_found(self, job: str, read: Callable[[Any], T], default: T) -> T:
        """Return what `read` makes of the job's status, or `default` if there is no such job."""
        try:
            return read(self.gateways.send(build_job_call(job)))
        except JobNotFound:
            return default

    def _post_quarantine(self, action: Literal["release", "drop"], job: str, stage: str | int) -> bool:
        body = jsons.dumps({"job": job, "stage": stage}).encode()
        return responses.read_changed(self.gateways.send(Call("POST", f"/quarantine/{action}", body=body)))

    def _run_steps(self, steps: Steps[T], timeout: float | None) -> T:
        """Make the calls that `steps` yields and return its result."""
        retry = OutageRetry(timeout)
        try:
            step = next(steps)
            while True:
                if isinstance(step, float):
                    time.sleep(step)
                    step = next(steps)
                    continue
                try:
                    reply = retry.call(self.gateways.send, step)
                except KeyLimitReached as exc:
                    step = steps.throw(exc)
                else:
                    step = steps.send(reply)
        except StopIteration as stop:
            value: T = stop.value
            return value


class AsyncGatewayClient(BaseAsyncClient):
    """A client for asyncio of the grid behind one or more gateways."""

    sync: GatewayClient

    def __init__(
        self, url: str | None = None, key: str | None = None, *, config: Settings | None = None
    ) -> None:
        self.sync = GatewayClient(url, key, config=config)
        self.gateways = AsyncGateways(self.sync.gateways)

    async def submit(
        self, graph: Json, input: Json = None, *, job: str | None = None, **options: Json
    ) -> str:
        return responses.read_job_id(
            await self.gateways.send(build_submission(self.sync.config, graph, input, job, options))
        )

    async def result(self, job: str, timeout: float | None = None) -> Json:
        return _read_result(job, timeout, await self._run_steps(poll_until_end(job, timeout), timeout))

    async def wait(self, job: str, timeout: float) -> bool:
        return responses.read_state(await self._run_steps(poll_until_end(job, timeout), timeout)).is_final

    async def stream(self, job: str, timeout: float | None = None) -> AsyncIterator[Piece]:
        events = EventStream(job, timeout)
        while not events.ended:
            error: GridError | None = None
            try:
                async with self.gateways.stream(events.build_call()) as chunks:
                    events.ended = chunks is None
                    if chunks is not None:
                        async for chunk in chunks:
                            for piece in events.feed(chunk):
                                yield piece
                            if events.should_disconnect():
                                break
            except (BrokerUnreachable, KeyLimitReached) as exc:
                error = exc
            if events.has_timed_out():
                raise build_timeout_error(job, timeout or 0.0, await self.waits_for(job))
            await asyncio.sleep(events.get_pause(error))
        await self.result(job, END_WAIT_SECONDS)

    async def close(self) -> None:
        self.sync.close()
        await self.gateways.close()

    async def _run_steps(self, steps: Steps[T], timeout: float | None) -> T:
        retry = OutageRetry(timeout)
        try:
            step = next(steps)
            while True:
                if isinstance(step, float):
                    await asyncio.sleep(step)
                    step = next(steps)
                    continue
                try:
                    reply = await retry.call_async(self.gateways.send, step)
                except KeyLimitReached as exc:
                    step = steps.throw(exc)
                else:
                    step = steps.send(reply)
        except StopIteration as stop:
            value: T = stop.value
            return value


class _JobReader:
    """Reads one job repeatedly through a gateway."""

    def __init__(self, client: GatewayClient, job: str) -> None:
        self._client = client
        self._job = job

    def read(self, *, rows: bool = True) -> JobView:
        try:
            return self._client.view(self._job)
        except JobNotFound:
            return JobView(self._job, None)


def build_submission(
    config: Settings, graph: Json, input: Json, job: str | None, options: dict[str, Json]
) -> Call:
    """Return the call that submits a job.

    If the caller gives neither an id nor an idempotency key, the job gets an id here, so that sending the
    call twice creates one job. Raises GraphError, InputTooLarge, ValueNotJson or ConfigError for mistakes
    that can be found without a gateway.
    """
    job_options = parse_options(options)
    value = values.encode(input, limit=config.max_value, what="input", path="input")
    text = encode_graph(graph, config).decode("utf-8", "surrogatepass")
    fields = job_options.model_dump(mode="json", exclude={"stream"}, exclude_defaults=True)
    if job_options.stream is True:
        fields["stream"] = True
    if job_options.idempotency_key is not None:
        fields["idempotency_key"] = job_options.idempotency_key
    elif job is None:
        job = make_job_id()
    if job is not None:
        fields["job"] = check_job_id(job)
    # Send the graph as text: it may be nested more deeply than a gateway allows for a body.
    head = jsons.dumps({**fields, "graph": text}, separators=(",", ":")).encode()
    return Call(
        "POST",
        "/jobs",
        body=head[:-1] + b',"input":' + value + b"}",
        headers=build_auth_header(job_options.key),
        wait=ADMISSION_WAIT_SECONDS,
        kind="submission",
    )


def _read_result(job: str, timeout: float | None, status: dict[str, Json]) -> Json:
    """Return a job's result from its status, or raise its error, or WaitTimeout if it has not ended."""
    if not responses.read_state(status).is_final:
        raise build_timeout_error(job, timeout or 0.0, responses.read_waits_for(status))
    return responses.read_result(status)
