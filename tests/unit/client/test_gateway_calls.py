"""Calls to one or several gateways, which plain HTTP servers stand in for."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
import uvloop
from pydantic import SecretStr

from gridq.client.gateway_calls import AsyncGateways, Call, Gateways
from gridq.errors import BrokerUnreachable, GatewayUnreachable, JobNotFound
from gridq.protocol.models import Json

JSON = {"content-type": "application/json"}
HELLO = Call("GET", "/hello")


class Answering:
    """A server that answers what it is told, and keeps what it was asked."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.status = 200
        self.headers = JSON
        self.body = b'"hello"'
        self.breaks = 0
        """Requests that are read, after which the connection is closed without a reply."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                outer.requests.append((self.command, self.path, headers, body))
                if outer.breaks:
                    outer.breaks -= 1
                    self.close_connection = True
                    return
                self.send_response(outer.status)
                for name, value in {**outer.headers, "content-length": str(len(outer.body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(outer.body)

            do_POST = do_DELETE = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> Answering:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


Ask = Callable[[Gateways, Call], Json]


def on_a_thread(gateways: Gateways, call: Call) -> Json:
    return gateways.send(call)


def call_on_a_loop(gateways: Gateways, call: Call) -> Json:
    return _on(asyncio.new_event_loop, gateways, call)


def on_uvloop(gateways: Gateways, call: Call) -> Json:
    return _on(uvloop.new_event_loop, gateways, call)


LOOPS: dict[tuple[Gateways, Callable[[], Any]], tuple[asyncio.Runner, AsyncGateways]] = {}


def _on(loop: Callable[[], asyncio.AbstractEventLoop], gateways: Gateways, call: Call) -> Json:
    """Always on the same loop, so that its connections are kept."""
    if (gateways, loop) not in LOOPS:
        LOOPS[gateways, loop] = asyncio.Runner(loop_factory=loop), AsyncGateways(gateways)
    runner, way = LOOPS[gateways, loop]
    return runner.run(way.send(call))


@pytest.fixture(params=[on_a_thread, call_on_a_loop, on_uvloop])
def ask(request: pytest.FixtureRequest) -> Ask:
    made: Ask = request.param
    return made


@pytest.fixture
def make() -> Iterator[Callable[..., Gateways]]:
    """Gateways that are closed after the test."""
    with ExitStack() as stack:

        def made(url: str, key: str | None = None) -> Gateways:
            gateways = Gateways(url, None if key is None else SecretStr(key), timeout=2)
            stack.callback(gateways.close)
            return gateways

        yield made
    for runner, way in LOOPS.values():
        runner.run(way.close())
        runner.close()
    LOOPS.clear()


@pytest.fixture
def one() -> Iterator[Answering]:
    with Answering() as made:
        yield made


@pytest.fixture
def other() -> Iterator[Answering]:
    with Answering() as made:
        yield made


@pytest.fixture
def unused_url() -> str:
    """An address at which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def test_a_call_carries_key_parameters_and_body(
    one: Answering, make: Callable[..., Gateways], ask: Ask
) -> None:
    call = Call("POST", "/jobs", {"wait": 1.5}, b'{"a": 1}', {"x-more": "yes"})
    assert ask(make(f"{one.url}/below/", " gq_a_b\n"), call) == "hello"
    [(method, path, headers, body)] = one.requests
    assert (method, path, body) == ("POST", "/below/jobs?wait=1.5", b'{"a": 1}')
    assert (headers["authorization"], headers["x-more"]) == ("Bearer gq_a_b", "yes")
    assert headers["content-type"] == "application/json"


def test_without_a_key_no_header_is_sent(one: Answering, make: Callable[..., Gateways], ask: Ask) -> None:
    ask(make(one.url), HELLO)
    assert "authorization" not in one.requests[0][2]


def test_the_gateway_that_answered_is_tried_first_next_time(
    one: Answering, unused_url: str, make: Callable[..., Gateways], ask: Ask
) -> None:
    gateways = make(f"{unused_url},{one.url}")
    assert [ask(gateways, HELLO) for _ in range(3)] == ["hello"] * 3
    assert gateways.start_failover()._pending[0] == 1


def test_an_unreachable_gateway_is_named(unused_url: str, make: Callable[..., Gateways], ask: Ask) -> None:
    with pytest.raises(GatewayUnreachable) as caught:
        ask(make(unused_url), HELLO)
    assert caught.value.path == unused_url
    assert "gridq gateway" in str(caught.value.fix)
    assert isinstance(caught.value, BrokerUnreachable)


def test_a_broken_connection_is_retried_once(one: Answering, make: Callable[..., Gateways], ask: Ask) -> None:
    gateways = make(one.url)
    ask(gateways, HELLO)
    one.breaks = 1
    assert ask(gateways, HELLO) == "hello"
    one.breaks = 2
    with pytest.raises(GatewayUnreachable):
        ask(gateways, HELLO)
    assert len(one.requests) == 5


def test_a_silent_gateway_is_skipped(one: Answering, make: Callable[..., Gateways], ask: Ask) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        gateways = make(f"http://127.0.0.1:{silent.getsockname()[1]},{one.url}")
        assert ask(gateways, HELLO) == "hello"


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (200, {"content-type": "text/html"}, b"<h1>It works!</h1>"),
        (404, {"content-type": "text/html"}, b"<h1>Not Found</h1>"),
        (404, JSON, b'{"detail": "Not Found"}'),
        (401, JSON, b'{"error": "unauthorized"}'),
        (502, {"content-type": "text/plain"}, b"bad gateway"),
        (503, JSON, b"{"),
        (301, {"content-type": "text/html", "location": "https://elsewhere.example/"}, b""),
        (204, {}, b""),
    ],
)
def test_an_answer_that_is_not_a_gateways_is_skipped(
    status: int,
    headers: dict[str, str],
    body: bytes,
    one: Answering,
    other: Answering,
    make: Callable[..., Gateways],
    ask: Ask,
) -> None:
    one.status, one.headers, one.body = status, headers, body
    with pytest.raises(GatewayUnreachable, match=f"not a gateway: {status}") as caught:
        ask(make(one.url), HELLO)
    if "location" in headers:
        assert "https://elsewhere.example/" in str(caught.value)
    assert ask(make(f"{one.url},{other.url}"), HELLO) == "hello"


def test_an_error_is_an_answer_and_no_other_gateway_is_tried(
    one: Answering, other: Answering, make: Callable[..., Gateways], ask: Ask
) -> None:
    one.status = 404
    one.body = json.dumps({"error": {"code": "job.not_found", "message": "none", "path": "j"}}).encode()
    with pytest.raises(JobNotFound) as caught:
        ask(make(f"{one.url},{other.url}"), HELLO)
    assert caught.value.path == "j"
    assert not other.requests


def test_a_gateway_that_stops_is_skipped(
    one: Answering, other: Answering, make: Callable[..., Gateways], ask: Ask
) -> None:
    one.status = 503
    one.body = json.dumps({"error": {"code": "gateway.stopping", "message": "it stops"}}).encode()
    with pytest.raises(GatewayUnreachable, match="it stops"):
        ask(make(one.url), HELLO)
    assert ask(make(f"{one.url},{other.url}"), HELLO) == "hello"


def test_a_gateway_on_this_machine_is_called_without_a_proxy(
    one: Answering, unused_url: str, make: Callable[..., Gateways], ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, unused_url)
    assert ask(make(one.url), HELLO) == "hello"


def test_a_client_works_on_several_event_loops(one: Answering, make: Callable[..., Gateways]) -> None:
    way = AsyncGateways(make(one.url))

    async def scene() -> Json:
        return await way.send(HELLO)

    for _ in range(2):
        with asyncio.Runner() as runner:
            assert runner.run(scene()) == "hello"
            runner.run(way.close())


def test_a_broken_stream_raises_and_prefers_another_gateway(make: Callable[..., Gateways]) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def half() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(10_000)
                head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 99\r\n\r\n"
                connection.sendall(head + b"data: 1\n\n")

        thread = threading.Thread(target=half)
        thread.start()
        gateways = make(f"http://127.0.0.1:{listener.getsockname()[1]},http://127.0.0.1:1")
        with (
            pytest.raises(GatewayUnreachable) as caught,
            gateways.stream(Call("GET", "/", wait=5)) as chunks,
        ):
            assert [*chunks] == []
        thread.join()
    assert isinstance(caught.value.__cause__, httpx.RemoteProtocolError)
    assert gateways.start_failover()._pending[0] == 1
