"""Jobs that nobody waits for any more, cancelled as soon as the server can be asked.

Their clients have gone, or were told that the server is away when it may have admitted them all the same:
what was sent to a server that hung is done when it wakes. Who was refused asks again, so such a job would be
work done twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from gridq.errors import BrokerError, GridError, JobNotFound
from gridq.gateway.streaming.cancellation import cancel

log = logging.getLogger(__name__)

AGAIN = 1.0
"""Seconds between two tries."""

LOOKS = 3
"""Looks for a job that is not there: what is on its way to the server may come a little later."""

MOST = 10_000
"""Jobs that are remembered; beyond them the oldest runs on, to its end or its deadline."""


class Unwanted:
    """The jobs of one gateway that are to be cancelled, each by `cancel`. For one loop."""

    def __init__(self, cancel: Callable[[str], Awaitable[object]]) -> None:
        self._cancel = cancel
        self._looks: dict[str, int] = {}  # job → looks that are left
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._looks)

    def add(self, job: str) -> None:
        """Cancel `job`, now or later; once it is closed nothing is done."""
        if self._closed:
            return
        self._looks.pop(job, None)
        self._looks[job] = LOOKS
        if len(self._looks) > MOST:
            del self._looks[next(iter(self._looks))]
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep_on(), name="unwanted")

    async def close(self) -> None:
        """Try once more, and no longer."""
        self._closed = True
        if self._task is not None:
            await cancel(self._task)
        await self._try()

    async def _keep_on(self) -> None:
        while True:
            try:
                await self._try()
            except Exception:  # whatever it is: the others are to be cancelled all the same
                log.exception("jobs that nobody waits for are cancelled again")
            if not self._looks:
                return
            await asyncio.sleep(AGAIN)

    async def _try(self) -> None:
        """Cancel each of them, as far as the server answers."""
        for job in list(self._looks):
            try:
                await self._cancel(job)
            except JobNotFound:
                looks = self._looks.get(job, 0) - 1
                if looks > 0:
                    self._looks[job] = looks
                    continue
            except BrokerError:
                return
            except GridError as error:
                log.warning("a job that nobody waits for could not be cancelled: %s", error.code)
            self._looks.pop(job, None)
