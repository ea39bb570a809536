"""A value that is read again once it is too old; of many callers one reads, the others wait for it."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class TtlCache(Generic[T]):
    """A cached value, good for `ttl` seconds from the moment at which its read began.

    Callers that come while a read is under way wait for it, so a slow server is asked once. If it fails, it
    fails for all of them, and the next caller reads again. Threads and tasks of one loop may share it.
    """

    def __init__(self, ttl: float) -> None:
        self.ttl = ttl
        self._began = -math.inf
        self._future: Future[T] | None = None
        self._reader: asyncio.Future[T] | None = None
        self._lock = threading.Lock()

    def get(self, read: Callable[[], T]) -> T:
        """Return the value, from `read` if it is too old. Raises what `read` raised."""
        future, is_reader = self._join()
        if is_reader:
            try:
                future.set_result(read())
            except BaseException as exc:
                self._fail(future, exc)
        return future.result()

    async def get_async(self, read: Callable[[], Awaitable[T]]) -> T:
        """Return the value like `get`. A caller that is cancelled does not cancel the read of the others."""
        future, is_reader = self._join()
        if is_reader:
            self._reader = asyncio.ensure_future(read())  # the loop holds only a weak reference
            self._reader.add_done_callback(lambda done: self._copy(done, future))
        elif future.done():
            return future.result()
        return await asyncio.shield(asyncio.wrap_future(future))

    def is_fresh(self) -> bool:
        """Return whether `get` would return a value that was read before."""
        with self._lock:
            return self._is_current() and self._future is not None and self._future.done()

    def forget(self) -> None:
        with self._lock:
            self._began = -math.inf

    def _is_current(self) -> bool:
        return time.monotonic() - self._began < self.ttl

    def _join(self) -> tuple[Future[T], bool]:
        """Return the future of the value, and whether the caller must complete it."""
        with self._lock:
            if self._future is not None and (not self._future.done() or self._is_current()):
                return self._future, False
            self._began, self._future = time.monotonic(), Future()
            return self._future, True

    def _copy(self, done: asyncio.Future[T], future: Future[T]) -> None:
        if done.cancelled():
            self._fail(future, asyncio.CancelledError())
        elif (exc := done.exception()) is not None:
            self._fail(future, exc)
        else:
            future.set_result(done.result())

    def _fail(self, future: Future[T], exc: BaseException) -> None:
        with self._lock:
            if self._future is future:
                self._began = -math.inf
        future.set_exception(exc)
