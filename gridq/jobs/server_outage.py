"""Keep waiting for a job while the server is unreachable."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from gridq.errors import BrokerUnreachable

MAX_OUTAGE_SECONDS = 300.0
"""The longest outage of the server for a caller without a timeout of its own."""

RETRY_PAUSE_SECONDS = 0.2
"""The pause between two tries, in addition to the time that connecting takes."""

C = TypeVar("C")


class OutageRetry:
    """Repeats a call while the server is unreachable.

    It gives up `timeout` seconds after it was created, or without a timeout after MAX_OUTAGE_SECONDS of
    outage. The job itself continues meanwhile.
    """

    def __init__(self, timeout: float | None) -> None:
        self._timeout = timeout
        self._began = time.monotonic()

    def call(self, function: Callable[[C], Any], argument: C) -> Any:
        """Return `function(argument)`. Raises BrokerUnreachable when it gives up."""
        since = time.monotonic()
        while True:
            try:
                return function(argument)
            except BrokerUnreachable:
                if self._is_over(since):
                    raise
            time.sleep(RETRY_PAUSE_SECONDS)

    async def call_async(self, function: Callable[[C], Awaitable[Any]], argument: C) -> Any:
        """Return `await function(argument)`, like `call`."""
        since = time.monotonic()
        while True:
            try:
                return await function(argument)
            except BrokerUnreachable:
                if self._is_over(since):
                    raise
            await asyncio.sleep(RETRY_PAUSE_SECONDS)

    def _is_over(self, since: float) -> bool:
        now = time.monotonic()
        return (
            now - since > MAX_OUTAGE_SECONDS if self._timeout is None else now - self._began > self._timeout
        )
