"""The path of a streamed answer through a grid, without all that a grid does on it: the least that it takes.

As in gridq, a gateway on an event loop pushes the request into a list at the server, a worker pops it, sends
it to the endpoint and adds what comes back to a stream, which the gateway reads. Nothing is checked,
claimed, renewed or recorded, and only one request at a time is served.

`python -m benchmarks.bare_path worker URL PORT` and `… gateway URL` are the two programs; the gateway prints
its port.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httptools
import redis
import redis.asyncio
import uvloop

HOST = "127.0.0.1"
REQUESTS, PIECES = "bare:requests", "bare:pieces"
BLOCK_MS = 5000
LAST_CHUNK = b"0\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@contextmanager
def run_bare_path(server_url: str, upstream: int) -> Iterator[int]:
    """Run both programs on this server, in front of the endpoint on the port `upstream`. Yield the port of
    the gateway.
    """
    command = [sys.executable, "-m", "benchmarks.bare_path"]
    worker = subprocess.Popen([*command, "worker", server_url, str(upstream)])
    gateway = subprocess.Popen([*command, "gateway", server_url], stdout=subprocess.PIPE)
    try:
        assert gateway.stdout is not None
        yield int(gateway.stdout.readline())
    finally:
        for program in (gateway, worker):
            program.kill()
            program.wait()
        if gateway.stdout is not None:
            gateway.stdout.close()


def work(server_url: str, upstream: int) -> None:
    """Pop requests, send them, and add what the endpoint sends to the stream, until killed."""
    server, pieces = redis.Redis.from_url(server_url), redis.Redis.from_url(server_url)
    endpoint = socket.create_connection((HOST, upstream))
    endpoint.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while True:
        popped: Any = server.brpop([REQUESTS])
        body = popped[1]
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-length: {len(body)}\r\n\r\n"
        endpoint.sendall(head.encode() + body)
        data = b""
        while not data.endswith(LAST_CHUNK):
            data = endpoint.recv(65536)
            if data.startswith(b"HTTP/1.1 "):
                data = data.partition(b"\r\n\r\n")[2]
            pieces.xadd(PIECES, {"data": data})


class Connection(asyncio.Protocol):
    """A connection of the gateway, which serves one request after another."""

    def __init__(self, server: redis.asyncio.Redis) -> None:
        self._server = server
        self._answering: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._body = b""

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self._answering = asyncio.get_running_loop().create_task(self._answer())

    async def _answer(self) -> None:
        await self._server.delete(PIECES)
        await self._server.lpush(REQUESTS, self._body)
        self._transport.write(HEAD)
        last, data = b"0", b""
        while not data.endswith(LAST_CHUNK):
            found: Any = await self._server.xread({PIECES: last}, block=BLOCK_MS)
            for _, entries in found:
                for number, fields in entries:
                    last, data = number, fields[b"data"]
                    self._transport.write(data)


async def serve(server_url: str) -> None:
    """Serve until killed."""
    client = redis.asyncio.Redis.from_url(server_url)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(client), HOST, 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        work(sys.argv[2], int(sys.argv[3]))
    else:
        uvloop.run(serve(sys.argv[2]))
