"""What all readers of one gateway see of the grid as a whole, looked up at most once a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakValueDictionary

from redis import Redis

from gridq.gateway.grid import models
from gridq.limits import api_keys
from gridq.protocol.models import Json
from gridq.seats import registry
from gridq.seats.registry import LiveSeat
from gridq.store.connection import now_ms
from gridq.store.keys import Keys
from gridq.views import queues
from gridq.views.jobs import JobReader, JobView
from gridq.views.queues import QueueView

if TYPE_CHECKING:
    from fastapi import FastAPI

    from gridq.gateway.grid.connection import Door

T = TypeVar("T")

KEPT = 1.0
"""Seconds for which a look is good: however many ask, the server is asked once."""

WATCHED = 0.25
"""The same of a job that is watched."""


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
    """The live seats and the queues, the models that are offered, the origins of the keys, and the jobs that
    are watched.
    """

    def __init__(self, door: Door) -> None:
        self.door = door
        self.seats: Kept[list[LiveSeat]] = self._kept(registry.live_seats)
        self.queues: Kept[list[QueueView]] = self._kept(queues.queues)
        self.models: Kept[dict[str, dict[str, Json]]] = self._kept(models.models)
        self.origins: Kept[frozenset[str]] = self._kept(_key_origins)
        self._jobs: WeakValueDictionary[str, Kept[JobView]] = WeakValueDictionary()

    def job(self, job: str) -> Kept[JobView]:
        """Where a job stands, looked up at most once in WATCHED seconds for all who hold this."""
        kept = self._jobs.get(job)
        if kept is None:
            reader = JobReader(self.door.client.redis, self.door.keys, job)
            kept = self._jobs[job] = Kept(partial(self.door.call, reader.read), WATCHED)
        return kept

    def _kept(self, look: Callable[[Redis, Keys], T]) -> Kept[T]:
        async def ask() -> T:
            return await self.door.call(look, self.door.client.redis, self.door.keys)

        return Kept(ask)

    def forget(self) -> None:
        """Look anew the next time: something was changed."""
        self.seats.forget()
        self.queues.forget()


def glance_of(app: FastAPI) -> Glance:
    """The glance of the application's door."""
    found: Glance = app.state.glance
    return found


def _key_origins(client: Redis, keys: Keys) -> frozenset[str]:
    """The origins of all keys that stand."""
    now = now_ms(client)
    standing = [key for key in api_keys.listing(client, keys) if key.stands(now)]
    return frozenset(origin for key in standing for origin in key.limits.origins)
