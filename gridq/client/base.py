"""What a client of a grid can do, whichever way it takes: `Client` and, for asyncio, `AsyncClient`.

The URL decides the way: http:// and https:// lead to a gateway (`gridq.client.gateway_client`), all others
to the grid's server (`gridq.client.broker_client`). What is asked, answered and raised is the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, Protocol, Self

from gridq.config.settings import Settings, settings
from gridq.config.urls import is_gateway
from gridq.errors import ConfigError
from gridq.jobs.waiting import Piece
from gridq.protocol.models import Json, Row
from gridq.protocol.states import JobState

if TYPE_CHECKING:
    from gridq.seats.registry import LiveSeat
    from gridq.views.jobs import JobSummary, JobView
    from gridq.views.quarantine import Quarantined
    from gridq.views.queues import QueueView


class Reader(Protocol):
    """Reads one job again and again."""

    def read(self, *, rows: bool = True) -> JobView:
        """The job now; its state is None where there is none (any more). Without `rows` what was recorded may
        be left out.
        """


class Client:
    """A client of one grid. Threads may share it.

    `url` is that of a gateway, `http://host:port` or `https://…`, or of several, separated by commas, that
    stand in for each other; or of the grid's server: `redis://`, `rediss://`, `unix://`, `sentinel://`. None:
    what GRIDQ_URL says, else GRIDQ_BROKER_URL. `key` is the API key; None: GRIDQ_KEY.
    """

    url: str
    config: Settings

    def __new__(
        cls, url: str | None = None, key: str | None = None, *, config: Settings | None = None
    ) -> Self:
        way: Any = _sync_class(url, config) if cls is Client else cls
        made: Self = object.__new__(way)
        return made

    def submit(self, graph: Json, input: Json = None, *, job: str | None = None, **options: Json) -> str:
        """Admit a graph with its input; the job's id.

        `graph` is JSON text or a dict, `input` any JSON value, `options` those of JobOptions; the same `job`
        again is no second job, and the same `idempotency_key` of one agent gives the job that has it.
        GraphError: the graph is wrong. NoLiveSeat: nobody serves what it needs. QuotaExceeded, AuthError: it
        may not be run. IdempotencyConflict: the id or the key was used for another body. Nothing is queued
        then.
        """
        raise NotImplementedError

    def result(self, job: str, timeout: float | None = None) -> Json:
        """The answer of a job, waited for up to `timeout` seconds (None: for ever).

        Raises the GridError that ended the job; WaitTimeout where the time passed (the job goes on), with
        what it waits for; JobNotFound.
        """
        raise NotImplementedError

    def wait(self, job: str, timeout: float) -> bool:
        """Whether the job has ended, or does within `timeout` seconds. JobNotFound."""
        raise NotImplementedError

    def run(self, graph: Json, input: Json = None, timeout: float | None = None, **options: Json) -> Json:
        """`submit` and `result` in one."""
        return self.result(self.submit(graph, input, **options), timeout)

    def stream(self, job: str, timeout: float | None = None) -> Iterator[Piece]:
        """The pieces of a job submitted with `stream=True`, as they are made; ends with the job, raising its
        error if it has one.

        WaitTimeout: `timeout` seconds passed without a piece.
        """
        raise NotImplementedError

    def cancel(self, job: str) -> bool:
        """Cancel a job wherever it stands; False where it had ended already. JobNotFound: there is none."""
        raise NotImplementedError

    def quarantined(self) -> list[Quarantined]:
        """The stages in quarantine, of all jobs: each killed the process that ran it, twice."""
        raise NotImplementedError

    def release(self, job: str, stage: str | int, by: str = "an operator") -> bool:
        """Have a stage in quarantine run again, as if it had killed nobody yet; False where it was released
        before.

        `stage` is its path in the graph, or the number of its step; `by` is who says so (a gateway says
        itself whose key it was). JobNotFound; NotQuarantined: it stands in no quarantine.
        """
        raise NotImplementedError

    def drop(self, job: str, stage: str | int, by: str = "an operator") -> bool:
        """Give up a stage in quarantine: its job fails with StageQuarantined. False where that is so already.

        The arguments and errors are those of `release`.
        """
        raise NotImplementedError

    def find(self, given: str) -> str:
        """The id of the job that is meant by an id or by the beginning of one, four characters at least.

        JobNotFound; AmbiguousJob: several begin so.
        """
        raise NotImplementedError

    def status(self, job: str) -> JobState | None:
        """The job's state; None where there is no such job (any more)."""
        raise NotImplementedError

    def rows(self, job: str) -> list[Row]:
        """One line for each stage recorded so far, in the order of their records. A gateway tells the last
        thousand.
        """
        raise NotImplementedError

    def view(self, job: str) -> JobView:
        """Where the job and each of its stages stand, or how they went; JobNotFound."""
        raise NotImplementedError

    def reader(self, job: str) -> Reader:
        """What reads the job again and again, at less cost than `view`."""
        raise NotImplementedError

    def waits_for(self, job: str) -> str:
        """In words, what the job waits for, to complete "it waits for …"; empty where it has ended or is not
        known.
        """
        raise NotImplementedError

    def jobs(self, limit: int = 20, state: JobState | str | None = None) -> list[JobSummary]:
        """The known jobs, the latest first: up to `limit`, of those in `state` where it is given.

        ConfigError: there is no such state.
        """
        raise NotImplementedError

    def queues(self) -> list[QueueView]:
        """Each capability's queue: what waits in it and how long, what runs, who serves it."""
        raise NotImplementedError

    def seats(self) -> list[LiveSeat]:
        """Every live seat, the routers' too: what it says of itself, what it holds, what it may spend."""
        raise NotImplementedError

    def workers(self) -> list[LiveSeat]:
        """Every live seat that a machine offers: `seats` without the routers' own."""
        raise NotImplementedError

    def close(self) -> None:
        """Give the connections back."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient:
    """The same for asyncio: what waits does so without a thread, what is short runs on one.

    The arguments are those of Client, and each method is as the one of Client that is called so.
    """

    sync: Client

    def __new__(
        cls, url: str | None = None, key: str | None = None, *, config: Settings | None = None
    ) -> Self:
        way: Any = _async_class(url, config) if cls is AsyncClient else cls
        made: Self = object.__new__(way)
        return made

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

    async def find(self, given: str) -> str:
        return await asyncio.to_thread(self.sync.find, given)

    async def status(self, job: str) -> JobState | None:
        return await asyncio.to_thread(self.sync.status, job)

    async def rows(self, job: str) -> list[Row]:
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


def state_called(name: JobState | str | None) -> JobState | None:
    """The state of that name; ConfigError: there is none."""
    if name is not None and name not in list(JobState):
        raise ConfigError(
            f"There is no state {name!r}", {"path": "state", "expected": "one of " + ", ".join(JobState)}
        )
    return None if name is None else JobState(name)


def leads_to_gateway(url: str | None, config: Settings | None) -> bool:
    """Whether a client that is given these reaches the grid by a gateway."""
    given = url or (config or settings()).url
    return given is not None and is_gateway(given)


def _sync_class(url: str | None, config: Settings | None) -> type[Client]:
    if leads_to_gateway(url, config):
        from gridq.client.gateway_client import GatewayClient

        return GatewayClient
    from gridq.client.broker_client import BrokerClient

    return BrokerClient


def _async_class(url: str | None, config: Settings | None) -> type[AsyncClient]:
    if leads_to_gateway(url, config):
        from gridq.client.gateway_client import AsyncGatewayClient

        return AsyncGatewayClient
    from gridq.client.broker_client import AsyncBrokerClient

    return AsyncBrokerClient
