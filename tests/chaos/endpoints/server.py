"""Run the endpoints: `python -m tests.chaos.endpoints.server FILE ENDPOINTS SECONDS`.

ENDPOINTS is JSON: the API format of each endpoint by name. A healthy answer takes SECONDS. The first line of
output is JSON: the port of each. Then each line of input, `{"endpoint", "mode", "how"}`, changes one
endpoint. The process ends with its input.

A line goes to FILE before the first byte of an answer is sent, and one after the last; see `calls`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import socket
import struct
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.endpoints.calls import (
    MODEL,
    Call,
    CallOutcome,
    draw_usage,
    make_answer,
    parse_system_text,
)
from tests.fakes.vendor_apis import ANSWERS, STREAMS, ProtocolModel, refusal

HOST = "127.0.0.1"
HEALTHY = "healthy"
MODES = {
    HEALTHY: ("",),
    "dead": ("",),
    "refusing": ("401", "403", "404", "405", "409", "425", "429", "503", "529"),
    "slow": ("late", "drip"),
    "flapping": ("503", "reset", "body"),
    "half-open": ("silent", "head", "body", "stream", "reset"),
}
"""Mode → how it fails.

`dead`: nothing listens. `refusing`: each call gets this status at once. `slow`: answers come late, or piece
by piece. `flapping`: each second call is answered, the others get the status or are cut as in half-open.
`half-open`: calls are accepted and then nothing comes (`silent`), or the connection closes in the middle of
the head, of the body or of a stream, or is reset.
"""

LATE_SECONDS = 1.5
DRIP_SECONDS = 0.25
"""The pause after each event of a stream, and after each half of another answer."""
RETRY_AFTER_SECONDS = 1
MAX_HEAD_BYTES = 64 * 1024
REASONS = {200: "OK", 429: "Too Many Requests"}


@dataclass
class Endpoint:
    """One endpoint: its address, its present mode, and its open connections."""

    name: str
    api: ProtocolModel
    port: int = 0
    mode: str = HEALTHY
    how: str = ""
    calls: int = 0
    """Number of calls since the mode was set."""
    server: asyncio.Server | None = None
    connections: set[asyncio.StreamWriter] = field(default_factory=set)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the mode changes; calls that are kept silent end then."""


class Cut(Exception):
    """The endpoint closes the connection now; by a reset if `reset`."""

    def __init__(self, *, reset: bool = False) -> None:
        self.reset = reset


class Endpoints:
    """All endpoints of one process, and their file."""

    def __init__(self, file: str, apis: dict[str, ProtocolModel], seconds: float) -> None:
        self._seconds = seconds
        self.all = {name: Endpoint(name, api) for name, api in apis.items()}
        self._file = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._serials = itertools.count(1)

    async def listen(self, endpoint: Endpoint) -> None:
        """Listen on the endpoint's port; the first time on a free one."""
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, endpoint.port))
        endpoint.port = listener.getsockname()[1]

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(endpoint, reader, writer)

        endpoint.server = await asyncio.start_server(serve, sock=listener, limit=MAX_HEAD_BYTES, backlog=512)

    async def set_mode(self, endpoint: Endpoint, mode: str, how: str) -> None:
        """Change an endpoint. When it dies, or was half-open, its connections are reset."""
        before = endpoint.mode
        endpoint.mode, endpoint.how, endpoint.calls = mode, how, 0
        endpoint.changed.set()
        endpoint.changed = asyncio.Event()
        if mode == "dead" and endpoint.server is not None:
            endpoint.server.close()
            endpoint.server = None
        elif mode != "dead" and endpoint.server is None:
            await self.listen(endpoint)
        if "dead" in (mode, before) or before == "half-open":
            for writer in list(endpoint.connections):
                _reset(writer)

    def note(self, **fields: Any) -> None:
        """Add a line to the file."""
        os.write(self._file, (json.dumps(fields, separators=(",", ":")) + "\n").encode("ascii"))

    # -- calls

    async def _serve(
        self, endpoint: Endpoint, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        endpoint.connections.add(writer)
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while await self._answer_next(endpoint, reader, writer):
                pass
        except Cut as exc:
            if exc.reset:
                _reset(writer)
        except (OSError, asyncio.IncompleteReadError):  # its client has gone
            pass
        finally:
            endpoint.connections.discard(writer)
            writer.close()

    async def _answer_next(
        self, endpoint: Endpoint, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer the next request of a connection. Return False at its end."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except asyncio.IncompleteReadError:
            return False
        first, *lines = head.split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
        method, path, _ = first.split(" ")
        if method == "GET":
            await _send(writer, 200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})
            return True
        await self._answer(endpoint, path, json.loads(raw), reader, writer)
        return True

    async def _answer(
        self,
        endpoint: Endpoint,
        path: str,
        body: dict[str, Any],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        source, stage, prompt = _parse_call(endpoint.api, body)
        mode, how = _choose_failure(endpoint)
        streamed = bool(body.get("stream"))
        outcome: CallOutcome = "answered"
        if mode == "refusing":
            outcome = "refused"
        elif mode == "half-open":
            outcome = "silent" if how == "silent" else "cut" if how in ("body", "stream") else "refused"
        serial = next(self._serials)
        call = Call(serial, endpoint.name, source, stage, outcome, _now_ms())
        self.note(**{name: getattr(call, name) for name in call.__slots__})
        complete = False
        try:
            if mode == "refusing":
                status = int(how)
                more = {"Retry-After": str(RETRY_AFTER_SECONDS)} if status == 429 else {}
                await _send(writer, status, refusal(endpoint.api, status), more)
            elif mode == "half-open" and how in ("silent", "head", "reset"):
                await self._break(endpoint, how, reader, writer)
            else:
                await asyncio.sleep(LATE_SECONDS if mode == "slow" and how == "late" else self._seconds)
                text, used = make_answer(stage, prompt), draw_usage(serial)
                cut = outcome == "cut"
                pause = DRIP_SECONDS if mode == "slow" and how == "drip" else 0.0
                if streamed:
                    await _send_stream(writer, list(STREAMS[endpoint.api](text, used)), pause, cut=cut)
                else:
                    data = json.dumps(ANSWERS[endpoint.api](text, used, None)).encode()
                    await _send_halves(writer, data, pause, cut=cut)
            complete = True
        finally:
            self.note(serial=serial, ended=_now_ms(), complete=complete)

    async def _break(
        self, endpoint: Endpoint, how: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer nothing until the mode changes or the client has gone, or break off in the head."""
        if how == "silent":
            ends = [asyncio.ensure_future(reader.read(1)), asyncio.ensure_future(endpoint.changed.wait())]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for each in ends:
                each.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
        elif how == "head":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Ty")
            await writer.drain()
        raise Cut(reset=how == "reset")


def _choose_failure(endpoint: Endpoint) -> tuple[str, str]:
    """Return how the endpoint treats its next call: a mode without `flapping`, and its `how`."""
    endpoint.calls += 1
    if endpoint.mode != "flapping":
        return endpoint.mode, endpoint.how
    if endpoint.calls % 2 == 0:
        return HEALTHY, ""
    return ("refusing" if endpoint.how.isdigit() else "half-open"), endpoint.how


def _parse_call(api: ProtocolModel, body: dict[str, Any]) -> tuple[str, str, str]:
    """Return the source, the stage and the prompt of a call."""
    messages = body["messages"]
    system = body["system"] if api == "anthropic" else messages[0]["content"]
    return *parse_system_text(_get_text(system)), _get_text(messages[-1]["content"])


def _get_text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


# -- bytes


def _make_head(status: int, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Status')}"]
    return "\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers.items()), "", ""]).encode()


async def _send(
    writer: asyncio.StreamWriter, status: int, value: Any, more: dict[str, str] | None = None
) -> None:
    data = json.dumps(value).encode()
    headers = {"Content-Type": "application/json", "Content-Length": str(len(data)), **(more or {})}
    writer.write(_make_head(status, headers) + data)
    await writer.drain()


async def _send_halves(writer: asyncio.StreamWriter, data: bytes, pause: float, *, cut: bool) -> None:
    """Send a whole answer in two halves; if it is cut, only the first."""
    half = len(data) // 2
    headers = {"Content-Type": "application/json", "Content-Length": str(len(data))}
    writer.write(_make_head(200, headers) + data[:half])
    await writer.drain()
    if cut:
        raise Cut
    await asyncio.sleep(pause)
    writer.write(data[half:])
    await writer.drain()


async def _send_stream(writer: asyncio.StreamWriter, events: list[str], pause: float, *, cut: bool) -> None:
    """Send the events of a stream; if it is cut, only the first half."""
    headers = {"Content-Type": "text/event-stream; charset=utf-8", "Transfer-Encoding": "chunked"}
    writer.write(_make_head(200, headers))
    for event in events[: len(events) // 2] if cut else events:
        data = event.encode()
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await writer.drain()
        await asyncio.sleep(pause)
    if cut:
        raise Cut
    writer.write(b"0\r\n\r\n")
    await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    if not writer.is_closing():
        with contextlib.suppress(OSError):
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


async def run(file: str, apis: dict[str, ProtocolModel], seconds: float) -> None:
    """Serve until the end of the input."""
    endpoints = Endpoints(file, apis, seconds)
    for endpoint in endpoints.all.values():
        await endpoints.listen(endpoint)
    print(json.dumps({each.name: each.port for each in endpoints.all.values()}), flush=True)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while line := await reader.readline():
        order = json.loads(line)
        await endpoints.set_mode(endpoints.all[order["endpoint"]], order["mode"], order["how"])
        print(json.dumps(order), flush=True)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3])))
