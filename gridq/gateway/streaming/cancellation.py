"""Tasks that are ended for good: a single cancel may be lost."""

from __future__ import annotations

import asyncio

AGAIN = 0.1
"""Seconds after which a task that has not ended is cancelled once more."""


async def cancel(*tasks: asyncio.Task[None]) -> None:
    """Return once all of `tasks` have ended, whatever they ended with.

    What they wait for may swallow a cancel that comes just as it is done: redis-py waits for each command by
    `asyncio.wait_for`, which does so up to Python 3.11 (python/cpython#86296). A loop would go on for ever.
    """
    for task in tasks:
        while not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=AGAIN)
