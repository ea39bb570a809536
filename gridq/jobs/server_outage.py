"""How long who waits for a job bears a server that is away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from gridq.errors import BrokerUnreachable

MAX_OUTAGE_SECONDS = 300.0
"""Seconds for which the server may be away until a caller without a time-out of its own hears of it."""

RETRY_PAUSE_SECONDS = 0.2
"""Seconds between two questions, beside those that the connection takes to be made."""

C = TypeVar("C")


class OutageRetry:
    """Asks again while nobody answers: for `timeout` seconds from now on, or AWAY where there is none. The
    job goes on meanwhile, or waits as its caller does.
    """

    def __init__(self, timeout: float | None) -> None:
        self._timeout = timeout
        self._began = time.monotonic()

    def ask(self, ask: Callable[[C], Any], what: C) -> Any:
        """What `ask(what)` gives. BrokerUnreachable: time is up."""
        since = time.monotonic()
        while True:
            try:
                return ask(what)
            except BrokerUnreachable:
                if self._is_over(since):
                    raise
            time.sleep(RETRY_PAUSE_SECONDS)

    async def ask_async(self, ask: Callable[[C], Awaitable[Any]], what: C) -> Any:
        """The same for asyncio."""
        since = time.monotonic()
        while True:
            try:
                return await ask(what)
            except BrokerUnreachable:
                if self._is_over(since):
                    raise
            await asyncio.sleep(RETRY_PAUSE_SECONDS)

    def _is_over(self, since: float) -> bool:
        now = time.monotonic()
        return (
            now - since > MAX_OUTAGE_SECONDS if self._timeout is None else now - self._began > self._timeout
        )
