"""Spread connections to gateways over several small pools.

For every request httpx walks through all connections of a pool and all requests that wait for one, so one
large pool gets slow.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import httpx

POOL_SIZE = 16
"""Connections of one pool."""

POOL_LIMITS = httpx.Limits(max_connections=POOL_SIZE)

C = TypeVar("C")


class Pools(Generic[C]):
    """As many pools as are needed at once, each made by `make`. `pools` lists them."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        self._in_use: list[int] = []
        self._lock = threading.Lock()
        self.pools: list[C] = []

    @contextmanager
    def acquire(self) -> Iterator[C]:
        """Provide a pool with a free connection, and reserve that connection within the block."""
        with self._lock:
            index = next((i for i, count in enumerate(self._in_use) if count < POOL_SIZE), len(self._in_use))
            if index == len(self._in_use):
                self.pools.append(self._make())
                self._in_use.append(0)
            self._in_use[index] += 1
        try:
            yield self.pools[index]
        finally:
            with self._lock:
                self._in_use[index] -= 1
