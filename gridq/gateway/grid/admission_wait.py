"""A bounded hold: a job for a queue that nobody serves just now, but did or is about to, waits a little
before it is refused.

One look at the grid, each second, is shared by all who are held, so that ten thousand of them ask no more of
the server than one. A queue that nobody was ever seen to serve, while others of its kind are served, is no
queue to wait for: its error, with the nearest names, comes at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import TypeVar

import redis.asyncio
from redis.exceptions import RedisError

from gridq.errors import NoLiveSeat
from gridq.gateway.streaming.cancellation import cancel
from gridq.protocol.queue_names import kind_of
from gridq.store.keys import Keys

log = logging.getLogger(__name__)

T = TypeVar("T")

Queues = tuple[str, ...]
"""Queues of which one is needed: a capability's, and those that its submitter makes do with."""

POLL_SECONDS = 1.0
"""Seconds between two looks while nobody is held."""

WAITING_POLL_SECONDS = 0.2
"""The same while somebody is."""

RECENT_SECONDS = 600.0
"""Seconds for which a queue that was served is waited for."""

MAX_WAITING_JOBS = 1000
"""Jobs that one gateway holds at once; each keeps its body in memory."""


class AdmissionWait:
    """Holds jobs of one gateway between `start` and `close`, each for at most `seconds`."""

    def __init__(self, client: redis.asyncio.Redis, keys: Keys, seconds: float, *, most: int = MAX_WAITING_JOBS) -> None:
        self._client = client
        self._keys = keys
        self._seconds = seconds
        self._most = most
        self._held = 0
        self._seen: dict[str, float] = {}  # queue → when it was last served
        self._served: frozenset[str] = frozenset()
        self._resting: frozenset[str] = frozenset()  # of live seats that take nothing now
        self._kinds: frozenset[str] = frozenset()
        self._waiting: dict[Queues, set[asyncio.Future[bool]]] = defaultdict(set)
        self._looked = asyncio.Event()
        self._called = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look who is there."""
        self._looking = asyncio.create_task(self._keep_looking(), name="holding")

    async def close(self) -> None:
        """Stop looking; whoever is still held is refused."""
        if self._looking is not None:
            await cancel(self._looking)
            self._looking = None
        for links in list(self._waiting):
            self._tell(links, False)

    @property
    def held(self) -> int:
        """How many are held now."""
        return self._held

    async def admit(self, attempt: Callable[[], Awaitable[T]], within: float | None = None) -> T:
        """What `attempt` gives. Where it raises NoLiveSeat for a queue that is worth waiting for, it is tried
        again as soon as somebody serves it, until the time is over or `within` seconds have passed.

        NoLiveSeat: nobody came, too many wait already, or there is nobody to wait for: then
        `details["served"]` is False.
        """
        try:
            return await attempt()
        except NoLiveSeat as exc:
            error = exc
        if self._looking is None or not _is_unserved(error):
            raise error
        if self._held >= self._most:
            error.details["reason"] = f"{self._most} jobs are held already; {error.reason}"
            raise error
        began = time.monotonic()
        until = began + (self._seconds if within is None else min(within, self._seconds))
        self._held += 1
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(until - began):
                    await self._looked.wait()
            while self._looking is not None and self._is_expected(_queues_of(error)):
                if not await self._is_served(_queues_of(error), until):
                    break
                try:
                    return await attempt()
                except NoLiveSeat as exc:
                    error = exc
                    if not _is_unserved(error):
                        raise
                await asyncio.sleep(WAITING_POLL_SECONDS)  # it came and went
        finally:
            self._held -= 1
        error.details["held"] = round(time.monotonic() - began, 3)
        if not self._is_expected(_queues_of(error)):
            error.details["served"] = False
        raise error

    def _is_expected(self, links: Queues) -> bool:
        served, kinds = self._served | self._resting, self._kinds
        if any(queue in served or kind_of(queue) not in kinds for queue in links):
            return True
        return any(time.monotonic() - self._seen.get(queue, -RECENT_SECONDS) < RECENT_SECONDS for queue in links)

    async def _is_served(self, links: Queues, until: float) -> bool:
        """Wait until somebody serves one of the queues; False where nobody does in time."""
        left = until - time.monotonic()
        if not self._served.isdisjoint(links) or left <= 0:
            return left > 0
        waiting: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[links].add(waiting)
        self._called.set()
        try:
            # Not by wait_for: it may swallow the word that the client has gone, where both come at once.
            done, _ = await asyncio.wait((waiting,), timeout=left)
            return waiting.result() if done else False
        finally:
            self._waiting[links].discard(waiting)
            if not self._waiting[links]:
                del self._waiting[links]

    def _tell(self, links: Queues, served: bool) -> None:
        for waiting in self._waiting[links]:
            if not waiting.done():
                waiting.set_result(served)

    async def _keep_looking(self) -> None:
        while True:
            try:
                await self._look()
                self._looked.set()
            except (RedisError, OSError) as exc:  # the next look may do
                log.debug("who is live could not be read: %s", type(exc).__name__)
            if self._waiting:
                await asyncio.sleep(WAITING_POLL_SECONDS)
                continue
            self._called.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._called.wait()

    async def _look(self) -> None:
        """One look; those whose queue is served go on."""
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
        self._resting = frozenset(live - self._served)
        self._kinds = frozenset(map(kind_of, live))
        self._seen = {queue: at for queue, at in self._seen.items() if now - at < RECENT_SECONDS}
        self._seen |= dict.fromkeys(self._served, now)
        for links in self._waiting:
            if not self._served.isdisjoint(links):
                self._tell(links, True)
            elif not self._is_expected(links):  # its kind has come, without it
                self._tell(links, False)


def _queues_of(error: NoLiveSeat) -> Queues:
    """The queues of which one is needed."""
    return tuple(error.details.get("queues") or (error.details["queue"],))


def _is_unserved(error: NoLiveSeat) -> bool:
    """Whether nobody serves the queue, rather than that who does lacks what the stage needs."""
    return "queue" in error.details and error.path == error.details["queue"]
