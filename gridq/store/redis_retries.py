"""Repeat a command for a time if its connection is lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from redis import exceptions as faults
from redis.asyncio import ConnectionPool
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import AbstractBackoff, ExponentialWithJitterBackoff, NoBackoff
from redis.retry import Retry

RETRYABLE = (faults.ConnectionError, faults.TimeoutError, faults.ReadOnlyError)
"""Errors that a new connection may fix. A primary that has become a replica is left too: its name, or the
sentinels, may lead to the new one."""


class RetryTime:
    """Seconds that all connections of a pool share, though redis-py copies what holds them.

    They may be shortened while a command is being repeated.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __deepcopy__(self, memo: object) -> RetryTime:
        return self


class TimedRetry(Retry):
    """Repeats a command for `retry_seconds`, and at least once: a connection that was closed shows it only
    when it is used.

    redis-py's own retry counts tries, each of which may wait for a socket's whole timeout.
    """

    def __init__(self, retry_seconds: float) -> None:
        super().__init__(_backoff(retry_seconds), -1, RETRYABLE)
        self.retry_seconds = RetryTime(retry_seconds)

    def call_with_retry(
        self, do: Any, fail: Any, is_retryable: Any = None, with_failure_count: bool = False
    ) -> Any:
        again = is_retryable or _build_condition(self.retry_seconds, command=with_failure_count)
        return super().call_with_retry(do, fail, again, with_failure_count)


class AsyncTimedRetry(AsyncRetry):
    """The same for asyncio."""

    def __init__(self, retry_seconds: float) -> None:
        super().__init__(_backoff(retry_seconds), -1, RETRYABLE)
        self.retry_seconds = RetryTime(retry_seconds)

    async def call_with_retry(
        self, do: Any, fail: Any, is_retryable: Any = None, with_failure_count: bool = False
    ) -> Any:
        again = is_retryable or _build_condition(self.retry_seconds, command=with_failure_count)
        return await super().call_with_retry(do, fail, again, with_failure_count)


class _ReportsLoss:
    """A connection of asyncio that reports its loss as one.

    If the other end has closed it, uvloop raises a RuntimeError at the next write, which redis-py does not
    take for a fault of the connection.
    """

    async def _send_packed_command(self, command: Iterable[bytes]) -> None:
        try:
            await super()._send_packed_command(command)  # type: ignore[misc]
        except RuntimeError as exc:
            raise ConnectionResetError(str(exc)) from exc


def report_losses(pool: ConnectionPool) -> ConnectionPool:
    """Return `pool`, with connections that are lost in the same way on every kind of loop."""
    kind: Any = pool.connection_class
    pool.connection_class = type(kind.__name__, (_ReportsLoss, kind), {})
    return pool


def _backoff(retry_seconds: float) -> AbstractBackoff:
    return ExponentialWithJitterBackoff(cap=1.0, base=0.05) if retry_seconds else NoBackoff()


def _build_condition(retry_seconds: RetryTime, *, command: bool) -> Callable[[Exception], bool]:
    """Return whether to repeat a command after an error.

    redis-py counts the failures of a command, not those to connect within it: these get no second try of
    their own once the time is up.
    """
    began = time.monotonic()
    once_more = command

    def again(exc: Exception) -> bool:
        nonlocal once_more
        # A wrong password stays wrong, but redis-py counts it as a connection error.
        if isinstance(exc, (faults.AuthenticationError, faults.AuthorizationError)):
            return False
        first, once_more = once_more, False
        return first or time.monotonic() - began < retry_seconds.seconds

    return again
