"""One connection on which many ask at once: what was asked meanwhile goes out together, and the replies come
back in their order.

redis-py has a connection for each caller, and a timer, a task and a look at the pool for each call. What a
gateway asks for every request it asks here. It is the quick way alone: who hears that the connection was lost
asks again by a patient one, so what is sent here must be harmless to repeat.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import redis.asyncio
from redis.exceptions import ConnectionError, RedisError, ResponseError

from gridq.gateway.streaming.cancellation import cancel

log = logging.getLogger(__name__)

Command = tuple[Any, ...]


class PendingCommands:
    """Commands of one caller, their replies, and the future that is done with the last of them. Of a command
    that was refused the reply is its ResponseError; `answered` raises ConnectionError where the connection
    was lost, and whether they were done is not known.
    """

    __slots__ = ("answered", "commands", "replies")

    def __init__(self, commands: tuple[Command, ...], answered: asyncio.Future[None]) -> None:
        self.commands = commands
        self.replies: list[Any] = []
        self.answered = answered

    def end(self, fault: Exception | None = None) -> None:
        """Let its caller go on."""
        if self.answered.done():  # the caller has gone
            return
        if fault is None:
            self.answered.set_result(None)
        else:
            self.answered.set_exception(fault)


class Pipe:
    """The connection, opened with the first question and closed with the pipe. For one loop."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client
        self._waiting: list[PendingCommands] = []
        self._sent: list[PendingCommands] = []
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def send(self, *commands: Command) -> PendingCommands:
        """Send commands, together; `ask` for who waits at once. ConnectionError: the pipe is closed."""
        if self._closed:
            raise ConnectionError("the pipe is closed")
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="pipe")
        asked = PendingCommands(commands, asyncio.get_running_loop().create_future())
        self._waiting.append(asked)
        self._news.set()
        return asked

    async def ask(self, *commands: Command) -> list[Any]:
        """The replies to `commands`. ResponseError: one was refused. ConnectionError: the connection was
        lost.
        """
        asked = self.send(*commands)
        await asked.answered
        for reply in asked.replies:
            if isinstance(reply, ResponseError):
                raise reply
        return asked.replies

    async def close(self) -> None:
        """End the connection; who waits hears that it is lost."""
        self._closed = True
        if self._task is not None:
            await cancel(self._task)
        self._lose("the pipe is closed")
        await self._client.aclose()

    async def _run(self) -> None:
        pool = self._client.connection_pool
        while True:
            await self._news.wait()
            try:
                connection = await pool.get_connection()  # type: ignore[no-untyped-call]
                try:
                    while True:
                        await self._exchange(connection)
                finally:
                    await connection.disconnect(nowait=True)
                    await pool.release(connection)
            except Exception as exc:  # whatever it is: nobody may wait for a reply that will not come
                if not isinstance(exc, RedisError | OSError):
                    log.exception("the connection for quick questions begins anew")
                self._lose(str(exc))

    async def _exchange(self, connection: Any) -> None:
        """Send what waits, and hand out the replies."""
        await self._news.wait()
        self._news.clear()
        self._sent, self._waiting = self._waiting, []
        commands = [command for asked in self._sent for command in asked.commands]
        await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
        for asked in self._sent:
            for _ in asked.commands:
                try:
                    asked.replies.append(await connection.read_response())
                except ResponseError as exc:
                    asked.replies.append(exc)
            asked.end()
        self._sent = []

    def _lose(self, why: str) -> None:
        lost, self._sent, self._waiting = [*self._sent, *self._waiting], [], []
        self._news.clear()
        for asked in lost:
            asked.end(ConnectionError(why))
