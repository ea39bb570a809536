"""A load generator that costs little: bare sockets and a parser in C. It shares the machine with what it
measures, and a client object of an SDK takes 4 ms of a core for a call.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httptools
import uvloop

HOST = "127.0.0.1"
PATIENCE = 120.0
"""Seconds that one measurement may take."""

T = TypeVar("T")

TOKEN = re.compile(rb'"content":\s?"(\d+\.\d+) ')
"""A token of the upstream's: the time it was sent at."""


@dataclass
class Sample:
    """Seconds of each answered request, and how long the whole of them took."""

    seconds: list[float] = field(default_factory=list)
    lasted: float = 0.0

    @property
    def per_second(self) -> float:
        return len(self.seconds) / self.lasted

    def add(self, other: Sample) -> None:
        self.seconds += other.seconds
        self.lasted += other.lasted


@dataclass(frozen=True, slots=True)
class Token:
    """When a token was sent by the upstream and when it was read here, in seconds of the monotonic clock."""

    sent: float
    read: float

    @property
    def late(self) -> float:
        return self.read - self.sent


def chat(port: int, text: str, *, model: str = "bench", stream: bool = False) -> bytes:
    """The bytes of a chat's request to whoever listens on `port`."""
    asked: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": text}]}
    if stream:
        asked["stream"] = True
    body = json.dumps(asked).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {HOST}:{port}\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer sk-bench\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def closed_loop(port: int, request: bytes, *, connections: int, seconds: float) -> Sample:
    """Send `request` over so many connections for so long, each the next when it has its answer."""

    async def load() -> Sample:
        sample = Sample()
        until = time.perf_counter() + seconds
        callers = [
            Caller(request, sample.seconds, lambda: time.perf_counter() < until) for _ in range(connections)
        ]
        began = time.perf_counter()
        await _together(port, callers)
        sample.lasted = time.perf_counter() - began
        return sample

    return _run(load())


def first_tokens(port: int, request: bytes, count: int) -> list[float]:
    """Seconds to the first token of `count` streamed answers, one after the other over one connection."""

    async def load() -> list[float]:
        caller = Caller(request, [], lambda: len(caller.seconds) < count)
        await _together(port, [caller])
        return caller.firsts

    return _run(load())


def open_streams(
    port: int, request: bytes, *, streams: int, over: float, while_open: Callable[[], None]
) -> list[list[Token]]:
    """The tokens of so many streamed answers, opened one after the other within `over` seconds and read by
    one loop. `while_open` is called each second until the first has ended.
    """

    async def load() -> list[list[Token]]:
        callers = [Caller(request, [], lambda: False) for _ in range(streams)]
        reading = []
        for caller in callers:
            reading.append(asyncio.create_task(_together(port, [caller])))
            await asyncio.sleep(over / streams)
        while not any(task.done() for task in reading):
            while_open()
            await asyncio.wait(reading, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*reading)
        return [caller.tokens for caller in callers]

    return _run(load())


def at_once(port: int, requests: Sequence[bytes]) -> list[Any]:
    """The answers, as JSON, of requests that are sent at once, each over a connection of its own."""

    async def load() -> list[Any]:
        callers = [Keeper(request, [], lambda: False) for request in requests]
        await _together(port, callers)
        return [json.loads(caller.body) for caller in callers]

    return _run(load())


def answers(port: int, request: bytes) -> bool:
    """Whether `request` is answered with 200 now."""
    try:
        return len(closed_loop(port, request, connections=1, seconds=0.0).seconds) == 1
    except (OSError, RuntimeError):
        return False


class Caller(asyncio.Protocol):
    """One connection that sends a request again and again, while `goes_on` says so after an answer.

    `seconds` gets the time of each answer; `firsts` that to its first token, `tokens` all tokens, where it is
    streamed.
    """

    def __init__(self, request: bytes, seconds: list[float], goes_on: Callable[[], bool]) -> None:
        self.request = request
        self.seconds = seconds
        self.goes_on = goes_on
        self.firsts: list[float] = []
        self.tokens: list[Token] = []
        self.sent = self.at = 0.0
        self.had_token = False
        self.rest = b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        self.at = time.monotonic()
        self.parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(RuntimeError("the connection was closed before the answer was whole"))

    def on_body(self, body: bytes) -> None:
        if self.parser.get_status_code() != 200:
            self._fail(body)
            return
        whole, line, self.rest = (self.rest + body).rpartition(b"\n")
        found = TOKEN.findall(whole + line)
        if found:
            if not self.had_token:
                self.had_token = True
                self.firsts.append(time.perf_counter() - self.sent)
            self.tokens += [Token(float(sent), self.at) for sent in found]

    def on_message_complete(self) -> None:
        if self.parser.get_status_code() != 200:
            self._fail(b"")
            return
        self.seconds.append(time.perf_counter() - self.sent)
        if self.goes_on():
            self._send()
        elif not self.done.done():
            self.done.set_result(None)
            self.transport.close()

    def _send(self) -> None:
        self.parser: Any = httptools.HttpResponseParser(self)
        self.had_token = False
        self.rest = b""
        self.sent = time.perf_counter()
        self.transport.write(self.request)

    def _fail(self, body: bytes) -> None:
        if not self.done.done():
            words = body[:300].decode("utf-8", "replace")
            self.done.set_exception(RuntimeError(f"answered {self.parser.get_status_code()}: {words}"))
        self.transport.close()


class Keeper(Caller):
    """A caller that keeps what it is answered."""

    body = b""

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self.body += body


async def _together(port: int, callers: Sequence[Caller]) -> None:
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(_call(port, caller) for caller in callers))


async def _call(port: int, caller: Caller) -> None:
    await asyncio.get_running_loop().create_connection(lambda: caller, HOST, port)
    await caller.done


def _run(what: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(what)
