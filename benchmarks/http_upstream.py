"""Serve an endpoint that answers at once in three API formats, so that only the path to it is measured.

`python -m benchmarks.http_upstream` prints its port and stops at the end of its standard input. It has the
paths of `http_answers.FORMATS`. The last message of a request selects the answer:

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

from benchmarks.http_answers import FORMATS, TEXT, TOKENS, EventStream, encode, encode_response

DEFAULT_ANSWERS = {path: encode_response(encode(each.build_answer(TEXT))) for path, each in FORMATS.items()}
MODELS = encode_response(encode({"object": "list", "data": [{"id": "bench", "object": "model"}]}))


def make_token(length: int) -> str:
    """Return a token of at least `length` characters that says when it was made."""
    return f"{time.monotonic():.6f} ".ljust(length, "x")


def parse_pace(text: str) -> tuple[int, float, int]:
    """Return the number of tokens that a message requests, the seconds between two, and their length."""
    words = text.split()
    if words[:1] != ["paced"]:
        return TOKENS, 0.0, 0
    return int(words[1]), 1 / float(words[2]), int(words[3]) if words[3:] else 0


def find_text(request: dict[str, Any]) -> str:
    """Return the text of a request's last message."""
    messages = request["messages"] if "messages" in request else request["input"]
    content = messages if isinstance(messages, str) else messages[-1]["content"]
    text: str = content if isinstance(content, str) else content[0]["text"]
    return text


class Barrier:
    """Answers that are sent together once enough requests are open."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Any, bytes]] = []

    def add(self, connection: Connection, text: str) -> None:
        """Add a request, and send all answers if it was the last one."""
        _, wanted, number, length = text.split()
        answer = connection.answer_format.build_answer(f"{number} ".ljust(int(length), "x"))
        self._waiting.append((connection.transport, encode_response(encode(answer))))
        if len(self._waiting) == int(wanted):
            waiting, self._waiting = self._waiting, []
            for transport, response in waiting:
                transport.write(response)


BARRIER = Barrier()


class Connection(asyncio.Protocol):
    """One connection, which answers one request after another."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.parser = httptools.HttpRequestParser(self)
        self.body = b""
        self.url = b""
        self.timer: asyncio.TimerHandle | None = None
        self.answer_format = FORMATS["chat/completions"]

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
        path = self.url.decode().partition("/v1/")[2].partition("?")[0]
        self.answer_format = FORMATS[path]
        request = json.loads(self.body)
        text = find_text(request)
        if not request.get("stream"):
            if text.startswith("barrier "):
                BARRIER.add(self, text)
            else:
                self.transport.write(DEFAULT_ANSWERS[path])
            return
        usage = bool((request.get("stream_options") or {}).get("include_usage"))
        stream = EventStream(self.answer_format, usage=usage)
        tokens, interval, length = parse_pace(text)
        if not interval:
            sent = b"".join(stream.add_token(make_token(length)) for _ in range(tokens))
            self.transport.write(stream.begin() + sent + stream.end())
            return
        self.transport.write(stream.begin())
        self._tick(stream, tokens, interval, length, asyncio.get_running_loop().time())

    def _tick(self, stream: EventStream, left: int, interval: float, length: int, due: float) -> None:
        if not left:
            self.transport.write(stream.end())
            return
        self.transport.write(stream.add_token(make_token(length)))
        loop = asyncio.get_running_loop()
        self.timer = loop.call_at(
            due + interval, self._tick, stream, left - 1, interval, length, due + interval
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
