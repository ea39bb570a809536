"""A TCP proxy in front of one address, which can cut, delay or block its connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

HOST = "127.0.0.1"
CHUNK = 64 * 1024
"""Size of each of the two buffers, read and write, of one direction of a connection."""
PATIENCE = 10.0
"""Time limit of a call to the proxy's thread."""

T = TypeVar("T")
Link = tuple[asyncio.StreamWriter, asyncio.StreamWriter | None]


class Proxy:
    """Forwards connections from a free port of the loopback interface to `address`, on its own thread.

    `delay`: seconds for each piece of data in each direction. Both may be changed at any time; a new
    `address` applies to new connections. If nothing listens at `address`, the caller gets an RST.

    >>> with Proxy(("127.0.0.1", 7379)) as proxy:     # doctest: +SKIP
    ...     client = redis.Redis(port=proxy.port)
    ...     proxy.blackhole(True)
    """

    def __init__(self, address: tuple[str, int], *, port: int = 0, delay: float = 0.0) -> None:
        self.address = address
        self.port = port
        self.delay = delay
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._links: dict[asyncio.Task[None], Link] = {}
        self._open = asyncio.Event()

    def start(self) -> Self:
        """Listen, and set `port`. OSError: the given port is taken."""
        listener = socket.socket()
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((HOST, self.port))
        except OSError:
            listener.close()
            raise
        self.port = listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._open.set()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy-{self.port}", daemon=True)
        self._thread.start()
        self._call(self._listen(listener))
        return self

    def close(self) -> None:
        """Close the port and every connection. It may be called twice."""
        if self._loop is None or self._thread is None:
            return
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()
        self._loop = self._thread = None

    def cut(self, *, reset: bool = False) -> int:
        """Close all connections, by RST if `reset`, else by FIN. Return their number. New ones are
        accepted.
        """
        return self._call(self._cut(reset))

    def blackhole(self, on: bool, *, forget: bool = True) -> None:
        """Drop all data silently, as a broken network does; or forward it again.

        Connections stay open and new ones are accepted, but no data gets through. When it ends, all
        connections are closed by RST, as by a router that has forgotten them. With `forget` false they
        continue, as TCP does after a short outage.
        """
        self._call(self._blackhole(on, forget))

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._links)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, what: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            what.close()
            raise RuntimeError("The proxy does not run")
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(PATIENCE)

    async def _listen(self, listener: socket.socket) -> None:
        self._server = await asyncio.start_server(self._serve, sock=listener, limit=CHUNK, backlog=512)

    async def _end(self) -> None:
        self._server.close()
        tasks = list(self._links)
        await self._cut(reset=True)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _cut(self, reset: bool) -> int:
        links = dict(self._links)
        for task, link in links.items():
            for writer in link:
                if writer is not None:
                    _close(writer, reset)
            task.cancel()
        return len(links)

    async def _blackhole(self, on: bool, forget: bool) -> None:
        if on:
            self._open.clear()
            return
        if forget and not self._open.is_set():
            await self._cut(reset=True)
        self._open.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links[task] = (writer, None)
        try:
            await self._open.wait()
            there, back = await asyncio.open_connection(*self.address, limit=CHUNK)
            self._links[task] = (writer, back)
            for end in writer, back:
                end.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                end.transport.set_write_buffer_limits(CHUNK)
            pumps = [asyncio.ensure_future(self._pump(*way)) for way in ((reader, back), (there, writer))]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:
            _close(writer, reset=True)
        except asyncio.CancelledError:
            pass
        finally:
            for left in self._links.pop(task):
                if left is not None:
                    _close(left, reset=False)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                await self._open.wait()
                if self.delay:
                    await asyncio.sleep(self.delay)
                writer.write(data)
                await writer.drain()
            await self._open.wait()  # a blackhole hides the end of the stream too


def _close(writer: asyncio.StreamWriter, reset: bool) -> None:
    if not reset:
        writer.close()
        return
    if not writer.is_closing():
        with contextlib.suppress(OSError):
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()
