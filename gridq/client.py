"""The plain client: submit, wait, stream, cancel. It needs the broker's URL and nothing else; no router
stands in its way.

`submit` parses and splits in the caller's process and admits by the same script as a router, so a wrong graph
is an error here and at once.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

from gridq import registry
from gridq.admission import Admission
from gridq.errors import JobCancelled, JobNotFound, WaitTimeout
from gridq.inbox import graph_text, keep_long
from gridq.jobs import End, check_id, new_id, options_of
from gridq.profiles import load
from gridq.protocol import Advertisement, Json, Row
from gridq.settings import Settings, settings
from gridq.states import JobState
from gridq.store import values
from gridq.store.connection import check_server, connect, connect_async, translated
from gridq.store.scripts import Scripts

BLOCK = 5.0
"""Seconds for which one blocking command waits: less than the socket's time-out."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a stage's answer: which stage of the graph made it, and what it is."""

    path: str
    value: Json


class Client:
    """A client of one grid. Threads may share it."""

    def __init__(self, url: str | None = None, *, config: Settings | None = None) -> None:
        self.config = config or settings()
        self.url = url or self.config.broker_url.get_secret_value()
        self.redis = connect(self.url, name="gridq-client", timeout=BLOCK * 2)
        self.scripts = Scripts(self.redis, self.config)
        self.keys = self.scripts.keys
        self._admission: Admission | None = None

    @property
    def admission(self) -> Admission:
        if self._admission is None:
            # Asked without patience: a server that is not there is an error now, not after the retries.
            with connect(self.url, name="gridq-check", retry=False) as once, translated(self.url):
                check_server(once)
            self._admission = Admission(self.scripts, self.config, load(self.config.profiles))
        return self._admission

    def submit(self, graph: Json, input: Json = None, *, job: str | None = None, **options: Json) -> str:
        """Admit a graph with its input; the job's id.

        `graph` is JSON text or a dict, `input` any JSON value, `options` those of JobOptions; the same `job`
        again is no second job. GraphError: the graph is wrong. NoLiveSeat: nobody serves what it needs.
        Nothing is queued then.
        """
        about = options_of(options)
        value = values.encode(input, limit=self.config.max_value, what="input", path="input")
        split = self.admission.split(graph_text(graph, self.config))
        job = check_id(job or new_id())
        with translated(self.url):
            self.admission.admit(job, split, keep_long(self.scripts, job, value, about), about)
        return job

    def result(self, job: str, timeout: float | None = None) -> Json:
        """The answer of a job, waited for up to `timeout` seconds (None: for ever).

        Raises the GridError that ended the job; WaitTimeout where the time passed (the job goes on);
        JobNotFound.
        """
        until = None if timeout is None else time.monotonic() + timeout
        with translated(self.url):
            data: Any = self.redis.lindex(self.keys("fin", job), 0)
            while data is None:
                wait = BLOCK if until is None else min(BLOCK, until - time.monotonic())
                if self.status(job) is None:
                    raise _not_found(job)
                if wait <= 0:
                    raise _too_long(job, timeout)
                # Moving a list of one onto itself waits for it to be there and leaves it as it was.
                key = self.keys("fin", job)
                data = self.redis.blmove(key, key, max(wait, 0.01), "LEFT", "LEFT")  # type: ignore[arg-type]
            return self._answer(End.read(data))

    def run(self, graph: Json, input: Json = None, timeout: float | None = None, **options: Json) -> Json:
        """`submit` and `result` in one."""
        return self.result(self.submit(graph, input, **options), timeout)

    def stream(self, job: str, timeout: float | None = None) -> Iterator[Piece]:
        """The pieces of a job submitted with `stream=True`, as they are made; ends with the job, raising its
        error if it has one.

        WaitTimeout: `timeout` seconds passed without a piece.
        """
        at = b"0"
        idle_since = time.monotonic()
        while True:
            with translated(self.url):
                found: Any = self.redis.xread({self.keys("str", job): at}, count=500, block=1000)
            for number, entry in found[0][1] if found else ():
                at = number
                idle_since = time.monotonic()
                if b"end" in entry:
                    self.result(job, 10)
                    return
                yield Piece(entry[b"path"].decode(), json.loads(entry[b"piece"]))
            if not found:
                if self.status(job) in (None, *_FINAL):
                    self.result(job, 0)
                    return
                if timeout is not None and time.monotonic() - idle_since > timeout:
                    raise _too_long(job, timeout)

    def cancel(self, job: str) -> bool:
        """Cancel a job wherever it stands; False where it had ended already. JobNotFound: there is none."""
        with translated(self.url):
            word = self.scripts.stop(job, "cancelled", JobCancelled("The job was cancelled").to_json())
        if word == "unknown":
            raise _not_found(job)
        return word != "over"

    def status(self, job: str) -> JobState | None:
        """The job's state; None where there is no such job (any more)."""
        with translated(self.url):
            # At one instant: between two looks a job may move from one place to the next.
            look = self.redis.pipeline(transaction=True)
            look.lindex(self.keys("fin", job), 0)
            look.exists(self.keys("job", job))
            look.exists(self.keys("sub", job))
            end, running, queued = look.execute()
        if end is not None:
            return End.read(end).state
        if running:
            return JobState.RUNNING
        return JobState.QUEUED if queued else None

    def rows(self, job: str) -> list[Row]:
        """One line for each stage recorded so far, in the order of their records."""
        with translated(self.url):
            texts = self.redis.lrange(self.keys("rows", job), 0, -1)
        return [Row.model_validate(row) for text in texts for row in json.loads(text)]

    def workers(self) -> list[Advertisement]:
        """What every live seat says of itself."""
        with translated(self.url):
            return registry.seats(self.redis, self.keys)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.redis.close()

    def _answer(self, end: End) -> Json:
        error = end.error()
        if error is not None:
            raise error
        return values.decode(values.read(self.redis, self.keys, end.payload))


_FINAL = tuple(state for state in JobState if state.final)


def _not_found(job: str) -> JobNotFound:
    return JobNotFound(
        f"There is no job {job!r}", {"path": job, "reason": "never submitted, or its result has expired"}
    )


def _too_long(job: str, timeout: float | None) -> WaitTimeout:
    return WaitTimeout(
        f"The job {job} was not finished within {timeout} s",
        {"path": job, "fix": "wait longer; the job goes on"},
    )


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
        until = None if timeout is None else time.monotonic() + timeout
        key = self.sync.keys("fin", job)
        with translated(self.sync.url):
            data: Any = await self.redis.lindex(key, 0)
            while data is None:
                wait = BLOCK if until is None else min(BLOCK, until - time.monotonic())
                if await self.status(job) is None:
                    raise _not_found(job)
                if wait <= 0:
                    raise _too_long(job, timeout)
                data = await self.redis.blmove(key, key, max(wait, 0.01), "LEFT", "LEFT")  # type: ignore[arg-type]
        return await asyncio.to_thread(self.sync._answer, End.read(data))

    async def run(
        self, graph: Json, input: Json = None, timeout: float | None = None, **options: Json
    ) -> Json:
        """As Client.run."""
        return await self.result(await self.submit(graph, input, **options), timeout)

    async def stream(self, job: str, timeout: float | None = None) -> AsyncIterator[Piece]:
        """As Client.stream."""
        at = b"0"
        idle_since = time.monotonic()
        while True:
            with translated(self.sync.url):
                found: Any = await self.redis.xread({self.sync.keys("str", job): at}, count=500, block=1000)
            for number, entry in found[0][1] if found else ():
                at = number
                idle_since = time.monotonic()
                if b"end" in entry:
                    await self.result(job, 10)
                    return
                yield Piece(entry[b"path"].decode(), json.loads(entry[b"piece"]))
            if not found:
                if await self.status(job) in (None, *_FINAL):
                    await self.result(job, 0)
                    return
                if timeout is not None and time.monotonic() - idle_since > timeout:
                    raise _too_long(job, timeout)

    async def cancel(self, job: str) -> bool:
        """As Client.cancel."""
        return await asyncio.to_thread(self.sync.cancel, job)

    async def status(self, job: str) -> JobState | None:
        """As Client.status."""
        return await asyncio.to_thread(self.sync.status, job)

    async def rows(self, job: str) -> list[Row]:
        """As Client.rows."""
        return await asyncio.to_thread(self.sync.rows, job)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        self.sync.close()
        await self.redis.aclose()


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
