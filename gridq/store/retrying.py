"""How long a command is tried again where its connection is lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from redis import exceptions as faults
from redis.asyncio import ConnectionPool
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import AbstractBackoff, ExponentialWithJitterBackoff, NoBackoff
from redis.retry import Retry

LOST = (faults.ConnectionError, faults.TimeoutError, faults.ReadOnlyError)
"""What a new connection may mend. A primary that has become a replica is left too: its name, or the
sentinels, may lead to the new one."""


class Patience:
    """Seconds, which all connections of a pool share though redis-py copies what holds them: they may be
    shortened while somebody is trying.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __deepcopy__(self, memo: object) -> Patience:
        return self


class Patient(Retry):
    """Tries a command again for `patience` seconds, and in any case once: a connection that was closed
    meanwhile shows it only when it is used.

    redis-py's own counts its tries, each of which may wait for a socket's whole time-out.
    """

    def __init__(self, patience: float) -> None:
        super().__init__(_backoff(patience), -1, LOST)
        self.patience = Patience(patience)

    def call_with_retry(
        self, do: Any, fail: Any, is_retryable: Any = None, with_failure_count: bool = False
    ) -> Any:
        again = is_retryable or _judge(self.patience, command=with_failure_count)
        return super().call_with_retry(do, fail, again, with_failure_count)


class AsyncPatient(AsyncRetry):
    """The same for asyncio."""

    def __init__(self, patience: float) -> None:
        super().__init__(_backoff(patience), -1, LOST)
        self.patience = Patience(patience)

    async def call_with_retry(
        self, do: Any, fail: Any, is_retryable: Any = None, with_failure_count: bool = False
    ) -> Any:
        again = is_retryable or _judge(self.patience, command=with_failure_count)
        return await super().call_with_retry(do, fail, again, with_failure_count)


class _Told:
    """A connection of asyncio that tells its loss as one. Where the other end has closed it uvloop raises a
    RuntimeError at the next write, which redis-py takes for no fault of the connection and passes on.
    """

    async def _send_packed_command(self, command: Iterable[bytes]) -> None:
        try:
            await super()._send_packed_command(command)  # type: ignore[misc]
        except RuntimeError as exc:
            raise ConnectionResetError(str(exc)) from exc


def tell_losses(pool: ConnectionPool) -> ConnectionPool:
    """`pool`, whose connections are lost in the same way on every kind of loop."""
    kind: Any = pool.connection_class
    pool.connection_class = type(kind.__name__, (_Told, kind), {})
    return pool


def _backoff(patience: float) -> AbstractBackoff:
    return ExponentialWithJitterBackoff(cap=1.0, base=0.05) if patience else NoBackoff()


def _judge(patience: Patience, *, command: bool) -> Callable[[Exception], bool]:
    """Whether to try again after a fault. redis-py counts the failures of a command's tries, not of those to
    connect within them: these get no second try of their own where time is up.
    """
    began = time.monotonic()
    once_more = command

    def again(exc: Exception) -> bool:
        nonlocal once_more
        # A wrong password stays wrong: redis-py counts it as a connection error and would go on asking.
        if isinstance(exc, (faults.AuthenticationError, faults.AuthorizationError)):
            return False
        first, once_more = once_more, False
        return first or time.monotonic() - began < patience.seconds

    return again
