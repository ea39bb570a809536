"""The plain client: submit, wait, stream, cancel. It needs the broker's URL and nothing else; no router
stands in its way.

`submit` parses and splits in the caller's process and admits by the same script as a router, so a wrong graph
is an error here and at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Generator, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, Self, TypeVar

from redis.exceptions import OutOfMemoryError

from gridq import backlog, history, prefixes, quarantine, registry
from gridq.absence import Absence
from gridq.awaiting import BLOCK, FULL_PAUSE, Commands, Piece, is_wait, look, not_found, pieces, the_end
from gridq.backlog import QueueView
from gridq.errors import ConfigError, JobCancelled, WaitTimeout
from gridq.history import JobSummary, JobView
from gridq.jobs import End, check_id, new_id, options_of
from gridq.protocol import Json, Row
from gridq.quarantine import Quarantined
from gridq.registry import LiveSeat
from gridq.settings import Settings, settings
from gridq.states import JobState
from gridq.store import values
from gridq.store.connection import check_server, connect, connect_async, connect_to_submit, translated
from gridq.store.scripts import Scripts

if TYPE_CHECKING:
    from gridq.admission import Admission

__all__ = ["AsyncClient", "Client", "Piece", "cancel", "default", "result", "stream", "submit"]

T = TypeVar("T")


class Client:
    """A client of one grid. Threads may share it."""

    def __init__(self, url: str | None = None, *, config: Settings | None = None) -> None:
        self.config = config or settings()
        self.url = url or self.config.broker_url.get_secret_value()
        self.redis = connect(self.url, name="gridq-client", timeout=BLOCK * 2)  # waits for jobs, patiently
        self.scripts = Scripts(connect_to_submit(self.url, name="gridq-client"), self.config)
        self.keys = self.scripts.keys
        self._admission: Admission | None = None

    @property
    def admission(self) -> Admission:
        """What splits and admits graphs, imported when the first one is submitted."""
        if self._admission is None:
            from gridq.admission import Admission
            from gridq.profiles import load

            with translated(self.url):
                check_server(self.scripts.client)
            self._admission = Admission(self.scripts, self.config, load(self.config.profiles))
        return self._admission

    def submit(self, graph: Json, input: Json = None, *, job: str | None = None, **options: Json) -> str:
        """Admit a graph with its input; the job's id.

        `graph` is JSON text or a dict, `input` any JSON value, `options` those of JobOptions; the same `job`
        again is no second job, and the same `idempotency_key` of one agent gives the job that has it.
        GraphError: the graph is wrong. NoLiveSeat: nobody serves what it needs. QuotaExceeded, AuthError: it
        may not be run. IdempotencyConflict: the id or the key was used for another body. Nothing is queued
        then.
        """
        from gridq import auth, idempotency
        from gridq.inbox import graph_text, keep_long

        with translated(self.url):
            about, key = auth.identify(self.scripts.client, self.keys, self.config, options_of(options))
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
        """The answer of a job, waited for up to `timeout` seconds (None: for ever).

        Raises the GridError that ended the job; WaitTimeout where the time passed (the job goes on), with
        what it waits for; JobNotFound.
        """
        end = self._follow(the_end(self.keys, job, timeout), timeout)
        if end is None:
            raise self._too_long(job, timeout)
        return self._answer(end)

    def wait(self, job: str, timeout: float) -> bool:
        """Whether the job has ended, or does within `timeout` seconds. JobNotFound."""
        return self._follow(the_end(self.keys, job, timeout), timeout) is not None

    def run(self, graph: Json, input: Json = None, timeout: float | None = None, **options: Json) -> Json:
        """`submit` and `result` in one."""
        return self.result(self.submit(graph, input, **options), timeout)

    def stream(self, job: str, timeout: float | None = None) -> Iterator[Piece]:
        """The pieces of a job submitted with `stream=True`, as they are made; ends with the job, raising its
        error if it has one.

        WaitTimeout: `timeout` seconds passed without a piece.
        """
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
        """Cancel a job wherever it stands; False where it had ended already. JobNotFound: there is none."""
        with translated(self.url):
            word = self.scripts.stop(job, "cancelled", JobCancelled("The job was cancelled").to_json())
        if word == "unknown":
            raise not_found(job)
        return word != "over"

    def quarantined(self) -> list[Quarantined]:
        """The stages in quarantine, of all jobs: each killed the process that ran it, twice."""
        with translated(self.url):
            return quarantine.listing(self.redis, self.keys)

    def release(self, job: str, stage: str | int, by: str = "an operator") -> bool:
        """Have a stage in quarantine run again, as if it had killed nobody yet; False where it was released
        before.

        `stage` is its path in the graph, or the number of its step; `by` is who says so. JobNotFound;
        NotQuarantined: it stands in no quarantine.
        """
        with translated(self.url):
            return quarantine.act(self.scripts, "release", job, stage, by)

    def drop(self, job: str, stage: str | int, by: str = "an operator") -> bool:
        """Give up a stage in quarantine: its job fails with StageQuarantined. False where that is so already.

        The arguments and errors are those of `release`.
        """
        with translated(self.url):
            return quarantine.act(self.scripts, "drop", job, stage, by)

    def find(self, given: str) -> str:
        """The id of the job that is meant by an id or by the beginning of one, four characters at least.

        JobNotFound; AmbiguousJob: several begin so.
        """
        with translated(self.url):
            return prefixes.find(self.redis, self.keys, given)

    def status(self, job: str) -> JobState | None:
        """The job's state; None where there is no such job (any more)."""
        end, running, queued = self._ask(look(self.keys, job))
        if end is not None:
            return End.read(end).state
        if running:
            return JobState.RUNNING
        return JobState.QUEUED if queued else None

    def rows(self, job: str) -> list[Row]:
        """One line for each stage recorded so far, in the order of their records."""
        with translated(self.url):
            return history.rows(self.redis, self.keys, job)

    def view(self, job: str) -> JobView:
        """Where the job and each of its stages stand, or how they went; JobNotFound."""
        with translated(self.url):
            view = history.JobReader(self.redis, self.keys, job).read()
        if view.state is None:
            raise not_found(job)
        return view

    def waits_for(self, job: str) -> str:
        """In words, what the job waits for, to complete "it waits for …"; empty where it has ended or is not
        known.
        """
        with translated(self.url):
            view = history.JobReader(self.redis, self.keys, job).read(rows=False)
            return backlog.waits_for(self.redis, self.keys, view)

    def jobs(self, limit: int = 20, state: JobState | str | None = None) -> list[JobSummary]:
        """The known jobs, the latest first: up to `limit`, of those in `state` where it is given.

        ConfigError: there is no such state.
        """
        if state is not None and state not in list(JobState):
            raise ConfigError(
                f"There is no state {state!r}", {"path": "state", "expected": "one of " + ", ".join(JobState)}
            )
        with translated(self.url):
            return history.jobs(self.redis, self.keys, limit, None if state is None else JobState(state))

    def queues(self) -> list[QueueView]:
        """Each capability's queue: what waits in it and how long, what runs, who serves it."""
        with translated(self.url):
            return backlog.queues(self.redis, self.keys)

    def seats(self) -> list[LiveSeat]:
        """Every live seat, the routers' too: what it says of itself, what it holds, what it may spend."""
        with translated(self.url):
            return registry.live_seats(self.redis, self.keys)

    def workers(self) -> list[LiveSeat]:
        """Every live seat that a machine offers: `seats` without the routers' own."""
        with translated(self.url):
            return registry.live_seats(self.redis, self.keys, routers=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
        details = {"path": job, "job": job, "fix": "wait longer; the job goes on"}
        reason = self.waits_for(job)
        if reason:
            details |= {"reason": f"it waits for {reason}", "waits_for": reason}
        return WaitTimeout(f"The job {job} was not finished within {timeout:g} s", details)


class AsyncClient:
    """The same for asyncio: what waits does so without a thread, what is short runs on one."""

    def __init__(self, url: str | None = None, *, config: Settings | None = None) -> None:
        self.sync = Client(url, config=config)
        self.redis = connect_async(self.sync.url, name="gridq-client", timeout=BLOCK * 2)

    async def submit(
        self, graph: Json, input: Json = None, *, job: str | None = None, **options: Json
    ) -> str:
        """As Client.submit."""
        return await asyncio.to_thread(self.sync.submit, graph, input, job=job, **options)

    async def result(self, job: str, timeout: float | None = None) -> Json:
        """As Client.result."""
        steps = the_end(self.sync.keys, job, timeout)
        reply, away = None, Absence(timeout)
        while True:
            try:
                commands = steps.send(reply)
            except StopIteration as stop:
                if stop.value is None:
                    raise await asyncio.to_thread(self.sync._too_long, job, timeout) from None
                return await asyncio.to_thread(self.sync._answer, stop.value)
            reply = await away.ask_async(self._ask, commands)

    async def run(
        self, graph: Json, input: Json = None, timeout: float | None = None, **options: Json
    ) -> Json:
        """As Client.run."""
        return await self.result(await self.submit(graph, input, **options), timeout)

    async def stream(self, job: str, timeout: float | None = None) -> AsyncIterator[Piece]:
        """As Client.stream."""
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

    async def cancel(self, job: str) -> bool:
        """As Client.cancel."""
        return await asyncio.to_thread(self.sync.cancel, job)

    async def status(self, job: str) -> JobState | None:
        """As Client.status."""
        return await asyncio.to_thread(self.sync.status, job)

    async def rows(self, job: str) -> list[Row]:
        """As Client.rows."""
        return await asyncio.to_thread(self.sync.rows, job)

    async def view(self, job: str) -> JobView:
        """As Client.view."""
        return await asyncio.to_thread(self.sync.view, job)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        self.sync.close()
        await self.redis.aclose()

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


@cache
def default() -> Client:
    """This process's client of the grid that the settings name."""
    return Client()


def submit(graph: Json, input: Json = None, *, job: str | None = None, **options: Json) -> str:
    """`Client.submit` of the default client."""
    return default().submit(graph, input, job=job, **options)


def result(job: str, timeout: float | None = None) -> Json:
    """`Client.result` of the default client."""
    return default().result(job, timeout)


def stream(job: str, timeout: float | None = None) -> Iterator[Piece]:
    """`Client.stream` of the default client."""
    return default().stream(job, timeout)


def cancel(job: str) -> bool:
    """`Client.cancel` of the default client."""
    return default().cancel(job)
