"""Cancel tasks reliably: a single `cancel()` may be lost."""

from __future__ import annotations

import asyncio

RETRY_SECONDS = 0.1
"""Seconds after which a task that has not ended is cancelled again."""


async def cancel(*tasks: asyncio.Task[None]) -> None:
    """Cancel `tasks` and return once all of them have ended, whatever their result.

    A task that waits for redis-py may swallow a cancellation that comes just as its wait is over, because
    redis-py waits with `asyncio.wait_for`, which does so up to Python 3.11 (python/cpython#86296).
    """
    for task in tasks:
        while not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=RETRY_SECONDS)
