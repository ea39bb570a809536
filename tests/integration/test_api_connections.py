"""The connections of an API client: reuse, limits, drops, proxies and faulty servers."""

from __future__ import annotations

import base64
import gzip
import json
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gridq.errors import JobCancelled, SeatUnavailable, SeatUnreachable, StageError, StageTimeout
from gridq.profiles.profile import StageContext
from tests.waiting import wait_for
from workers.model_apis.http import connections
from workers.model_apis.openai.client import OpenAIClient
from workers.supervisor.embedded_server import find_free_port

ANSWER = json.dumps({"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}).encode()
BODY = {"model": "m", "messages": [{"role": "user", "content": "x"}]}


class RawServer:
    """Answers each request with the bytes of `answer(request, connection)`; None closes the connection."""

    def __init__(
        self, answer: Callable[[bytes, int], Iterator[bytes] | None], tls: ssl.SSLContext | None = None
    ) -> None:
        self.answer = answer
        self.tls = tls
        self.requests: list[bytes] = []
        self.opened = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> RawServer:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listening.accept()
            except OSError:
                return
            self.opened += 1
            threading.Thread(target=self._serve, args=(connected, self.opened), daemon=True).start()

    def _serve(self, connected: socket.socket, number: int) -> None:
        raw = b""
        if self.tls is not None:
            try:
                connected = self.tls.wrap_socket(connected, server_side=True)
            except OSError:
                connected.close()
                return
        with connected:
            while True:
                try:
                    received = connected.recv(65536)
                except OSError:
                    return
                if not received:
                    return
                raw += received
                head, found, body = raw.partition(b"\r\n\r\n")
                length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                if not found or (length and len(body) < int(length[0].split(b":")[1])):
                    continue
                self.requests.append(raw)
                raw = b""
                answer = self.answer(self.requests[-1], number)
                if answer is None:
                    return
                try:
                    for part in answer:
                        connected.sendall(part)
                except OSError:
                    return


def whole(body: bytes = ANSWER, *headers: str) -> Iterator[bytes]:
    lines = ["HTTP/1.1 200 OK", "Content-Type: application/json", *headers]
    if not any(line.lower().startswith(("content-length", "transfer", "connection")) for line in headers):
        lines.append(f"Content-Length: {len(body)}")
    return iter(["\r\n".join([*lines, "", ""]).encode() + body])


@pytest.fixture
def api_to() -> Iterator[Callable[..., OpenAIClient]]:
    made: list[OpenAIClient] = []

    def make(url: str, **more: Any) -> OpenAIClient:
        made.append(OpenAIClient(url, **more))
        return made[-1]

    yield make
    for api in made:
        api.close()


def post(api: OpenAIClient, context: StageContext | None = None) -> Any:
    answer = api.post("chat/completions", BODY, context or StageContext())
    return answer["choices"][0]["message"]["content"]


Make = Callable[..., OpenAIClient]


def test_a_request_has_its_headers_and_body(api_to: Make):
    with RawServer(lambda raw, number: whole()) as server:
        api = api_to(server.url, key="secret", headers={"X-Team": "a"})
        assert post(api) == post(api) == "hi"
        head, _, body = server.requests[0].partition(b"\r\n\r\n")
        assert head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
        assert f"Host: 127.0.0.1:{server.port}".encode() in head
        assert b"Authorization: Bearer secret" in head
        assert b"X-Team: a" in head
        assert json.loads(body) == BODY
        assert server.opened == 1


def test_a_seats_own_headers_replace_others_in_whatever_case(api_to: Make):
    with RawServer(lambda raw, number: whole()) as server:
        own = {"host": "virtual.example", "user-agent": "a", "content-length": "5"}
        api = api_to(f"{server.url}/größe%20a", key="secret", headers=own)
        assert post(api) == "hi"
        line, *lines = server.requests[0].partition(b"\r\n\r\n")[0].decode().split("\r\n")
        assert line == "POST /v1/gr%C3%B6%C3%9Fe%20a/chat/completions HTTP/1.1"
        sent = [each.partition(": ")[0].lower() for each in lines]
        assert len(set(sent)) == len(sent)
        assert "host: virtual.example" in lines
        assert "content-length: 5" not in lines, "where a body ends is not the seat's to say"


def test_a_body_without_a_stated_length_ends_with_its_connection(api_to: Make):
    def ending(raw: bytes, number: int) -> Iterator[bytes]:
        yield from whole(ANSWER, "Connection: close")
        raise OSError  # which ends the connection

    with RawServer(ending) as server:
        api = api_to(server.url)
        assert post(api) == post(api) == "hi"
        assert server.opened == 2


def test_a_truncated_body_is_the_seats_fault(api_to: Make):
    def short(raw: bytes, number: int) -> Iterator[bytes]:
        yield from whole(ANSWER[:-9], f"Content-Length: {len(ANSWER)}")
        raise OSError

    with RawServer(short) as server, pytest.raises(SeatUnavailable, match="IncompleteRead"):
        post(api_to(server.url))


def test_unrequested_gzip_is_read(api_to: Make):
    with RawServer(lambda raw, number: whole(gzip.compress(ANSWER), "Content-Encoding: gzip")) as server:
        assert post(api_to(server.url)) == "hi"
        server.answer = lambda raw, number: whole(b"no gzip", "Content-Encoding: gzip")
        with pytest.raises(SeatUnavailable):
            post(api_to(server.url))


def test_a_reply_that_is_not_http_is_the_seats_fault(api_to: Make):
    greeting = [b"220 smtp.example.com ESMTP\r\n\r\n"]
    with RawServer(lambda raw, number: iter(greeting)) as server:
        api = api_to(server.url)
        with pytest.raises(SeatUnavailable, match="BadStatusLine"):
            post(api)


def test_a_connection_closed_by_the_endpoint_is_not_reused(api_to: Make):
    closed = threading.Event()

    def parts() -> Iterator[bytes]:
        yield from whole()
        closed.set()
        raise OSError

    with RawServer(lambda raw, number: parts()) as server:
        api = api_to(server.url)
        for _ in range(5):
            closed.clear()
            assert post(api) == "hi"
            assert closed.wait(5)
            (idle,) = api._connections._idle
            wait_for(lambda line=idle[1]: line.is_stale, 5, poll=0.005)  # type: ignore[misc]
        assert server.opened == 5


def test_a_connection_idle_for_long_is_not_reused(api_to: Make, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connections, "IDLE_SECONDS", -1)
    with RawServer(lambda raw, number: whole()) as server:
        api = api_to(server.url)
        assert post(api) == post(api) == "hi"
        assert server.opened == 2


def test_idle_connections_after_a_burst_are_closed(api_to: Make, monkeypatch: pytest.MonkeyPatch):
    together = threading.Barrier(4)

    def all_at_once(raw: bytes, number: int) -> Iterator[bytes]:
        together.wait(5)
        return whole()

    with RawServer(all_at_once) as server:
        api = api_to(server.url)
        threads = [threading.Thread(target=post, args=(api,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert len(api._connections._idle) == 4
        server.answer = lambda raw, number: whole()
        for _, line in api._connections._idle[:3]:
            line.idle_since -= connections.IDLE_SECONDS
        for _ in range(3):
            assert post(api) == "hi"
        assert len(api._connections._idle) == 1
        assert server.opened == 4


def drip(body: bytes) -> Iterator[bytes]:
    """Yield the body byte by byte."""
    for byte in body:
        time.sleep(0.05)
        yield bytes([byte])


@pytest.mark.parametrize("where", ["head", "body"])
def test_the_deadline_holds_for_slow_responses(api_to: Make, where: str):
    (raw,) = whole()
    head, blank, body = raw.partition(b"\r\n\r\n")

    def answer(request: bytes, number: int) -> Iterator[bytes]:
        if where == "body":
            yield head + blank
        yield from drip(raw if where == "head" else body)

    with RawServer(answer) as server, pytest.raises(StageTimeout):
        post(api_to(server.url), StageContext(deadline=time.monotonic() + 0.3))


@pytest.mark.parametrize("where", ["head", "body"])
def test_a_cancel_ends_a_wait_at_any_point(api_to: Make, where: str):
    context = StageContext()

    def answer(request: bytes, number: int) -> Iterator[bytes]:
        (raw,) = whole()
        head, blank, _ = raw.partition(b"\r\n\r\n")
        yield head[:9] if where == "head" else head + blank
        context.cancel()
        time.sleep(5)

    with RawServer(answer) as server, pytest.raises(JobCancelled):
        post(api_to(server.url), context)


def test_a_hanging_name_lookup_can_be_cancelled(api_to: Make, monkeypatch: pytest.MonkeyPatch):
    called, over = threading.Event(), threading.Event()

    def look_up(*args: Any, **kwargs: Any) -> Any:
        called.set()
        over.wait(20)
        raise OSError("no such name")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    api = api_to("http://llm.example.com/v1")
    context = StageContext()
    threading.Thread(target=lambda: called.wait(5) and context.cancel()).start()
    try:
        with pytest.raises(JobCancelled):
            post(api, context)
        with pytest.raises(StageTimeout):
            post(api, StageContext(deadline=time.monotonic() + 0.1))
        threading.Timer(0.1, api.close).start()
        with pytest.raises(SeatUnavailable, match="closed"):
            post(api)
    finally:
        over.set()


def test_a_cancelled_stage_sends_no_request(api_to: Make):
    context = StageContext()
    context.cancel()
    with RawServer(lambda raw, number: whole()) as server:
        with pytest.raises(JobCancelled):
            post(api_to(server.url), context)
        assert server.requests == []


def test_a_late_cancel_does_not_touch_the_next_call(api_to: Make):
    with RawServer(lambda raw, number: whole()) as server:
        api = api_to(server.url)
        first = StageContext()
        post(api, first)
        first.cancel()
        assert post(api) == "hi"
        assert server.opened == 1


def test_an_unencodable_body_is_the_requests_fault(api_to: Make):
    api = api_to("http://127.0.0.1:9/v1")
    with pytest.raises(StageError, match="cannot be encoded"):
        api.post("chat/completions", {"temperature": float("nan")}, StageContext())


def test_an_http_endpoint_behind_a_proxy_is_reached_through_it(api_to: Make, monkeypatch: pytest.MonkeyPatch):
    with RawServer(lambda raw, number: whole()) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://me:p%40ss@127.0.0.1:{proxy.port}")
        monkeypatch.setenv("NO_PROXY", "inside.example.com")
        assert post(api_to("http://llm.example.com/v1")) == "hi"
        head = proxy.requests[0]
        assert head.startswith(b"POST http://llm.example.com:80/v1/chat/completions HTTP/1.1\r\n")
        assert b"Proxy-Authorization: Basic " + base64.b64encode(b"me:p@ss") in head
        assert b"\r\nHost: llm.example.com" in head
        with pytest.raises(SeatUnavailable):
            post(api_to("http://inside.example.com:1/v1"), StageContext(deadline=time.monotonic() + 5))
        assert len(proxy.requests) == 1


@pytest.mark.parametrize(
    ("host", "target"),
    [
        ("llm.example.com", b"llm.example.com:443"),
        ("[2001:db8::1]:8443", b"[2001:db8::1]:8443"),
        ("bücher.example", b"xn--bcher-kva.example:443"),
    ],
)
def test_an_https_endpoint_behind_a_proxy_is_reached_by_a_tunnel(
    api_to: Make, monkeypatch: pytest.MonkeyPatch, host: str, target: bytes
):
    def refuse(raw: bytes, number: int) -> Iterator[bytes]:
        return iter([b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"])

    with RawServer(refuse) as proxy:
        monkeypatch.setenv("ALL_PROXY", f"me:p%40ss@127.0.0.1:{proxy.port}")
        with pytest.raises(SeatUnavailable, match="403"):
            post(api_to(f"https://{host}/v1"))
        assert proxy.requests[0].startswith(b"CONNECT " + target + b" HTTP/1")
        assert b"Proxy-Authorization: Basic " + base64.b64encode(b"me:p@ss") in proxy.requests[0]


def test_tls_through_a_tunnel(
    api_to: Make, certificate: tuple[Path, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
):
    class Proxy(RawServer):
        def _serve(self, connected: socket.socket, number: int) -> None:
            self.requests.append(connected.recv(65536))
            connected.sendall(b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\n")
            super()._serve(connected, number)

    with Proxy(lambda raw, number: whole(), certificate[1]) as proxy:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        monkeypatch.setattr("urllib.request.proxy_bypass", lambda host: False)
        monkeypatch.setenv("ALL_PROXY", f"127.0.0.1:{proxy.port}")
        api = api_to("https://127.0.0.1:8443/v1")
        assert post(api) == post(api) == "hi"
        assert proxy.requests[0].startswith(b"CONNECT 127.0.0.1:8443 HTTP/1")
        assert proxy.opened == 1


def test_an_unsupported_proxy_is_refused(api_to: Make, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    with pytest.raises(SeatUnavailable, match="socks5"):
        post(api_to("http://llm.example.com/v1"))


def test_a_name_that_cannot_be_looked_up_is_not_reached(api_to: Make):
    with pytest.raises(SeatUnreachable):
        post(api_to(f"http://{'a' * 64}.example/v1"))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    """A certificate for 127.0.0.1, and a server's context with it."""
    if not shutil.which("openssl"):
        pytest.skip("openssl makes the test's certificate")
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    make = ["openssl", "req", "-x509", *curve, *names, "-keyout", str(key), "-out", str(cert)]
    subprocess.run(make, check=True, capture_output=True, timeout=60)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return cert, context


def test_tls_connections_are_reused_and_can_be_cancelled(
    api_to: Make, certificate: tuple[Path, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    context = StageContext()

    def stalled(request: bytes, number: int) -> Iterator[bytes]:
        (raw,) = whole()
        yield raw[:-9]
        context.cancel()
        time.sleep(5)

    with RawServer(lambda raw, number: whole(), certificate[1]) as server:
        api = api_to(server.url)
        assert [post(api) for _ in range(3)] == ["hi"] * 3
        assert server.opened == 1
        server.answer = stalled
        with pytest.raises(JobCancelled):
            post(api, context)
        server.answer = lambda raw, number: drip(b"".join(whole()))
        with pytest.raises(StageTimeout):
            post(api, StageContext(deadline=time.monotonic() + 0.3))


def test_an_untrusted_certificate_is_refused(api_to: Make, certificate: tuple[Path, ssl.SSLContext]):
    with RawServer(lambda raw, number: whole(), certificate[1]) as server:
        api = api_to(server.url)
        with pytest.raises(SeatUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            post(api)
        assert server.requests == []


@pytest.mark.parametrize("why", ["refused", "unknown name", "no answer to the connection", "no TLS"])
def test_an_endpoint_that_got_nothing_of_the_request_was_not_reached(
    api_to: Make, monkeypatch: pytest.MonkeyPatch, why: str
):
    monkeypatch.setattr(connections, "CONNECT_SECONDS", 0.5)
    with RawServer(lambda request, number: None) as server, socket.create_server(("127.0.0.1", 0)) as full:
        full.listen(0)
        port = full.getsockname()[1]
        waiting = [socket.socket() for _ in range(3)]  # fill the backlog, so that the next connection waits
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", port))
        url = {
            "refused": f"http://127.0.0.1:{find_free_port()}/v1",
            "unknown name": "http://no-such-host.invalid/v1",
            "no answer to the connection": f"http://127.0.0.1:{port}/v1",
            "no TLS": server.url.replace("http:", "https:"),
        }[why]
        with pytest.raises(SeatUnreachable) as caught:
            api_to(url).post("chat/completions", BODY, StageContext())
        assert caught.value.reason
        for each in waiting:
            each.close()


def test_an_endpoint_that_hangs_up_was_reached(api_to: Make):
    with RawServer(lambda request, number: None) as server, pytest.raises(SeatUnavailable) as caught:
        api_to(server.url).post("chat/completions", BODY, StageContext())
    assert type(caught.value) is SeatUnavailable


def test_what_follows_an_answer_is_not_the_answer_to_a_later_request(api_to: Make):
    """What comes once that request is sent cannot be told apart; so the test waits."""
    (other,) = whole(ANSWER.replace(b'"hi"', b'"no"'))
    sent = threading.Semaphore(0)

    def answer_twice(raw: bytes, number: int) -> Iterator[bytes]:
        yield from whole()
        time.sleep(0.02)
        yield other
        sent.release()

    with RawServer(answer_twice) as server:
        api = api_to(server.url)
        for _ in range(3):
            assert post(api) == "hi"
            assert sent.acquire(timeout=5)
            wait_for(lambda: api._connections._idle[0][1].is_stale, poll=0.005)
        assert server.opened == 3
