"""Enforce the limits of an API key over all gateways: requests a minute and requests open at once.

The server counts (`take_slot.lua`). A slot lapses after SLOT_TTL_MS unless its gateway renews it, so the
slots of a gateway that died are free again soon. Only keys with such a limit cost a call to the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
from collections import defaultdict
from typing import Any

from gridq.errors import GridError, KeyBusy, KeyRateExceeded
from gridq.gateway.grid.connection import GridConnection
from gridq.limits.api_keys import Key

SLOT_TTL_MS = 30_000
"""How long a slot is held without a renewal."""
RENEW_SECONDS = 10.0
"""Seconds between two renewals."""


class KeyLimiter:
    """The slots that the open requests of this gateway hold."""

    def __init__(self, grid: GridConnection) -> None:
        self.grid = grid
        self._held_slots: dict[str, str] = {}  # request → its key's id
        self._tasks: set[asyncio.Task[None]] = set()
        self._renewing: asyncio.Task[None] | None = None

    async def acquire(self, key: Key) -> str | None:
        """Count one request of `key`. Returns the slot that `release` gives back, None if the key
        has no `parallel` limit.

        Raises KeyRateExceeded and KeyBusy; a refused request is not counted.
        """
        limits = key.limits
        if limits.rpm is None and limits.parallel is None:
            return None
        request = secrets.token_hex(8)
        outcome, wait_ms = await self.grid.call(
            self.grid.client.scripts.take_slot,
            key.id,
            request,
            rpm=limits.rpm,
            parallel=limits.parallel,
            slot_ms=SLOT_TTL_MS,
        )
        if outcome == "rate":
            raise KeyRateExceeded(
                f"The key {key.id} has reached its limit of {limits.rpm} requests a minute",
                _make_limit_details(key, "rpm", limits.rpm, wait_ms / 1000),
            )
        if outcome == "parallel":
            raise KeyBusy(
                f"The key {key.id} has reached its limit of {limits.parallel} open requests",
                _make_limit_details(key, "parallel", limits.parallel, 1.0, "wait until one of them ends"),
            )
        if limits.parallel is None:
            return None
        self._held_slots[request] = key.id
        if self._renewing is None or self._renewing.done():
            self._renewing = self._start(self._renew())
        return request

    def release(self, request: str) -> None:
        """Give a slot back, without waiting for the server. If the server is away, the slot lapses."""
        key = self._held_slots.pop(request)
        self._start(self._send_release(key, request))

    async def _send_release(self, key: str, request: str) -> None:
        with contextlib.suppress(
            GridError, RuntimeError
        ):  # the server is away, or the grid connection is closed
            await self.grid.call(self.grid.client.scripts.release_slots, key, [request])

    async def _renew(self) -> None:
        """Renew the held slots until there are none."""
        while self._held_slots:
            await asyncio.sleep(RENEW_SECONDS)
            requests: defaultdict[str, list[str]] = defaultdict(list)
            for request, key in self._held_slots.items():
                requests[key].append(request)
            for key, held in requests.items():
                with contextlib.suppress(GridError, RuntimeError):
                    await self.grid.call(self.grid.client.scripts.extend_slots, key, held, SLOT_TTL_MS)

    def _start(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _make_limit_details(
    key: Key, option: str, limit: int | None, wait: float, first: str = ""
) -> dict[str, Any]:
    """Return the details of a limit of `key` that is reached.

    `option` is the option of `gridq keys create` that sets it; `wait` is in seconds; `first` replaces
    the advice to wait.
    """
    first = first or f"retry in {math.ceil(wait)} s"
    return {
        "limit": limit,
        "bottleneck": f"{option} of the key {key.id} ({limit})",
        "retry_after": wait,
        "fix": f"{first}, or use a key with a larger --{option}",
    }
