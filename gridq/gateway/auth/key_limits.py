"""The limits of single API keys, which hold for all gateways together: requests a minute, open at once.

The server counts (`enter.lua`). A place is held for HOLD_MS and held anew meanwhile, so what a gateway
that died had open is free again soon. Only a key that has such a limit costs a question to the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from gridq.errors import GridError, KeyBusy, KeyRateExceeded
from gridq.limits.api_keys import Key

if TYPE_CHECKING:
    from gridq.gateway.grid.connection import Door

HOLD_MS = 30_000
ANEW = 10.0
"""Seconds between two words for the places that are held."""


class Slots:
    """The places that this gateway's open requests hold."""

    def __init__(self, door: Door) -> None:
        self.door = door
        self._held: dict[str, str] = {}  # request → its key's id
        self._tasks: set[asyncio.Task[None]] = set()
        self._renewing: asyncio.Task[None] | None = None

    async def enter(self, key: Key) -> str | None:
        """Let one request of `key` in; what it holds and `leave` gives back, None where nothing is held.

        KeyRateExceeded, KeyBusy: not now; it counts for nothing.
        """
        limits = key.limits
        if limits.rpm is None and limits.parallel is None:
            return None
        request = secrets.token_hex(8)
        word, wait_ms = await self.door.call(
            self.door.client.scripts.enter,
            key.id,
            request,
            rpm=limits.rpm,
            parallel=limits.parallel,
            hold_ms=HOLD_MS,
        )
        if word == "rate":
            raise KeyRateExceeded(
                f"The key {key.id} has made its {limits.rpm} requests of this minute",
                _told(key, "rpm", limits.rpm, wait_ms / 1000),
            )
        if word == "parallel":
            raise KeyBusy(
                f"The key {key.id} has {limits.parallel} requests open, as many as it may",
                _told(key, "parallel", limits.parallel, 1.0, "wait until one of them has ended"),
            )
        if limits.parallel is None:
            return None
        self._held[request] = key.id
        if self._renewing is None or self._renewing.done():
            self._renewing = self._start(self._renew())
        return request

    def leave(self, request: str) -> None:
        """Give a place back. It does not wait for the server: where that is away, the place lapses."""
        key = self._held.pop(request)
        self._start(self._depart(key, request))

    async def _depart(self, key: str, request: str) -> None:
        with contextlib.suppress(GridError, RuntimeError):  # the server is away, or the door is closed
            await self.door.call(self.door.client.scripts.depart, key, [request])

    async def _renew(self) -> None:
        """Hold the places anew until there are none."""
        while self._held:
            await asyncio.sleep(ANEW)
            requests: defaultdict[str, list[str]] = defaultdict(list)
            for request, key in self._held.items():
                requests[key].append(request)
            for key, held in requests.items():
                with contextlib.suppress(GridError, RuntimeError):
                    await self.door.call(self.door.client.scripts.hold, key, held, HOLD_MS)

    def _start(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _told(key: Key, option: str, limit: int | None, wait: float, first: str = "") -> dict[str, Any]:
    """What is said of a limit of `key` that is reached; `option` is the one by which `gridq keys create` sets
    it, `wait` in seconds.
    """
    first = first or f"ask again in {math.ceil(wait)} s"
    return {
        "limit": limit,
        "bottleneck": f"{option} of the key {key.id} ({limit})",
        "retry_after": wait,
        "fix": f"{first}, or use a key with a larger --{option}",
    }
