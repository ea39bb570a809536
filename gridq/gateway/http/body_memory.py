"""Bound the memory that the bodies of all requests of a gateway take together.

A body over LARGE_BODY_BYTES reserves its size before it is read, and gives it back once the grid has stored
the request, or when the request ends. If there is no room, it waits, the first one first, while its client's
bytes stay in the network. Smaller bodies never wait.
"""

from __future__ import annotations

import asyncio
from collections import deque

from gridq.errors import GatewayBusy

LARGE_BODY_BYTES = 256 * 1024
"""The size from which a body reserves memory, and is decoded on a thread."""

WAIT_SECONDS = 10.0
"""The longest that a request waits for room before it is refused."""

RETRY_SECONDS = 2.0
"""The time after which a refused client should try again."""


class BodyMemory:
    """The memory for the large bodies of one gateway, `max_bytes` together. Use it on one event loop."""

    def __init__(self, max_bytes: int, wait: float = WAIT_SECONDS) -> None:
        self.max_bytes = self._own_bytes = max_bytes
        self.reserved = 0
        self._wait = wait
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def reserve(self, size: int) -> None:
        """Reserve `size` bytes, now or once others have released theirs. A body that is larger than the whole
        memory has it for itself. Raises GatewayBusy if there was no room for `wait` seconds.
        """
        if not self._waiting and self._has_room(size):
            self.reserved += size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        admitted = False
        try:
            # Not asyncio.wait_for: it may swallow a cancellation that comes together with the result.
            await asyncio.wait((turn,), timeout=self._wait)
            admitted = turn.done()
        finally:
            if not admitted:
                self._withdraw(size, turn)
        if not admitted:
            raise GatewayBusy(
                "The gateway has no memory for another large request now",
                {
                    "bottleneck": f"the memory for request bodies ({self.max_bytes} bytes)",
                    "retry_after": RETRY_SECONDS,
                    "fix": "retry later; the operator can raise GRIDQ_GATEWAY_BODY_MEMORY",
                },
            )

    def limit_to(self, max_bytes: int) -> None:
        """Apply a limit of the server if it is lower than the gateway's own."""
        self.max_bytes = min(self._own_bytes, max_bytes)

    def release(self, size: int) -> None:
        """Give back `size` reserved bytes."""
        self.reserved -= size
        self._admit_next()

    def _has_room(self, size: int) -> bool:
        return not self.reserved or self.reserved + size <= self.max_bytes

    def _withdraw(self, size: int, turn: asyncio.Future[None]) -> None:
        if turn.done():  # it came together with the cancellation
            self.release(size)
        else:
            self._waiting.remove((size, turn))
            self._admit_next()

    def _admit_next(self) -> None:
        while self._waiting and self._has_room(self._waiting[0][0]):
            size, turn = self._waiting.popleft()
            self.reserved += size
            turn.set_result(None)
