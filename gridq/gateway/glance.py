"""What all readers of one gateway see of the grid as a whole, looked up at most once a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from gridq import backlog, registry
from gridq.backlog import QueueView
from gridq.registry import LiveSeat

if TYPE_CHECKING:
    from fastapi import FastAPI

    from gridq.gateway.door import Door

T = TypeVar("T")

KEPT = 1.0
"""Seconds for which a look is good: however many ask, the server is asked once."""


class Kept(Generic[T]):
    """What `ask` gives, asked again where it is older than `seconds`; of many who wait one asks."""

    def __init__(self, ask: Callable[[], Awaitable[T]], seconds: float = KEPT) -> None:
        self._ask = ask
        self._seconds = seconds
        self._until = 0.0
        self._asking: asyncio.Future[T] | None = None

    async def get(self) -> T:
        """The value; raises what `ask` raised, to all who waited for it."""
        if self._asking is None or (self._asking.done() and time.monotonic() >= self._until):
            self._until = time.monotonic() + self._seconds
            self._asking = asyncio.ensure_future(self._ask())
            self._asking.add_done_callback(self._done)
        return await asyncio.shield(self._asking)

    def forget(self) -> None:
        """Ask anew the next time."""
        self._until = 0.0

    def _done(self, asked: asyncio.Future[T]) -> None:
        if asked.cancelled() or asked.exception() is not None:  # the next one tries again
            self._until = 0.0


class Glance:
    """The live seats and the queues."""

    def __init__(self, door: Door) -> None:
        client = door.client

        async def seats() -> list[LiveSeat]:
            return await door.call(registry.live_seats, client.redis, client.keys)

        async def queues() -> list[QueueView]:
            return await door.call(backlog.queues, client.redis, client.keys)

        self.door = door
        self.seats = Kept(seats)
        self.queues = Kept(queues)

    def forget(self) -> None:
        """Look anew the next time: something was changed."""
        self.seats.forget()
        self.queues.forget()


def glance_of(app: FastAPI) -> Glance:
    """The glance of the application's door, made with the first request that needs it."""
    found: Glance | None = getattr(app.state, "glance", None)
    if found is None or found.door is not app.state.door:
        found = app.state.glance = Glance(app.state.door)
    return found
