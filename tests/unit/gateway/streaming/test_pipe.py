"""One connection on which many ask at once, on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop
from redis.exceptions import ConnectionError, ResponseError

from gridq.gateway.streaming.pipe import Pipe
from gridq.store.connection import connect_async
from tests.conftest import GridEnv
from workers.supervisor.embedded_server import EmbeddedServer


def run_pipe(
    url: str,
    act: Callable[[Pipe], Awaitable[None]],
    new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> None:
    async def run() -> None:
        pipe = Pipe(connect_async(url, name="pipe", retry=False))
        try:
            async with asyncio.timeout(20):
                await act(pipe)
        finally:
            await pipe.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())


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


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_connection_that_was_lost_while_idle_fails_its_next_caller_alone(
    grid_env: GridEnv, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def act(pipe: Pipe) -> None:
        number = (await pipe.execute(("CLIENT", "ID")))[0]
        grid_env.client.client_kill_filter(_id=str(number))
        await asyncio.sleep(0.1)
        with pytest.raises(ConnectionError):
            await pipe.execute(("ECHO", "x"))
        assert await pipe.execute(("ECHO", "y")) == [b"y"]

    run_pipe(grid_env.url, act, new_loop)


def test_a_command_that_cannot_be_encoded_fails_only_for_its_caller(grid_env: GridEnv) -> None:
    async def act(pipe: Pipe) -> None:
        good = asyncio.ensure_future(pipe.execute(("ECHO", "a")))
        with pytest.raises(UnicodeEncodeError):
            await pipe.execute(("ECHO", "\ud800"))
        assert await good == [b"a"]
        assert await pipe.execute(("ECHO", "b")) == [b"b"]

    run_pipe(grid_env.url, act)


def test_what_is_sent_while_a_reply_is_awaited_is_answered_in_order(grid_env: GridEnv) -> None:
    async def act(pipe: Pipe) -> None:
        key = f"{grid_env.prefix}later"
        waiting = pipe.send(("BLPOP", key, 30))
        await asyncio.sleep(0.05)
        behind = [pipe.send(("ECHO", str(number))) for number in range(3)]
        await asyncio.sleep(0.05)
        assert not any(each.future.done() for each in behind)
        grid_env.client.rpush(key, "value")
        await asyncio.gather(waiting.future, *(each.future for each in behind))
        assert [each.replies for each in behind] == [[b"0"], [b"1"], [b"2"]]

    run_pipe(grid_env.url, act)


def test_each_of_several_callers_that_come_at_once_to_an_idle_pipe_is_answered(grid_env: GridEnv) -> None:
    """The first is written at once. Nobody else may come after the last for a long time."""

    async def act(pipe: Pipe) -> None:
        for callers in (1, 2, 3):
            replies = await asyncio.gather(*(pipe.execute(("ECHO", str(each))) for each in range(callers)))
            assert replies == [[str(each).encode()] for each in range(callers)]
            await asyncio.sleep(0.05)

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
