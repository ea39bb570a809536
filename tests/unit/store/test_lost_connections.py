"""A lost connection of asyncio is made again, on whichever kind of loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from gridq.store.connection import connect_async
from tests.chaos.proxy import Proxy
from workers.supervisor.embedded_server import EmbeddedServer


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("reset", [True, False])
def test_a_closed_connection_is_reopened(
    server: EmbeddedServer, loop: Callable[[], asyncio.AbstractEventLoop], reset: bool
) -> None:
    async def scene(url: str, proxy: Proxy) -> list[object]:
        client = connect_async(url)
        found: list[object] = []
        for _ in range(5):
            found.append(await client.ping())
            proxy.cut(reset=reset)
            await asyncio.sleep(0.02)  # the loop hears of it, and so does the connection's transport
        await client.aclose()
        return found

    with Proxy(("127.0.0.1", server.port)) as proxy, asyncio.Runner(loop_factory=loop) as runner:
        url = server.url.replace(f":{server.port}/", f":{proxy.port}/")
        assert runner.run(scene(url, proxy)) == [True] * 5
