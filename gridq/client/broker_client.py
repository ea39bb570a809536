"""The client that reaches the grid by its server; no router stands in its way.

`submit` parses and splits in the caller's process and admits by the same script as a router, so a wrong graph
is an error here and at once.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Generator, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import SecretStr
from redis.exceptions import OutOfMemoryError

from gridq.client.base import AsyncClient, Client, Reader, state_called
from gridq.config.settings import Settings, settings
from gridq.errors import JobCancelled, WaitTimeout
from gridq.jobs.record import End, check_id, new_id, options_of
from gridq.jobs.server_outage import Absence
from gridq.jobs.waiting import (
    BLOCK,
    FULL_PAUSE,
    Commands,
    Piece,
    is_wait,
    look,
    not_found,
    pieces,
    the_end,
    too_long,
)
from gridq.protocol.models import Json, Row
from gridq.protocol.states import JobState
from gridq.seats import registry
from gridq.seats.registry import LiveSeat
from gridq.store import values
from gridq.store.connection import check_server, connect, connect_async, connect_to_submit, translated
from gridq.store.scripts import Scripts
from gridq.views import job_ids, job_list, quarantine
from gridq.views import jobs as history
from gridq.views import queues as backlog
from gridq.views.jobs import JobSummary, JobView
from gridq.views.quarantine import Quarantined
from gridq.views.queues import QueueView

if TYPE_CHECKING:
    from gridq.submission.admission import Admission

T = TypeVar("T")


class BrokerClient(Client):
    """A client of the grid on one server. Threads may share it."""

    def __init__(
        self, url: str | None = None, key: str | None = None, *, config: Settings | None = None
    ) -> None:
        self.config = config or settings()
        if key is not None:
            self.config = self.config.model_copy(update={"key": SecretStr(key)})
        self.url = url or self.config.broker_url.get_secret_value()
        self.redis = connect(self.url, name="gridq-client", timeout=BLOCK * 2)  # waits for jobs, patiently
        self.scripts = Scripts(connect_to_submit(self.url, name="gridq-client"), self.config)
        self.keys = self.scripts.keys
        self._admission: Admission | None = None
        self._making = threading.Lock()

    @property
    def admission(self) -> Admission:
        """What splits and admits graphs, imported when the first one is submitted."""
        if self._admission is None:
            from gridq.profiles.profile import load
            from gridq.submission.admission import Admission

            with self._making:
                if self._admission is None:
                    with translated(self.url):
                        check_server(self.scripts.client)
                    self._admission = Admission(self.scripts, self.config, load(self.config.profiles))
        return self._admission

    def submit(self, graph: Json, input: Json = None, *, job: str | None = None, **options: Json) -> str:
        from gridq.jobs import idempotency
        from gridq.limits import api_keys
        from gridq.submission.inbox import graph_text, keep_long

        with translated(self.url):
            about, key = api_keys.identify(self.scripts.client, self.keys, self.config, options_of(options))
        value = values.encode(input, limit=self.config.max_value, what="input", path="input")
        text = graph_text(graph, self.config)
        body = idempotency.body_of(text, value, about, fresh=job is None)
        with translated(self.url):  # what runs already needs no catalogue and no seat
            earlier = idempotency.earlier(self.scripts.client, self.keys, body, verified=bool(key))
        if earlier is not None:
            return earlier
        split = self.admission.split(text)
        job = check_id(job or new_id())
        with translated(self.url):
            value = keep_long(self.scripts, job, value, about)
            return self.admission.admit(job, split, value, about, key=key, body=body)

    def result(self, job: str, timeout: float | None = None) -> Json:
        end = self._follow(the_end(self.keys, job, timeout), timeout)
        if end is None:
            raise self._too_long(job, timeout)
        return self._answer(end)

    def wait(self, job: str, timeout: float) -> bool:
        return self._follow(the_end(self.keys, job, timeout), timeout) is not None

    def stream(self, job: str, timeout: float | None = None) -> Iterator[Piece]:
        steps = pieces(self.keys, job, timeout)
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
                reply = Absence(timeout).ask(self._ask, step)
            else:
                raise self._too_long(job, timeout)

    def cancel(self, job: str) -> bool:
        with translated(self.url):
            word = self.scripts.stop(job, "cancelled", JobCancelled("The job was cancelled").to_json())
        if word == "unknown":
            raise not_found(job)
        return word != "over"

    def quarantined(self) -> list[Quarantined]:
        with translated(self.url):
            return quarantine.listing(self.redis, self.keys)

    def release(self, job: str, stage: str | int, by: str = "an operator") -> bool:
        with translated(self.url):
            return quarantine.act(self.scripts, "release", job, stage, by)

    def drop(self, job: str, stage: str | int, by: str = "an operator") -> bool:
        with translated(self.url):
            return quarantine.act(self.scripts, "drop", job, stage, by)

    def find(self, given: str) -> str:
        with translated(self.url):
            return job_ids.find(self.redis, self.keys, given)

    def status(self, job: str) -> JobState | None:
        end, running, queued = self._ask(look(self.keys, job))
        if end is not None:
            return End.read(end).state
        if running:
            return JobState.RUNNING
        return JobState.QUEUED if queued else None

    def rows(self, job: str) -> list[Row]:
        with translated(self.url):
            return history.rows(self.redis, self.keys, job)

    def view(self, job: str) -> JobView:
        with translated(self.url):
            view = history.JobReader(self.redis, self.keys, job).read()
        if view.state is None:
            raise not_found(job)
        return view

    def reader(self, job: str) -> Reader:
        return _JobReader(self, job)

    def waits_for(self, job: str) -> str:
        with translated(self.url):
            view = history.JobReader(self.redis, self.keys, job).read(rows=False)
            return backlog.waits_for(self.redis, self.keys, view)

    def jobs(self, limit: int = 20, state: JobState | str | None = None) -> list[JobSummary]:
        wanted = state_called(state)
        found: list[JobSummary] = []
        page = job_list.JobPage(found, None)
        with translated(self.url):
            while len(found) < limit:
                left = limit - len(found)
                page = job_list.jobs(self.redis, self.keys, left, wanted, before=page.after)
                found += page.jobs
                if page.after is None:
                    break
        return found

    def queues(self) -> list[QueueView]:
        with translated(self.url):
            return backlog.queues(self.redis, self.keys)

    def seats(self) -> list[LiveSeat]:
        with translated(self.url):
            return registry.live_seats(self.redis, self.keys)

    def workers(self) -> list[LiveSeat]:
        with translated(self.url):
            return registry.live_seats(self.redis, self.keys, routers=False)

    def close(self) -> None:
        self.redis.close()
        self.scripts.client.close()

    def _ask(self, commands: Commands) -> Any:
        """The replies of `commands`, of several at one instant; of one its reply alone."""
        with translated(self.url):
            if len(commands) == 1:
                try:
                    return self.redis.execute_command(*commands[0])  # type: ignore[no-untyped-call]
                except OutOfMemoryError:
                    if not is_wait(commands):
                        raise
                    time.sleep(FULL_PAUSE)
                    return None
            together = self.redis.pipeline(transaction=True)
            for command in commands:
                together.execute_command(*command)  # type: ignore[no-untyped-call]
            return together.execute()

    def _follow(self, steps: Generator[Commands, Any, T], timeout: float | None) -> T:
        """Send what `steps` asks for until it has its result."""
        reply, away = None, Absence(timeout)
        while True:
            try:
                commands = steps.send(reply)
            except StopIteration as stop:
                value: T = stop.value
                return value
            reply = away.ask(self._ask, commands)

    def _answer(self, end: End) -> Json:
        error = end.error()
        if error is not None:
            raise error
        with translated(self.url):
            return values.decode(values.read(self.redis, self.keys, end.payload))

    def _too_long(self, job: str, timeout: float | None) -> WaitTimeout:
        return too_long(job, timeout or 0.0, self.waits_for(job))


class _JobReader(history.JobReader):
    """As history's, with the server's faults told as gridq's."""

    def __init__(self, client: BrokerClient, job: str) -> None:
        super().__init__(client.redis, client.keys, job)
        self._url = client.url

    def read(self, *, rows: bool = True) -> JobView:
        with translated(self._url):
            return super().read(rows=rows)


class AsyncBrokerClient(AsyncClient):
    """The same for asyncio."""

    sync: BrokerClient

    def __init__(
        self, url: str | None = None, key: str | None = None, *, config: Settings | None = None
    ) -> None:
        self.sync = BrokerClient(url, key, config=config)
        self.redis = connect_async(self.sync.url, name="gridq-client", timeout=BLOCK * 2)

    async def result(self, job: str, timeout: float | None = None) -> Json:
        end = await self._follow(the_end(self.sync.keys, job, timeout), timeout)
        if end is None:
            raise await asyncio.to_thread(self.sync._too_long, job, timeout)
        return await asyncio.to_thread(self.sync._answer, end)

    async def wait(self, job: str, timeout: float) -> bool:
        return await self._follow(the_end(self.sync.keys, job, timeout), timeout) is not None

    async def stream(self, job: str, timeout: float | None = None) -> AsyncIterator[Piece]:
        steps = pieces(self.sync.keys, job, timeout)
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
                reply = await Absence(timeout).ask_async(self._ask, step)
            else:
                raise await asyncio.to_thread(self.sync._too_long, job, timeout)

    async def close(self) -> None:
        self.sync.close()
        await self.redis.aclose()

    async def _follow(self, steps: Generator[Commands, Any, T], timeout: float | None) -> T:
        reply, away = None, Absence(timeout)
        while True:
            try:
                commands = steps.send(reply)
            except StopIteration as stop:
                value: T = stop.value
                return value
            reply = await away.ask_async(self._ask, commands)

    async def _ask(self, commands: Commands) -> Any:
        with translated(self.sync.url):
            if len(commands) == 1:
                try:
                    return await self.redis.execute_command(*commands[0])  # type: ignore[no-untyped-call]
                except OutOfMemoryError:
                    if not is_wait(commands):
                        raise
                    await asyncio.sleep(FULL_PAUSE)
                    return None
            together = self.redis.pipeline(transaction=True)
            for command in commands:
                together.execute_command(*command)
            return await together.execute()
