"""Define what every client of a grid can do: `BaseClient`, and `BaseAsyncClient` for asyncio.

`broker_client` implements it over Redis and `gateway_client` over HTTP. Both take the same arguments, return
the same values and raise the same errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Protocol, Self

from gridq.config.settings import Settings
from gridq.errors import ConfigError
from gridq.jobs.waiting import Piece
from gridq.protocol.models import HistoryRow, Json
from gridq.protocol.states import JobState

if TYPE_CHECKING:
    from gridq.seats.registry import LiveSeat
    from gridq.views.jobs import JobSummary, JobView
    from gridq.views.quarantine import Quarantined
    from gridq.views.queues import QueueView


class Reader(Protocol):
    """Reads one job repeatedly."""

    def read(self, *, rows: bool = True) -> JobView:
        """Return the job as it stands now; its state is None if the job does not exist (any more).

        Without `rows`, the view may leave out the history.
        """


class BaseClient:
    """A client of one grid. Threads may share it.

    `url` and `config` are the URL and the settings that it uses.
    """

    url: str
    config: Settings

    def submit(self, graph: Json, input: Json = None, *, job: str | None = None, **options: Json) -> str:
        """Submit a graph with its input and return the job's id.

        `graph` is JSON text or a dict, `input` is any JSON value, and `options` are the fields of JobOptions.
        Submitting the same `job` twice creates one job. So does submitting the same `idempotency_key` twice
        for one agent.

        If it raises, nothing was queued. GraphError: the graph is invalid. NoLiveSeat: no live seat serves
        what the graph needs. QuotaExceeded, AuthError: the job is not allowed to run. IdempotencyConflict:
        the id or the key already belongs to a different graph or input.
        """
        raise NotImplementedError

    def result(self, job: str, timeout: float | None = None) -> Json:
        """Wait up to `timeout` seconds (None: no limit) for a job to end, and return its result.

        Raises the GridError that ended the job, WaitTimeout if the time is up (the job goes on; the error
        says what it waits for), or JobNotFound.
        """
        raise NotImplementedError

    def wait(self, job: str, timeout: float) -> bool:
        """Wait up to `timeout` seconds for a job to end.

        Return False if it has not ended. Raises JobNotFound.
        """
        raise NotImplementedError

    def run(self, graph: Json, input: Json = None, timeout: float | None = None, **options: Json) -> Json:
        """Submit a graph and wait for its result: `submit` and `result` in one call."""
        return self.result(self.submit(graph, input, **options), timeout)

    def stream(self, job: str, timeout: float | None = None) -> Iterator[Piece]:
        """Yield the pieces of a job that was submitted with `stream=True`, as they are produced.

        The iterator ends when the job ends, and raises the job's error if it has one. Raises NotStreamed if
        the job was submitted without `stream=True`, and WaitTimeout if no piece arrives for `timeout`
        seconds.
        """
        raise NotImplementedError

    def cancel(self, job: str) -> bool:
        """Cancel a job, queued or running. Return False if it had already ended. Raises JobNotFound."""
        raise NotImplementedError

    def quarantined(self) -> list[Quarantined]:
        """List the stages in quarantine, of all jobs. Each of them killed its process, twice."""
        raise NotImplementedError

    def release(self, job: str, stage: str | int, by: str = "an operator") -> bool:
        """Run a quarantined stage again, with its count of deaths reset.

        Return False if that was done before.

        `stage` is its path in the graph or the number of its step. `by` names the operator for the records; a
        gateway uses the owner of the API key instead. Raises JobNotFound, or NotQuarantined.
        """
        raise NotImplementedError

    def drop(self, job: str, stage: str | int, by: str = "an operator") -> bool:
        """Give up a quarantined stage: its job fails with StageQuarantined.

        Return False if that was done before.

        The arguments and errors are those of `release`.
        """
        raise NotImplementedError

    def find(self, prefix: str) -> str:
        """Return the full id of the job whose id is `prefix` or begins with it (at least four characters).

        Raises JobNotFound, or AmbiguousJob if several ids begin with it.
        """
        raise NotImplementedError

    def status(self, job: str) -> JobState | None:
        """Return the job's state, or None if there is no such job (any more)."""
        raise NotImplementedError

    def rows(self, job: str) -> list[HistoryRow]:
        """Return one row for each stage recorded so far, oldest first.

        A gateway returns the last thousand.
        """
        raise NotImplementedError

    def view(self, job: str) -> JobView:
        """Return the state of the job and of each of its stages. Raises JobNotFound."""
        raise NotImplementedError

    def reader(self, job: str) -> Reader:
        """Return a reader for polling one job; it costs less than repeated calls of `view`."""
        raise NotImplementedError

    def waits_for(self, job: str) -> str:
        """Return what the job waits for, as words that complete "it waits for …".

        The text is empty if the job has ended or does not exist.
        """
        raise NotImplementedError

    def jobs(self, limit: int = 20, state: JobState | str | None = None) -> list[JobSummary]:
        """List up to `limit` jobs, newest first, optionally only those in `state`.

        Raises ConfigError if there is no such state.
        """
        raise NotImplementedError

    def queues(self) -> list[QueueView]:
        """List each capability's queue: what waits and for how long, what runs, and which seats serve it."""
        raise NotImplementedError

    def seats(self) -> list[LiveSeat]:
        """List every live seat, including the routers': its state, what it runs, and its budgets."""
        raise NotImplementedError

    def workers(self) -> list[LiveSeat]:
        """List every live seat that a machine offers: `seats` without the routers' own."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the connections."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BaseAsyncClient:
    """A client of one grid for asyncio, with the methods of BaseClient as coroutines.

    Methods that wait for a job use no thread. Short calls run on one, by the client `sync`.
    """

    sync: BaseClient

    async def submit(
        self, graph: Json, input: Json = None, *, job: str | None = None, **options: Json
    ) -> str:
        return await asyncio.to_thread(self.sync.submit, graph, input, job=job, **options)

    async def result(self, job: str, timeout: float | None = None) -> Json:
        raise NotImplementedError

    async def wait(self, job: str, timeout: float) -> bool:
        raise NotImplementedError

    async def run(
        self, graph: Json, input: Json = None, timeout: float | None = None, **options: Json
    ) -> Json:
        return await self.result(await self.submit(graph, input, **options), timeout)

    def stream(self, job: str, timeout: float | None = None) -> AsyncIterator[Piece]:
        raise NotImplementedError

    async def cancel(self, job: str) -> bool:
        return await asyncio.to_thread(self.sync.cancel, job)

    async def quarantined(self) -> list[Quarantined]:
        return await asyncio.to_thread(self.sync.quarantined)

    async def release(self, job: str, stage: str | int, by: str = "an operator") -> bool:
        return await asyncio.to_thread(self.sync.release, job, stage, by)

    async def drop(self, job: str, stage: str | int, by: str = "an operator") -> bool:
        return await asyncio.to_thread(self.sync.drop, job, stage, by)

    async def find(self, prefix: str) -> str:
        return await asyncio.to_thread(self.sync.find, prefix)

    async def status(self, job: str) -> JobState | None:
        return await asyncio.to_thread(self.sync.status, job)

    async def rows(self, job: str) -> list[HistoryRow]:
        return await asyncio.to_thread(self.sync.rows, job)

    async def view(self, job: str) -> JobView:
        return await asyncio.to_thread(self.sync.view, job)

    async def waits_for(self, job: str) -> str:
        return await asyncio.to_thread(self.sync.waits_for, job)

    async def jobs(self, limit: int = 20, state: JobState | str | None = None) -> list[JobSummary]:
        return await asyncio.to_thread(self.sync.jobs, limit, state)

    async def queues(self) -> list[QueueView]:
        return await asyncio.to_thread(self.sync.queues)

    async def seats(self) -> list[LiveSeat]:
        return await asyncio.to_thread(self.sync.seats)

    async def workers(self) -> list[LiveSeat]:
        return await asyncio.to_thread(self.sync.workers)

    async def close(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def parse_state(name: JobState | str | None) -> JobState | None:
    """Return the job state of that name, or None for None. Raises ConfigError if there is no such state."""
    if name is not None and name not in list(JobState):
        raise ConfigError(
            f"There is no state {name!r}", {"path": "state", "expected": "one of " + ", ".join(JobState)}
        )
    return None if name is None else JobState(name)
