"""Closing the gateway ends its background tasks, even if cancellations are swallowed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gridq.gateway.grid.admission_wait import AdmissionWait
from gridq.gateway.grid.orphaned_jobs import OrphanedJobs
from gridq.gateway.streaming.cancellation import cancel
from gridq.gateway.streaming.pipe import Pipe
from gridq.gateway.streaming.relay import Relay
from gridq.store.keys import Keys

SWALLOWED = 3
"""Cancels that are lost before one is heard."""


class Deaf:
    """A connection, pool and pipeline that swallows SWALLOWED cancellations of each call."""

    def __init__(self) -> None:
        self.left = SWALLOWED
        self.waiting = asyncio.Event()

    async def wait(self, *_: Any, **__: Any) -> Any:
        self.waiting.set()
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.left -= 1
                if self.left < 0:
                    raise

    def pipeline(self, **_: Any) -> Any:
        return self

    @property
    def connection_pool(self) -> Any:
        return self

    def hkeys(self, *_: Any, **__: Any) -> None: ...

    zrange = zrevrange = time = hkeys
    execute = get_connection = wait

    async def aclose(self) -> None: ...


def admission_wait(client: Any) -> Callable[[], Awaitable[None]]:
    made = AdmissionWait(client, Keys("t:"), 1.0)
    made.start()
    return made.close


def pipe(client: Any) -> Callable[[], Awaitable[None]]:
    made = Pipe(client)
    made.send(("PING",)).future.add_done_callback(lambda future: future.exception())
    return made.close


def relay(client: Any) -> Callable[[], Awaitable[None]]:
    made = Relay(client, Keys("t:"), Pipe(client))
    made.start()
    return made.close


def orphaned_jobs(client: Any) -> Callable[[], Awaitable[None]]:
    made = OrphanedJobs(client.wait)
    made.add("a")

    async def close() -> None:
        closing = asyncio.ensure_future(made.close())
        while client.left >= 0:
            await asyncio.sleep(0)
        closing.cancel()  # it tries once more, and this server never answers
        await asyncio.wait([closing])

    return close


@pytest.mark.parametrize("made", [admission_wait, pipe, relay, orphaned_jobs])
def test_close_ends_tasks_that_swallow_cancellations(
    made: Callable[[Any], Callable[[], Awaitable[None]]],
) -> None:
    async def main() -> None:
        client = Deaf()
        close = made(client)
        await client.waiting.wait()
        await close()
        assert client.left < 0

    asyncio.run(asyncio.wait_for(main(), 10))


def test_an_ended_task_is_not_cancelled() -> None:
    async def main() -> None:
        async def fail() -> None:
            raise ValueError

        tasks = [asyncio.ensure_future(asyncio.sleep(0)), asyncio.ensure_future(fail())]
        await asyncio.wait(tasks)
        await cancel(*tasks)
        assert not any(task.cancelled() for task in tasks)
        assert isinstance(tasks[1].exception(), ValueError)

    asyncio.run(main())
