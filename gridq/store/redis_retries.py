"""Repeat a command for a time if its connection is lost, or if the server cannot carry it out for now."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from redis import exceptions as faults
from redis.asyncio import ConnectionPool
from redis.asyncio.connection import DefaultParser as AsyncDefaultParser
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import AbstractBackoff, ExponentialWithJitterBackoff, NoBackoff
from redis.connection import DefaultParser
from redis.retry import Retry

RETRYABLE = (faults.ConnectionError, faults.TimeoutError)
"""Errors that a new connection, or time, may fix."""


class ServerNotReady(faults.ConnectionError):
    """The server answers, but cannot carry out such a command for now; `status_code` says why.

    It is a ConnectionError, so that whoever outlasts a server that is away outlasts this too: redis-py,
    kombu and Celery included.
    """


class NowReplica(ServerNotReady, faults.ReadOnlyError):
    """The server is a replica, or has become one: its name, or the sentinels, may lead to the primary."""


NOT_READY: dict[str, type[ServerNotReady]] = {
    "BUSY": ServerNotReady,  # a script or function has run for longer than busy-reply-threshold
    "MISCONF": ServerNotReady,  # it cannot write its data to disk
    "NOREPLICAS": ServerNotReady,  # fewer replicas than min-replicas-to-write are connected
    "MASTERDOWN": ServerNotReady,  # a replica without its primary
    "READONLY": NowReplica,
}
"""The first words of Redis's and Valkey's error replies that pass by themselves or once an operator acts.
redis-py itself knows LOADING, and takes the others for errors of the command. Those of a cluster stay so:
gridq refuses one."""


class ReplyParser(DefaultParser):  # type: ignore[misc, valid-type]
    """Reads replies. Connections of redis-py, kombu and Celery take it as `parser_class`."""

    EXCEPTION_CLASSES: ClassVar[dict[str, Any]] = {**DefaultParser.EXCEPTION_CLASSES, **NOT_READY}


class AsyncReplyParser(AsyncDefaultParser):  # type: ignore[misc, valid-type]
    """The same for asyncio."""

    EXCEPTION_CLASSES: ClassVar[dict[str, Any]] = {**AsyncDefaultParser.EXCEPTION_CLASSES, **NOT_READY}


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

    _writer: Any

    def write_now(self, packed: bytes) -> None:
        """Write packed commands without waiting for the server to take them; whoever reads the reply does.

        redis-py makes a task and a timer for each write. Raises ConnectionResetError.
        """
        try:
            self._writer.write(packed)
        except RuntimeError as exc:
            raise ConnectionResetError(str(exc)) from exc

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
