"""One connection on which many ask at once, on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.exceptions import ConnectionError, ResponseError

from gridq.gateway.streaming.pipe import Pipe
from gridq.store.connection import connect_async
from tests.conftest import GridEnv
from workers.supervisor.embedded_server import EmbeddedServer


def run_pipe(url: str, act: Callable[[Pipe], Awaitable[None]]) -> None:
    async def run() -> None:
        pipe = Pipe(connect_async(url, name="pipe", retry=False))
        try:
            async with asyncio.timeout(20):
                await act(pipe)
        finally:
            await pipe.close()

    asyncio.run(run())


def test_each_caller_gets_its_own_replies(grid_env: GridEnv) -> None:
    async def act(pipe: Pipe) -> None:
        async def execute(number: int) -> list[Any]:
            return await pipe.execute(*[("ECHO", f"{number} {part}") for part in range(number % 3 + 1)])

        replies = await asyncio.gather(*map(execute, range(500)))
        for number, found in enumerate(replies):
            assert found == [f"{number} {part}".encode() for part in range(number % 3 + 1)]
        clients = await pipe.execute(("CLIENT", "LIST"))
        assert clients[0].count(b"name=pipe ") == 1

    run_pipe(grid_env.url, act)


def test_a_refused_command_fails_only_for_its_caller(grid_env: GridEnv) -> None:
    async def act(pipe: Pipe) -> None:
        good = asyncio.ensure_future(pipe.execute(("ECHO", "a")))
        bad = asyncio.ensure_future(pipe.execute(("ECHO", "b"), ("EVALSHA", "0" * 40, 0), ("ECHO", "c")))
        after = asyncio.ensure_future(pipe.execute(("ECHO", "d")))
        assert (await good, await after) == ([b"a"], [b"d"])
        with pytest.raises(ResponseError):
            await bad

    run_pipe(grid_env.url, act)


def test_a_cancelled_caller_does_not_shift_replies(grid_env: GridEnv) -> None:
    async def act(pipe: Pipe) -> None:
        requests = [asyncio.ensure_future(pipe.execute(("ECHO", str(number)))) for number in range(50)]
        await asyncio.sleep(0)
        for each in requests[::2]:
            each.cancel()
        replies = await asyncio.gather(*requests, return_exceptions=True)
        assert [reply for reply in replies if not isinstance(reply, BaseException)] == [
            [str(number).encode()] for number in range(1, 50, 2)
        ]

    run_pipe(grid_env.url, act)


def test_a_lost_connection_fails_pending_callers_and_reconnects(grid_env: GridEnv) -> None:
    async def act(pipe: Pipe) -> None:
        number = (await pipe.execute(("CLIENT", "ID")))[0]
        waiting = asyncio.ensure_future(pipe.execute(("BLPOP", f"{grid_env.prefix}none", 30)))
        await asyncio.sleep(0.1)
        behind = asyncio.ensure_future(pipe.execute(("ECHO", "x")))
        await asyncio.sleep(0.1)
        grid_env.client.client_kill_filter(_id=str(number))
        for each in (waiting, behind):
            with pytest.raises(ConnectionError):
                await each
        assert await pipe.execute(("ECHO", "y")) == [b"y"]

    run_pipe(grid_env.url, act)


def test_an_unreachable_server_fails_at_once() -> None:
    async def act(pipe: Pipe) -> None:
        for _ in range(3):
            with pytest.raises(ConnectionError):
                await pipe.execute(("PING",))

    with EmbeddedServer() as server:
        url = server.url
    run_pipe(url, act)


def test_a_closed_pipe_refuses_commands(grid_env: GridEnv) -> None:
    async def act(pipe: Pipe) -> None:
        await pipe.execute(("PING",))
        waiting = asyncio.ensure_future(pipe.execute(("BLPOP", f"{grid_env.prefix}none", 30)))
        await asyncio.sleep(0.05)
        await pipe.close()
        with pytest.raises(ConnectionError):
            await waiting
        with pytest.raises(ConnectionError):
            await pipe.execute(("PING",))

    run_pipe(grid_env.url, act)
