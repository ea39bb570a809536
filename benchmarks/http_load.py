"""Generate HTTP load at low cost, with bare sockets and a parser in C.

The generator shares the machine with what it measures. An SDK's client would take 4 ms of a core for each
call.
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
TIMEOUT_SECONDS = 120.0
"""The time limit of one measurement."""

T = TypeVar("T")

TOKEN = re.compile(rb'"(?:content|delta)":\s?"(\d+\.\d+) ')
"""Matches a token of the upstream in chat or Responses. It begins with the time it was sent."""


@dataclass
class Sample:
    """The latency of each answered request, and the duration of the run, in seconds."""

    seconds: list[float] = field(default_factory=list)
    duration: float = 0.0

    @property
    def per_second(self) -> float:
        return len(self.seconds) / self.duration

    def add(self, other: Sample) -> None:
        self.seconds += other.seconds
        self.duration += other.duration


@dataclass(frozen=True, slots=True)
class Token:
    """When the upstream sent a token and when it was read here, in seconds of the monotonic clock."""

    sent: float
    read: float

    @property
    def delay(self) -> float:
        return self.read - self.sent


def build_chat_request(
    port: int, text: str, *, model: str = "bench", stream: bool = False, max_tokens: int | None = None
) -> bytes:
    """Return the bytes of a chat request to the server on `port`."""
    request: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": text}]}
    if max_tokens is not None:
        request["max_tokens"] = max_tokens
    return _build_request(port, "chat/completions", request, stream)


def build_responses_request(port: int, text: str, *, model: str = "bench", stream: bool = False) -> bytes:
    """Return the bytes of a request of OpenAI's Responses to the server on `port`."""
    return _build_request(port, "responses", {"model": model, "input": text}, stream)


def _build_request(port: int, path: str, request: dict[str, Any], stream: bool) -> bytes:
    body = json.dumps({**request, "stream": True} if stream else request).encode()
    head = (
        f"POST /v1/{path} HTTP/1.1\r\nhost: {HOST}:{port}\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer sk-bench\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def run_closed_loop(port: int, request: bytes, *, connections: int, seconds: float) -> Sample:
    """Send `request` over this many connections for `seconds`; each sends the next once it has its answer."""

    async def load() -> Sample:
        sample = Sample()
        until = time.perf_counter() + seconds
        callers = [
            Caller(request, sample.seconds, lambda: time.perf_counter() < until) for _ in range(connections)
        ]
        began = time.perf_counter()
        await _call_all(port, callers)
        sample.duration = time.perf_counter() - began
        return sample

    return _run(load())


def measure_first_tokens(port: int, request: bytes, count: int) -> list[float]:
    """Return the seconds to the first token of `count` streamed answers, sequentially on one connection."""

    async def load() -> list[float]:
        caller = Caller(request, [], lambda: len(caller.seconds) < count)
        await _call_all(port, [caller])
        return caller.firsts

    return _run(load())


def read_streams(
    port: int, request: bytes, *, streams: int, over: float, while_open: Callable[[], None]
) -> list[list[Token]]:
    """Return the tokens of each of `streams` streamed answers, which are opened evenly over `over` seconds.

    `while_open` is called every second until the first stream ends.
    """

    async def load() -> list[list[Token]]:
        callers = [Caller(request, [], lambda: False) for _ in range(streams)]
        reading = []
        for caller in callers:
            reading.append(asyncio.create_task(_call_all(port, [caller])))
            await asyncio.sleep(over / streams)
        while not any(task.done() for task in reading):
            while_open()
            await asyncio.wait(reading, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*reading)
        return [caller.tokens for caller in callers]

    return _run(load())


def send_at_once(port: int, requests: Sequence[bytes]) -> list[Any]:
    """Return the parsed JSON answers to requests that are sent at once, each on its own connection."""

    async def load() -> list[Any]:
        callers = [BodyCaller(request, [], lambda: False) for request in requests]
        await _call_all(port, callers)
        return [json.loads(caller.body) for caller in callers]

    return _run(load())


def is_answered(port: int, request: bytes) -> bool:
    """Return whether the server answers `request` with 200."""
    try:
        return len(run_closed_loop(port, request, connections=1, seconds=0.0).seconds) == 1
    except (OSError, RuntimeError):
        return False


class Caller(asyncio.Protocol):
    """One connection that repeats a request while `should_continue` returns true after an answer.

    `seconds` collects the latency of each answer. For streamed answers, `firsts` collects the time to the
    first token, and `tokens` all tokens.
    """

    def __init__(self, request: bytes, seconds: list[float], should_continue: Callable[[], bool]) -> None:
        self.request = request
        self.seconds = seconds
        self.should_continue = should_continue
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
            self.done.set_exception(RuntimeError("The connection was closed before the answer was complete"))

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
        if self.should_continue():
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
            self.done.set_exception(
                RuntimeError(f"The server answered {self.parser.get_status_code()}: {words}")
            )
        self.transport.close()


class BodyCaller(Caller):
    """A caller that stores the answer's body."""

    body = b""

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self.body += body


async def _call_all(port: int, callers: Sequence[Caller]) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await asyncio.gather(*(_call(port, caller) for caller in callers))


async def _call(port: int, caller: Caller) -> None:
    await asyncio.get_running_loop().create_connection(lambda: caller, HOST, port)
    await caller.done


def _run(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)
