"""Cancel jobs that no client waits for any more, as soon as the server answers.

Their clients disconnected, or heard that the server is away although it may have admitted the job: a server
that hung handles what was sent to it when it wakes. Clients retry after such an error, so the job would do
the work twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from gridq.errors import BrokerError, GridError, JobNotFound
from gridq.gateway.streaming.cancellation import cancel

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
"""Seconds between two attempts."""

MAX_LOOKUPS = 3
"""How often a job that is not found is looked up, because its admission may still be on the way to the
server.
"""

MAX_JOBS = 10_000
"""Maximum number of remembered jobs. Beyond it the oldest runs on to its end or its deadline."""


class OrphanedJobs:
    """Jobs of one gateway that are to be cancelled with `cancel`. Use it on one event loop."""

    def __init__(self, cancel: Callable[[str], Awaitable[object]]) -> None:
        self._cancel = cancel
        self._lookups_left: dict[str, int] = {}  # job → lookups that remain
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._lookups_left)

    def add(self, job: str) -> None:
        """Cancel `job` now or later. Does nothing once closed."""
        if self._closed:
            return
        self._lookups_left.pop(job, None)
        self._lookups_left[job] = MAX_LOOKUPS
        if len(self._lookups_left) > MAX_JOBS:
            del self._lookups_left[next(iter(self._lookups_left))]
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="orphaned-jobs")

    async def close(self) -> None:
        """Try once more, then stop."""
        self._closed = True
        if self._task is not None:
            await cancel(self._task)
        await self._cancel_all()

    async def _run(self) -> None:
        while True:
            try:
                await self._cancel_all()
            except Exception:  # whatever it is, the other jobs must still be cancelled
                log.exception("cancelling orphaned jobs failed; retrying")
            if not self._lookups_left:
                return
            await asyncio.sleep(RETRY_SECONDS)

    async def _cancel_all(self) -> None:
        """Cancel each job, as long as the server answers."""
        for job in list(self._lookups_left):
            try:
                await self._cancel(job)
            except JobNotFound:
                remaining = self._lookups_left.get(job, 0) - 1
                if remaining > 0:
                    self._lookups_left[job] = remaining
                    continue
            except BrokerError:
                return
            except GridError as error:
                log.warning("an orphaned job cannot be cancelled: %s", error.code)
            self._lookups_left.pop(job, None)
