"""Let a job wait a bounded time for a seat that serves its queue, before it is refused.

It waits for a queue or a seat that was there recently, as for every way to submit a job
(`gridq.seats.served_queues`); and here, as the grid itself may be starting, also for a queue that was ever
served if the gateway has just started, and for one whose kind no seat serves yet. All others are refused at
once. A queue that no seat ever served, while seats of its kind are live, is unknown, and its error names the
nearest ones. Until the gateway has read what was served, no queue is unknown.

All waiting jobs share one poll of the grid, so ten thousand of them cost the server no more than one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import redis.asyncio
from redis.exceptions import RedisError

from gridq.errors import NoLiveSeat
from gridq.gateway.streaming.cancellation import cancel
from gridq.protocol.queue_names import get_kind
from gridq.seats import served_queues
from gridq.seats.served_queues import (
    Queues,
    ServedQueues,
    ask_for_queues,
    ask_for_seats,
    note_wait,
    read_replies,
)
from gridq.store.keys import Keys

log = logging.getLogger(__name__)

T = TypeVar("T")

POLL_SECONDS = 1.0
"""Seconds between two polls while no job waits."""

LOOK_SECONDS = 0.05
"""Seconds between two polls at least, however many unknown models are asked for. A refused job waits as long
for one, even if it waits for no seat.
"""

START_SECONDS = 600.0
"""How long after the gateway's start jobs wait for every queue that was served in the last 30 days."""

SERVED_READ_SECONDS = 60.0
"""Seconds between two reads of all queues that were served in the last 30 days."""

MAX_WAITING_JOBS = 1000
"""Maximum number of jobs that wait at one gateway, because each keeps its body in memory."""


class AdmissionWait:
    """Waiting jobs of one gateway, between `start` and `close`. Each waits `seconds` at most by default."""

    def __init__(
        self, client: redis.asyncio.Redis, keys: Keys, seconds: float, *, max_jobs: int = MAX_WAITING_JOBS
    ) -> None:
        self._client = client
        self._keys = keys
        self._seconds = seconds
        self._max_jobs = max_jobs
        self._waiting_jobs = 0
        self._queues = ServedQueues()
        self._ever_served: frozenset[str] = frozenset()  # as the server remembers
        self._read_due = 0.0
        self._started_at = time.monotonic()
        self._waiters: dict[Queues, set[asyncio.Future[bool]]] = defaultdict(set)
        self._begun_polls = self._last_poll = 0  # the poll that began last, and the last that succeeded
        self._polled = asyncio.Event()  # set at the next success, a new one each time
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
        self._polled.set()
        for queues in list(self._waiters):
            self._wake(queues, False)

    @property
    def waiting_jobs(self) -> int:
        """The number of jobs that wait now."""
        return self._waiting_jobs

    async def admit(self, attempt: Callable[[], Awaitable[T]], within: float | None = None) -> T:
        """Return what `attempt` returns.

        If it raises NoLiveSeat whose `awaited` queues are worth waiting for, it is called again once one of
        them is served, for at most `within` seconds, by default those of the constructor.

        Raises NoLiveSeat if no seat came, if too many jobs wait already, or if no seat is to be expected;
        `details["served"]` is False if none ever served the queue.
        """
        try:
            return await attempt()
        except NoLiveSeat as exc:
            error = exc
        if self._poller is None or not error.awaited:
            raise error
        if self._waiting_jobs >= self._max_jobs:
            error.details["reason"] = f"{error.reason}; {self._max_jobs} jobs wait at this gateway already"
            raise error
        started = time.monotonic()
        until = started + (self._seconds if within is None else within)
        self._waiting_jobs += 1
        try:
            await self._wait_for_poll(max(until - started, LOOK_SECONDS))
            while self._poller is not None and self._is_expected(error.awaited):
                if not await self._is_served(error.awaited, until):
                    break
                try:
                    return await attempt()
                except NoLiveSeat as exc:
                    error = exc
                    if not error.awaited:
                        raise
                await asyncio.sleep(served_queues.POLL_SECONDS)  # the seat came and left
        finally:
            self._waiting_jobs -= 1
        note_wait(error, time.monotonic() - started)
        queues = error.awaited
        if self._last_poll and not self._is_expected(queues) and not any(map(self._was_served, queues)):
            error.details["served"] = False
        raise error

    async def may_exist(self, queue: str) -> bool:
        """Return whether a seat has served `queue` in the last 30 days, or the gateway could not read that
        within a second.
        """
        await self._wait_for_poll(POLL_SECONDS)
        return self._was_served(queue) or not self._last_poll

    async def _wait_for_poll(self, seconds: float) -> None:
        """Wait for a poll that begins from now on: the last one may be older than what a seat did since."""
        wanted = self._begun_polls + 1
        self._poll_wanted.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._last_poll < wanted and self._poller is not None:
                    await self._polled.wait()

    def _was_served(self, queue: str) -> bool:
        return queue in self._ever_served or self._queues.may_be_back((queue,))

    def _is_expected(self, queues: Queues) -> bool:
        kinds = self._queues.kinds
        if self._queues.may_be_back(queues) or any(get_kind(queue) not in kinds for queue in queues):
            return True
        just_started = time.monotonic() - self._started_at < START_SECONDS
        return just_started and any(map(self._was_served, queues))

    async def _is_served(self, queues: Queues, until: float) -> bool:
        """Wait until a seat serves one of the queues. Returns False if none does in time."""
        left = until - time.monotonic()
        if not self._queues.served.isdisjoint(queues) or left <= 0:
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
            self._begun_polls += 1
            began = time.monotonic()
            try:
                await self._poll()
                self._last_poll = self._begun_polls
                self._polled.set()
                self._polled = asyncio.Event()
            except (RedisError, OSError) as exc:  # the next poll may succeed
                log.debug("the live seats cannot be read: %s", type(exc).__name__)
            if self._waiters:
                await asyncio.sleep(served_queues.POLL_SECONDS)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._poll_wanted.wait()
            self._poll_wanted.clear()
            await asyncio.sleep(max(began + LOOK_SECONDS - time.monotonic(), 0.0))

    async def _poll(self) -> None:
        """Read which queues are served, and wake the jobs that wait for them."""
        first = self._client.pipeline(transaction=False)
        ask_for_seats(first, self._keys)
        replies = await first.execute()
        second = self._client.pipeline(transaction=False)
        ask_for_queues(second, self._keys, replies)
        self._queues = read_replies(replies, await second.execute() if replies[-1] else ())
        now = time.monotonic()
        if now >= self._read_due:
            ever: Any = await self._client.zrange(self._keys("served_queues"), 0, -1)
            self._ever_served = frozenset(queue.decode() for queue in ever)
            self._read_due = now + SERVED_READ_SECONDS
        self._ever_served |= self._queues.served | self._queues.paused | self._queues.left
        for queues in self._waiters:
            if not self._queues.served.isdisjoint(queues):
                self._wake(queues, True)
            elif not self._is_expected(queues):  # seats of its kind are live, none serves it
                self._wake(queues, False)
