"""Cached views of the grid, shared by all requests of one gateway."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from fastapi import FastAPI
from redis import Redis
from redis.exceptions import RedisError

from gridq.errors import GridError
from gridq.gateway.grid import models
from gridq.gateway.grid.connection import GridConnection
from gridq.gateway.http.bounds import BodyLimit
from gridq.gateway.streaming import sse
from gridq.limits import api_keys
from gridq.protocol.states import StageState
from gridq.seats import registry
from gridq.seats.registry import LiveSeat
from gridq.store.capacity import read_largest_value
from gridq.store.connection import now_ms
from gridq.store.keys import Keys
from gridq.store.ttl_cache import TtlCache
from gridq.views import queues
from gridq.views.jobs import JobReader, JobView
from gridq.views.queues import QueueView
from gridq.views.wait_reasons import describe_loading

T = TypeVar("T")

CACHE_SECONDS = 1.0
"""How long a view is cached. However many requests ask, the server is asked once."""

SERVER_LIMIT_SECONDS = 60.0
"""How long the limits of the Redis server are cached."""

JOB_CACHE_SECONDS = 0.25
"""How long the view of a single job is cached."""


class Cached(Generic[T]):
    """A value that `read` returns, cached for `seconds`. Concurrent callers share one read."""

    def __init__(self, read: Callable[[], Awaitable[T]], seconds: float = CACHE_SECONDS) -> None:
        self._read = read
        self._cache = TtlCache[T](seconds)

    async def get(self) -> T:
        """Return the value. If the read fails, all callers that waited for it get its error."""
        return await self._cache.get_async(self._read)

    def invalidate(self) -> None:
        """Read again at the next `get`."""
        self._cache.forget()


class GridSnapshot:
    """Live seats, queues, models, the origins of the API keys, and the jobs that clients watch."""

    def __init__(self, grid: GridConnection) -> None:
        self.grid = grid
        self.seats: Cached[list[LiveSeat]] = self._cache(registry.read_live_seats)
        self.queues: Cached[list[QueueView]] = self._cache(queues.read_queues)
        self.models: Cached[models.OfferedModels] = self._cache(models.read_models)
        self.origins: Cached[frozenset[str]] = self._cache(_read_key_origins)
        self.server_limit: Cached[BodyLimit | None] = Cached(self._read_server_limit, SERVER_LIMIT_SECONDS)
        self._jobs: WeakValueDictionary[str, Cached[JobView]] = WeakValueDictionary()

    def job(self, job: str) -> Cached[JobView]:
        """Return the cached view of a job, shared by all who hold it."""
        cached = self._jobs.get(job)
        if cached is None:
            reader = JobReader(self.grid.client.redis, self.grid.keys, job)
            cached = self._jobs[job] = Cached(partial(self.grid.call, reader.read), JOB_CACHE_SECONDS)
        return cached

    async def make_comment(self, job: str) -> bytes:
        """Return the comment for a stream that has been silent for a while: which model its seat loads, else
        KEEP_ALIVE.
        """
        with suppress(RedisError, GridError):
            view = await self.job(job).get()
            seats = {seat.worker: seat for seat in await self.seats.get() if seat.details.get("loading")}
            for stage in view.find_stages(StageState.RUNNING):
                if stage.seat in seats and (loading := describe_loading(seats[stage.seat], stage.queue)):
                    return sse.format_comment(loading)
        return sse.KEEP_ALIVE

    def _cache(self, read_grid: Callable[[Redis, Keys], T]) -> Cached[T]:
        async def read() -> T:
            return await self.grid.call(read_grid, self.grid.client.redis, self.grid.keys)

        return Cached(read)

    async def _read_server_limit(self) -> BodyLimit | None:
        found = await self.grid.call(read_largest_value, self.grid.client.redis)
        return None if found is None else BodyLimit(*found)

    def invalidate(self) -> None:
        """Read seats and queues again at the next use, after a change."""
        self.seats.invalidate()
        self.queues.invalidate()


def get_snapshot(app: FastAPI) -> GridSnapshot:
    found: GridSnapshot = app.state.snapshot
    return found


def _read_key_origins(client: Redis, keys: Keys) -> frozenset[str]:
    """Return the origins that the valid API keys allow."""
    now = now_ms(client)
    valid = [key for key in api_keys.list_keys(client, keys) if key.is_valid(now)]
    return frozenset(origin for key in valid for origin in key.limits.origins)
