"""Connections to gateways, in pools of bounded size: with each use httpx looks at every connection of a pool,
and at everybody who waits for one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import httpx

SIZE = 16
"""Connections of one pool."""

LIMITS = httpx.Limits(max_connections=SIZE)

C = TypeVar("C")


class Pools(Generic[C]):
    """As many pools as are needed, each made by `make`."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        self._used: list[int] = []
        self._lock = threading.Lock()
        self.made: list[C] = []

    @contextmanager
    def one(self) -> Iterator[C]:
        """A pool, one of whose connections is in use within it."""
        with self._lock:
            at = next((number for number, used in enumerate(self._used) if used < SIZE), len(self._used))
            if at == len(self._used):
                self.made.append(self._make())
                self._used.append(0)
            self._used[at] += 1
        try:
            yield self.made[at]
        finally:
            with self._lock:
                self._used[at] -= 1
