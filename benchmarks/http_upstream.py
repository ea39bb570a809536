"""Serve an OpenAI-compatible endpoint that answers at once, so that only the path to it is measured.

`python -m benchmarks.http_upstream` prints its port and stops at the end of its standard input. The last
message of a chat selects the answer:

| message | answer |
|---|---|
| `paced 60 5` | 60 tokens, 5 a second |
| `paced 60 5 40` | the same, each of 40 characters |
| `barrier 200 7 2000` | 2,000 characters that begin with `7`, once 200 such requests are open |
| any other | 8 tokens at once |

Each token of a streamed answer begins with the time it was sent, in seconds of this machine's monotonic
clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httptools
import uvloop

TOKENS = 8
_ABOUT = {"id": "chatcmpl-bench", "created": 1_700_000_000, "model": "bench"}
_USAGE = {"prompt_tokens": 60, "completion_tokens": TOKENS, "total_tokens": 60 + TOKENS}


def _encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _make_response(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


def _make_answer(content: str) -> bytes:
    message = {"role": "assistant", "content": content}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return _make_response(
        _encode({**_ABOUT, "object": "chat.completion", "choices": [choice], "usage": _USAGE})
    )


DEFAULT_ANSWER = _make_answer("It is as it was said to be.")
MODELS = _make_response(_encode({"object": "list", "data": [{"id": "bench", "object": "model"}]}))
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


def _make_event(data: bytes) -> bytes:
    text = b"data: " + data + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(text), text)


def _make_chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    return _make_event(_encode({**_ABOUT, "object": "chat.completion.chunk", "choices": choices, **more}))


def _make_token(length: int) -> bytes:
    return _make_chunk({"role": "assistant", "content": f"{time.monotonic():.6f} ".ljust(length, "x")})


def _make_end(usage: bool) -> bytes:
    last = _make_event(
        _encode({**_ABOUT, "object": "chat.completion.chunk", "choices": [], "usage": _USAGE}),
    )
    return _make_chunk({}, "stop") + (last if usage else b"") + _make_event(b"[DONE]") + LAST


def parse_pace(text: str) -> tuple[int, float, int]:
    """Return the number of tokens that a message requests, the seconds between two, and their length."""
    words = text.split()
    if words[:1] != ["paced"]:
        return TOKENS, 0.0, 0
    return int(words[1]), 1 / float(words[2]), int(words[3]) if words[3:] else 0


class Barrier:
    """Answers that are sent together once enough requests are open."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Any, bytes]] = []

    def add(self, connection: Connection, text: str) -> None:
        """Add a request, and send all answers if it was the last one."""
        _, wanted, number, length = text.split()
        self._waiting.append((connection.transport, _make_answer(f"{number} ".ljust(int(length), "x"))))
        if len(self._waiting) == int(wanted):
            waiting, self._waiting = self._waiting, []
            for transport, answer in waiting:
                transport.write(answer)


BARRIER = Barrier()


class Connection(asyncio.Protocol):
    """One connection, which answers one request after another."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.parser = httptools.HttpRequestParser(self)
        self.body = b""
        self.url = b""
        self.timer: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.timer is not None:
            self.timer.cancel()

    def on_message_begin(self) -> None:
        self.body = self.url = b""

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        if not self.body:
            self.transport.write(MODELS)
            return
        request = json.loads(self.body)
        content = request["messages"][-1]["content"]
        text = content if isinstance(content, str) else content[0]["text"]
        if not request.get("stream"):
            if text.startswith("barrier "):
                BARRIER.add(self, text)
            else:
                self.transport.write(DEFAULT_ANSWER)
            return
        usage = bool((request.get("stream_options") or {}).get("include_usage"))
        tokens, interval, length = parse_pace(text)
        if not interval:
            self.transport.write(
                HEAD + b"".join(_make_token(length) for _ in range(tokens)) + _make_end(usage)
            )
            return
        self.transport.write(HEAD)
        self._tick(tokens, interval, length, usage, asyncio.get_running_loop().time())

    def _tick(self, left: int, interval: float, length: int, usage: bool, due: float) -> None:
        if not left:
            self.transport.write(_make_end(usage))
            return
        self.transport.write(_make_token(length))
        loop = asyncio.get_running_loop()
        self.timer = loop.call_at(
            due + interval, self._tick, left - 1, interval, length, usage, due + interval
        )


async def serve(tls: ssl.SSLContext | None = None) -> None:
    """Serve until the end of standard input."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Connection, "127.0.0.1", 0, backlog=1024, ssl=tls)
    print(server.sockets[0].getsockname()[1], flush=True)
    with contextlib.suppress(asyncio.CancelledError):
        await loop.run_in_executor(None, sys.stdin.buffer.read)
    server.close()


@contextmanager
def run_upstream(tls: Sequence[Path] = ()) -> Iterator[tuple[int, int]]:
    """Run the endpoint as a child process; yield its port and its process id.

    `tls`: the files of a certificate and its key, to serve over TLS.
    """
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.http_upstream", *map(str, tls)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    with child.stdin, child.stdout:
        try:
            yield int(child.stdout.readline()), child.pid
        finally:
            child.stdin.close()
            child.wait(10)


def _make_tls_context(files: Sequence[str]) -> ssl.SSLContext | None:
    if not files:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    return context


if __name__ == "__main__":
    uvloop.run(serve(_make_tls_context(sys.argv[1:])))
