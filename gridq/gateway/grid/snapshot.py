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

    from gridq.gateway.grid.connection import GridConnection

T = TypeVar("T")

CACHE_SECONDS = 1.0
"""Seconds for which a look is good: however many ask, the server is asked once."""

JOB_CACHE_SECONDS = 0.25
"""The same of a job that is watched."""


class Cached(Generic[T]):
    """What `ask` gives, asked again where it is older than `seconds`; of many who wait one asks."""

    def __init__(self, read: Callable[[], Awaitable[T]], seconds: float = CACHE_SECONDS) -> None:
        self._read = read
        self._seconds = seconds
        self._until = 0.0
        self._reading: asyncio.Future[T] | None = None

    async def get(self) -> T:
        """The value; raises what `ask` raised, to all who waited for it."""
        if self._reading is None or (self._reading.done() and time.monotonic() >= self._until):
            self._until = time.monotonic() + self._seconds
            self._reading = asyncio.ensure_future(self._read())
            self._reading.add_done_callback(self._done)
        return await asyncio.shield(self._reading)

    def invalidate(self) -> None:
        """Ask anew the next time."""
        self._until = 0.0

    def _done(self, reading: asyncio.Future[T]) -> None:
        if reading.cancelled() or reading.exception() is not None:  # the next one tries again
            self._until = 0.0


class GridSnapshot:
    """The live seats and the queues, the models that are offered, the origins of the keys, and the jobs that
    are watched.
    """

    def __init__(self, grid: GridConnection) -> None:
        self.grid = grid
        self.seats: Cached[list[LiveSeat]] = self._cache(registry.read_live_seats)
        self.queues: Cached[list[QueueView]] = self._cache(queues.queues)
        self.models: Cached[dict[str, dict[str, Json]]] = self._cache(models.read_models)
        self.origins: Cached[frozenset[str]] = self._cache(_read_key_origins)
        self._jobs: WeakValueDictionary[str, Cached[JobView]] = WeakValueDictionary()

    def job(self, job: str) -> Cached[JobView]:
        """Where a job stands, looked up at most once in WATCHED seconds for all who hold this."""
        cached = self._jobs.get(job)
        if cached is None:
            reader = JobReader(self.grid.client.redis, self.grid.keys, job)
            cached = self._jobs[job] = Cached(partial(self.grid.call, reader.read), JOB_CACHE_SECONDS)
        return cached

    def _cache(self, read_grid: Callable[[Redis, Keys], T]) -> Cached[T]:
        async def read() -> T:
            return await self.grid.call(read_grid, self.grid.client.redis, self.grid.keys)

        return Cached(read)

    def invalidate(self) -> None:
        """Look anew the next time: something was changed."""
        self.seats.invalidate()
        self.queues.invalidate()


def snapshot_of(app: FastAPI) -> GridSnapshot:
    """The glance of the application's door."""
    found: GridSnapshot = app.state.snapshot
    return found


def _read_key_origins(client: Redis, keys: Keys) -> frozenset[str]:
    """The origins of all keys that stand."""
    now = now_ms(client)
    standing = [key for key in api_keys.listing(client, keys) if key.stands(now)]
    return frozenset(origin for key in standing for origin in key.limits.origins)
