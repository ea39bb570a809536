"""Let a job wait a bounded time for a seat that serves its queue, before it is refused.

It waits for a queue that is served again soon: one that was served recently, one that was ever served if the
gateway has just started, as after a restart of the grid, or one whose kind no seat serves yet. All others are
refused at once. A queue that no seat ever served, while seats of its kind are live, is unknown, and its error
names the nearest ones. The server remembers for 30 days which queues were served.

All waiting jobs share one poll of the grid, so ten thousand of them cost the server no more than one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import TypeVar

import redis.asyncio
from redis.exceptions import RedisError

from gridq.errors import NoLiveSeat
from gridq.gateway.streaming.cancellation import cancel
from gridq.protocol.queue_names import get_kind
from gridq.store.keys import Keys

log = logging.getLogger(__name__)

T = TypeVar("T")

Queues = tuple[str, ...]
"""Queues of which one is enough: a capability's own and its fallbacks."""

POLL_SECONDS = 1.0
"""Seconds between two polls while no job waits."""

WAITING_POLL_SECONDS = 0.2
"""Seconds between two polls while jobs wait."""

RECENT_SECONDS = 600.0
"""How long after a queue was last served, or after the gateway's start, jobs still wait for it."""

SERVED_DAYS = 30
"""How long the server remembers that a queue was served."""

SERVED_WRITE_SECONDS = 60.0
"""Seconds between two writes of which queues are served; a new one is written at once."""

MAX_SERVED_QUEUES = 10_000
"""Maximum number of queues that the server remembers; those that were served last stay."""

MAX_WAITING_JOBS = 1000
"""Maximum number of jobs that wait at one gateway, because each keeps its body in memory."""


class AdmissionWait:
    """Waiting jobs of one gateway, between `start` and `close`. Each waits at most `seconds`."""

    def __init__(
        self, client: redis.asyncio.Redis, keys: Keys, seconds: float, *, max_jobs: int = MAX_WAITING_JOBS
    ) -> None:
        self._client = client
        self._keys = keys
        self._seconds = seconds
        self._max_jobs = max_jobs
        self._waiting_jobs = 0
        self._last_served: dict[str, float] = {}  # queue → when it was last served
        self._served: frozenset[str] = frozenset()
        self._ever_served: frozenset[str] = frozenset()  # as the server remembers
        self._write_due = 0.0
        self._started_at = time.monotonic()
        self._paused: frozenset[str] = frozenset()  # of live seats that take nothing now
        self._kinds: frozenset[str] = frozenset()
        self._waiters: dict[Queues, set[asyncio.Future[bool]]] = defaultdict(set)
        self._polled = asyncio.Event()
        self._poll_wanted = asyncio.Event()
        self._poller: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to poll."""
        self._started_at = time.monotonic()
        self._poller = asyncio.create_task(self._poll_forever(), name="admission-wait")

    async def close(self) -> None:
        """Stop polling and refuse the jobs that still wait."""
        if self._poller is not None:
            await cancel(self._poller)
            self._poller = None
        for queues in list(self._waiters):
            self._wake(queues, False)

    @property
    def waiting_jobs(self) -> int:
        """The number of jobs that wait now."""
        return self._waiting_jobs

    async def admit(self, attempt: Callable[[], Awaitable[T]], within: float | None = None) -> T:
        """Return what `attempt` returns.

        If it raises NoLiveSeat for a queue that is worth waiting for, it is called again once a seat serves
        the queue, until the wait is over: `seconds`, or `within` if that is shorter.

        Raises NoLiveSeat if no seat came, if too many jobs wait already, or if no seat is to be expected;
        `details["served"]` is False if none ever served the queue.
        """
        try:
            return await attempt()
        except NoLiveSeat as exc:
            error = exc
        if self._poller is None or not _is_unserved(error):
            raise error
        if self._waiting_jobs >= self._max_jobs:
            error.details["reason"] = f"{error.reason}; {self._max_jobs} jobs wait at this gateway already"
            raise error
        started = time.monotonic()
        until = started + (self._seconds if within is None else min(within, self._seconds))
        self._waiting_jobs += 1
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(until - started):
                    await self._polled.wait()
            while self._poller is not None and self._is_expected(_get_queues(error)):
                if not await self._is_served(_get_queues(error), until):
                    break
                try:
                    return await attempt()
                except NoLiveSeat as exc:
                    error = exc
                    if not _is_unserved(error):
                        raise
                await asyncio.sleep(WAITING_POLL_SECONDS)  # the seat came and left
        finally:
            self._waiting_jobs -= 1
        error.details["waited_seconds"] = round(time.monotonic() - started, 3)
        queues = _get_queues(error)
        if not self._is_expected(queues) and not any(map(self.was_served, queues)):
            error.details["served"] = False
        raise error

    def was_served(self, queue: str) -> bool:
        """Return whether a seat has served `queue` within SERVED_DAYS."""
        return queue in self._ever_served or queue in self._last_served

    def _is_expected(self, queues: Queues) -> bool:
        served, kinds = self._served | self._paused, self._kinds
        if any(queue in served or get_kind(queue) not in kinds for queue in queues):
            return True
        now = time.monotonic()
        if now - self._started_at < RECENT_SECONDS and any(map(self.was_served, queues)):
            return True
        return any(now - self._last_served.get(queue, -math.inf) < RECENT_SECONDS for queue in queues)

    async def _is_served(self, queues: Queues, until: float) -> bool:
        """Wait until a seat serves one of the queues. Returns False if none does in time."""
        left = until - time.monotonic()
        if not self._served.isdisjoint(queues) or left <= 0:
            return left > 0
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiters[queues].add(waiter)
        self._poll_wanted.set()
        try:
            # Not asyncio.wait_for: it may swallow a cancellation that comes together with the result.
            done, _ = await asyncio.wait((waiter,), timeout=left)
            return waiter.result() if done else False
        finally:
            self._waiters[queues].discard(waiter)
            if not self._waiters[queues]:
                del self._waiters[queues]

    def _wake(self, queues: Queues, served: bool) -> None:
        for waiter in self._waiters[queues]:
            if not waiter.done():
                waiter.set_result(served)

    async def _poll_forever(self) -> None:
        while True:
            try:
                await self._poll()
                self._polled.set()
            except (RedisError, OSError) as exc:  # the next poll may succeed
                log.debug("the live seats cannot be read: %s", type(exc).__name__)
            if self._waiters:
                await asyncio.sleep(WAITING_POLL_SECONDS)
                continue
            self._poll_wanted.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._poll_wanted.wait()

    async def _poll(self) -> None:
        """Read which queues are served, and wake the jobs that wait for them."""
        both = self._client.pipeline(transaction=False)
        both.hkeys(self._keys("concurrency"))
        both.zrange(self._keys("seats"), 0, -1)
        concurrency, seats = await both.execute()
        each = self._client.pipeline(transaction=False)
        for seat in seats:
            each.hget(self._keys("seat", seat.decode()), "queues")
        found = await each.execute() if seats else []
        live = {queue for text in found if text is not None for queue in text.decode().split()}
        now = time.monotonic()
        self._served = frozenset(queue.decode() for queue in concurrency)
        self._paused = frozenset(live - self._served)
        self._kinds = frozenset(map(get_kind, live))
        self._last_served = {
            queue: at for queue, at in self._last_served.items() if now - at < RECENT_SECONDS
        }
        self._last_served |= dict.fromkeys(self._served, now)
        if now >= self._write_due or not live <= self._ever_served:
            await self._remember(live)
            self._write_due = now + SERVED_WRITE_SECONDS
        for queues in self._waiters:
            if not self._served.isdisjoint(queues):
                self._wake(queues, True)
            elif not self._is_expected(queues):  # seats of its kind are live, none serves it
                self._wake(queues, False)

    async def _remember(self, queues: set[str]) -> None:
        """Write that `queues` are served, and read which ones ever were."""
        key, now = self._keys("served_queues"), time.time()
        pipe = self._client.pipeline(transaction=False)
        if queues:
            pipe.zadd(key, dict.fromkeys(queues, int(now)))
            pipe.zremrangebyscore(key, "-inf", now - SERVED_DAYS * 86_400)
            pipe.zremrangebyrank(key, 0, -MAX_SERVED_QUEUES - 1)
            pipe.expire(key, SERVED_DAYS * 86_400)
        pipe.zrange(key, 0, -1)
        *_, found = await pipe.execute()
        self._ever_served = frozenset(queue.decode() for queue in found)


def _get_queues(error: NoLiveSeat) -> Queues:
    """Return the queues of which the refused stage needs one."""
    return tuple(error.details.get("queues") or (error.details["queue"],))


def _is_unserved(error: NoLiveSeat) -> bool:
    """Return True if no seat serves the queue; False if those that do lack something that the stage needs."""
    return "queue" in error.details and error.path == error.details["queue"]
