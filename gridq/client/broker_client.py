"""Reach a grid through its Redis server, without a gateway or a router in between.

`submit` compiles the graph in the caller's process and admits the job with the same script as a router, so an
invalid graph raises at once.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Generator, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import SecretStr
from redis.exceptions import OutOfMemoryError

from gridq.client.base import BaseAsyncClient, BaseClient, Reader, parse_state
from gridq.config.settings import Settings, settings
from gridq.errors import JobCancelled, WaitTimeout
from gridq.jobs.record import End, check_job_id, make_job_id, parse_options
from gridq.jobs.server_outage import OutageRetry
from gridq.jobs.waiting import (
    BLOCK_SECONDS,
    FULL_SERVER_PAUSE_SECONDS,
    Commands,
    Piece,
    build_not_found_error,
    build_poll,
    build_timeout_error,
    is_blocking,
    read_pieces,
    wait_for_end,
)
from gridq.protocol.models import HistoryRow, Json
from gridq.protocol.states import JobState
from gridq.seats import registry
from gridq.seats.registry import LiveSeat
from gridq.store import values
from gridq.store.connection import check_server, connect, connect_async, connect_to_submit, translate_errors
from gridq.store.scripts import Scripts
from gridq.views import job_ids, job_list, quarantine, wait_reasons
from gridq.views import jobs as history
from gridq.views import queues as backlog
from gridq.views.jobs import JobSummary, JobView
from gridq.views.quarantine import Quarantined
from gridq.views.queues import QueueView

if TYPE_CHECKING:
    from gridq.submission.admission import Admission

T = TypeVar("T")


class BrokerClient(BaseClient):
    """A client of the grid on one Redis server. Threads may share it."""

    def __init__(
        self, url: str | None = None, key: str | None = None, *, config: Settings | None = None
    ) -> None:
        self.config = config or settings()
        if key is not None:
            self.config = self.config.model_copy(update={"key": SecretStr(key)})
        self.url = url or self.config.get_broker_url()
        # The socket timeout must be longer than a blocking command.
        self.redis = connect(self.url, name="gridq-client", timeout=BLOCK_SECONDS * 2)
        self.scripts = Scripts(connect_to_submit(self.url, name="gridq-client"), self.config)
        self.keys = self.scripts.keys
        self._admission: Admission | None = None
        self._admission_lock = threading.Lock()

    @property
    def admission(self) -> Admission:
        """The admission of jobs, imported when the first graph is submitted."""
        if self._admission is None:
            from gridq.profiles.profile import load_profiles
            from gridq.submission.admission import Admission

            with translate_errors(self.url):  # before the lock: if the server hangs, all threads wait at once
                check_server(self.scripts.client)
            with self._admission_lock:
                if self._admission is None:
                    profiles = load_profiles(self.config.profiles)
                    self._admission = Admission(self.scripts, self.config, profiles)
        return self._admission

    def submit(self, graph: Json, input: Json = None, *, job: str | None = None, **options: Json) -> str:
        """Submit a graph as `Client.submit` says. This process admits the job itself, without a router."""
        from gridq.submission.request import build_request
        from gridq.submission.seat_wait import admit_once_served, limit_wait

        with translate_errors(self.url):
            request = build_request(
                self.scripts,
                self.config,
                parse_options(options),
                job=check_job_id(job or make_job_id()),
                graph=graph,
                value=input,
                is_new_id=job is None,
            )
        admission = self.admission
        with translate_errors(self.url):
            return admit_once_served(
                lambda: admission.admit(request).job,
                self.scripts.client,
                self.keys,
                limit_wait(self.config.admission_wait, request.options),
            )

    def result(self, job: str, timeout: float | None = None) -> Json:
        end = self._run_steps(wait_for_end(self.keys, job, timeout), timeout)
        if end is None:
            raise self._build_timeout(job, timeout)
        return self._read_result(end)

    def wait(self, job: str, timeout: float) -> bool:
        return self._run_steps(wait_for_end(self.keys, job, timeout), timeout) is not None

    def stream(self, job: str, timeout: float | None = None) -> Iterator[Piece]:
        steps = read_pieces(self.keys, job, timeout)
        reply: Any = None
        while True:
            try:
                step = steps.send(reply)
            except StopIteration as stop:
                self.result(job, stop.value)
                return
            if isinstance(step, Piece):
                yield step
                reply = None
            elif step:
                reply = OutageRetry(timeout).call(self._execute, step)
            else:
                raise self._build_timeout(job, timeout)

    def cancel(self, job: str) -> bool:
        with translate_errors(self.url):
            word = self.scripts.stop(job, "cancelled", JobCancelled("The job was cancelled").to_json())
        if word == "unknown":
            raise build_not_found_error(job)
        return word != "over"

    def quarantined(self) -> list[Quarantined]:
        with translate_errors(self.url):
            return quarantine.list_quarantined(self.redis, self.keys)

    def release(self, job: str, stage: str | int, by: str = "an operator") -> bool:
        with translate_errors(self.url):
            return quarantine.release_or_drop(self.scripts, "release", job, stage, by)

    def drop(self, job: str, stage: str | int, by: str = "an operator") -> bool:
        with translate_errors(self.url):
            return quarantine.release_or_drop(self.scripts, "drop", job, stage, by)

    def find(self, prefix: str) -> str:
        with translate_errors(self.url):
            return job_ids.find_job(self.redis, self.keys, prefix)

    def status(self, job: str) -> JobState | None:
        end, running, queued = self._execute(build_poll(self.keys, job))
        if end is not None:
            return End.parse(end).state
        if running:
            return JobState.RUNNING
        return JobState.QUEUED if queued else None

    def rows(self, job: str) -> list[HistoryRow]:
        with translate_errors(self.url):
            return history.read_history(self.redis, self.keys, job)

    def view(self, job: str) -> JobView:
        with translate_errors(self.url):
            view = history.JobReader(self.redis, self.keys, job).read()
        if view.state is None:
            raise build_not_found_error(job)
        return view

    def reader(self, job: str) -> Reader:
        return _JobReader(self, job)

    def waits_for(self, job: str) -> str:
        with translate_errors(self.url):
            view = history.JobReader(self.redis, self.keys, job).read(rows=False)
            return wait_reasons.explain_wait(self.redis, self.keys, view)

    def jobs(self, limit: int = 20, state: JobState | str | None = None) -> list[JobSummary]:
        state_filter = parse_state(state)
        found: list[JobSummary] = []
        page = job_list.JobPage(found, None)
        with translate_errors(self.url):
            while len(found) < limit:
                left = limit - len(found)
                page = job_list.list_jobs(self.redis, self.keys, left, state_filter, before=page.after)
                found += page.jobs
                if page.after is None:
                    break
        return found

    def queues(self) -> list[QueueView]:
        with translate_errors(self.url):
            return backlog.read_queues(self.redis, self.keys)

    def seats(self) -> list[LiveSeat]:
        with translate_errors(self.url):
            return registry.read_live_seats(self.redis, self.keys)

    def workers(self) -> list[LiveSeat]:
        with translate_errors(self.url):
            return registry.read_live_seats(self.redis, self.keys, routers=False)

    def close(self) -> None:
        self.redis.close()
        self.scripts.client.close()

    def _execute(self, commands: Commands) -> Any:
        """Execute one command and return its reply, or several in a transaction and return their replies."""
        with translate_errors(self.url):
            if len(commands) == 1:
                try:
                    return self.redis.execute_command(*commands[0])  # type: ignore[no-untyped-call]
                except OutOfMemoryError:
                    if not is_blocking(commands):
                        raise
                    time.sleep(FULL_SERVER_PAUSE_SECONDS)
                    return None
            pipeline = self.redis.pipeline(transaction=True)
            for command in commands:
                pipeline.execute_command(*command)  # type: ignore[no-untyped-call]
            return pipeline.execute()

    def _run_steps(self, steps: Generator[Commands, Any, T], timeout: float | None) -> T:
        """Send the commands that `steps` yields and return its result."""
        reply, retry = None, OutageRetry(timeout)
        while True:
            try:
                commands = steps.send(reply)
            except StopIteration as stop:
                value: T = stop.value
                return value
            reply = retry.call(self._execute, commands)

    def _read_result(self, end: End) -> Json:
        error = end.to_error()
        if error is not None:
            raise error
        with translate_errors(self.url):
            return values.decode(values.read(self.redis, self.keys, end.payload))

    def _build_timeout(self, job: str, timeout: float | None) -> WaitTimeout:
        return build_timeout_error(job, timeout or 0.0, self.waits_for(job))


class _JobReader(history.JobReader):
    """Reads one job repeatedly; raises BrokerError for errors of the server."""

    def __init__(self, client: BrokerClient, job: str) -> None:
        super().__init__(client.redis, client.keys, job)
        self._url = client.url

    def read(self, *, rows: bool = True) -> JobView:
        with translate_errors(self._url):
            return super().read(rows=rows)


class AsyncBrokerClient(BaseAsyncClient):
    """A client for asyncio of the grid on one Redis server."""

    sync: BrokerClient

    def __init__(
        self, url: str | None = None, key: str | None = None, *, config: Settings | None = None
    ) -> None:
        self.sync = BrokerClient(url, key, config=config)
        self.redis = connect_async(self.sync.url, name="gridq-client", timeout=BLOCK_SECONDS * 2)

    async def result(self, job: str, timeout: float | None = None) -> Json:
        end = await self._run_steps(wait_for_end(self.sync.keys, job, timeout), timeout)
        if end is None:
            raise await asyncio.to_thread(self.sync._build_timeout, job, timeout)
        return await asyncio.to_thread(self.sync._read_result, end)

    async def wait(self, job: str, timeout: float) -> bool:
        return await self._run_steps(wait_for_end(self.sync.keys, job, timeout), timeout) is not None

    async def stream(self, job: str, timeout: float | None = None) -> AsyncIterator[Piece]:
        steps = read_pieces(self.sync.keys, job, timeout)
        reply: Any = None
        while True:
            try:
                step = steps.send(reply)
            except StopIteration as stop:
                await self.result(job, stop.value)
                return
            if isinstance(step, Piece):
                yield step
                reply = None
            elif step:
                reply = await OutageRetry(timeout).call_async(self._execute, step)
            else:
                raise await asyncio.to_thread(self.sync._build_timeout, job, timeout)

    async def close(self) -> None:
        self.sync.close()
        await self.redis.aclose()

    async def _run_steps(self, steps: Generator[Commands, Any, T], timeout: float | None) -> T:
        reply, retry = None, OutageRetry(timeout)
        while True:
            try:
                commands = steps.send(reply)
            except StopIteration as stop:
                value: T = stop.value
                return value
            reply = await retry.call_async(self._execute, commands)

    async def _execute(self, commands: Commands) -> Any:
        with translate_errors(self.sync.url):
            if len(commands) == 1:
                try:
                    return await self.redis.execute_command(*commands[0])  # type: ignore[no-untyped-call]
                except OutOfMemoryError:
                    if not is_blocking(commands):
                        raise
                    await asyncio.sleep(FULL_SERVER_PAUSE_SECONDS)
                    return None
            pipeline = self.redis.pipeline(transaction=True)
            for command in commands:
                pipeline.execute_command(*command)
            return await pipeline.execute()
