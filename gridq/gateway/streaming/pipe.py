"""One Redis connection that pipelines the commands of many callers.

Commands are sent at once; those that are queued while a reply is awaited go together. Replies come back in
order. redis-py would use a connection, a timer, a task and a pool access for each call, so what a gateway
needs for every request goes here.

This is the fast path only. After a lost connection callers repeat their commands on an ordinary connection,
so send only commands that are safe to repeat.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import redis.asyncio
from hiredis import pack_command
from redis.exceptions import ConnectionError, RedisError, ResponseError

from gridq.gateway.streaming.cancellation import cancel

log = logging.getLogger(__name__)

Command = tuple[Any, ...]


class PendingCommands:
    """The commands of one caller, their replies, and a future that is done with the last reply.

    The reply to a refused command is its ResponseError. `future` raises ConnectionError if the connection
    is lost; then it is unknown whether the commands ran.
    """

    __slots__ = ("count", "future", "packed", "replies")

    def __init__(self, commands: tuple[Command, ...], future: asyncio.Future[None]) -> None:
        self.packed = b"".join(map(pack_command, commands))
        self.count = len(commands)
        self.replies: list[Any] = []
        self.future = future

    def finish(self, fault: Exception | None = None) -> None:
        """Complete the future."""
        if self.future.done():  # the caller was cancelled
            return
        if fault is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(fault)


class Pipe:
    """The connection, opened with the first command and closed with the pipe. Use it on one event loop."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client
        self._queued: list[PendingCommands] = []
        self._sent: list[PendingCommands] = []
        self._connection: Any = None
        self._queue_changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def send(self, *commands: Command) -> PendingCommands:
        """Send commands together, without waiting for the replies. Raises ConnectionError if the pipe is
        closed.
        """
        if self._closed:
            raise ConnectionError("the pipe is closed")
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="pipe")
        pending = PendingCommands(commands, asyncio.get_running_loop().create_future())
        self._queued.append(pending)
        if self._connection is not None and not self._sent:
            self._write_queued()
        self._queue_changed.set()
        return pending

    async def execute(self, *commands: Command) -> list[Any]:
        """Send commands and return their replies.

        Raises ResponseError if one is refused, ConnectionError if the connection is lost.
        """
        pending = self.send(*commands)
        await pending.future
        for reply in pending.replies:
            if isinstance(reply, ResponseError):
                raise reply
        return pending.replies

    async def close(self) -> None:
        """Close the connection. Pending callers get a ConnectionError."""
        self._closed = True
        if self._task is not None:
            await cancel(self._task)
        self._fail_all("the pipe is closed")
        await self._client.aclose()

    async def _run(self) -> None:
        pool = self._client.connection_pool
        while True:
            await self._queue_changed.wait()
            try:
                connection = await pool.get_connection()  # type: ignore[no-untyped-call]
                try:
                    self._connection = connection
                    while True:
                        await self._exchange(connection)
                finally:
                    self._connection = None
                    await connection.disconnect(nowait=True)
                    await pool.release(connection)
            except Exception as exc:  # whatever it is, no caller may wait for a reply that will not come
                if not isinstance(exc, RedisError | OSError):
                    log.exception("the pipelined connection failed; reconnecting")
                self._fail_all(str(exc))

    async def _exchange(self, connection: Any) -> None:
        """Hand out the replies to the commands that were sent; send those that are queued."""
        while not (self._sent or self._queued):
            await self._queue_changed.wait()
            self._queue_changed.clear()
        if not self._sent:
            self._write_queued()
        for pending in self._sent:
            for _ in range(pending.count):
                try:
                    pending.replies.append(await connection.read_response())
                except ResponseError as exc:
                    pending.replies.append(exc)
            pending.finish()
        self._sent = []

    def _write_queued(self) -> None:
        self._sent, self._queued = self._queued, []
        with contextlib.suppress(OSError):  # the connection is lost, as reading from it will show
            self._connection.write_now(b"".join([pending.packed for pending in self._sent]))

    def _fail_all(self, why: str) -> None:
        failed, self._sent, self._queued = [*self._sent, *self._queued], [], []
        self._queue_changed.clear()
        for pending in failed:
            pending.finish(ConnectionError(why))
