"""Edge cases of a gateway: malformed requests, no keys, access from other machines, outages and TLS."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from gridq.config.settings import Settings
from gridq.gateway.http import connections
from gridq.gateway.http.bounds import MAX_HEADER_BYTES, MAX_HEADERS
from gridq.limits import api_keys
from gridq.store.connection import connect
from gridq.store.keys import Keys
from tests.builders import stage
from tests.conftest import GridEnv
from tests.fakes.bench_profile import BENCH
from tests.gateways import Gateway, serving
from tests.waiting import wait_for
from workers.supervisor.embedded_server import EmbeddedServer


@pytest.fixture(scope="module")
def config(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """A grid without keys."""
    made = Settings(
        broker_url=server.url,
        prefix=f"t{secrets.token_hex(4)}:",
        home=tmp_path_factory.mktemp("home"),
        profiles=(BENCH, "llm"),
    )
    yield made
    with connect(server.url, name="tests") as client:
        for name in client.scan_iter(f"{made.prefix}*", count=1000):
            client.unlink(name)


@pytest.fixture(scope="module")
def gateway(config: Settings) -> Iterator[Gateway]:
    with serving(config, allowed_origins=("https://app.example.com",), max_body=65536) as running:
        yield running


def connection(gateway: Gateway) -> socket.socket:
    """Open a raw connection."""
    return socket.create_connection(("127.0.0.1", port_of(gateway)), timeout=20)


def port_of(gateway: Gateway) -> int:
    return int(gateway.url.rpartition(":")[2])


def client_of(gateway: Gateway, key: str = "") -> httpx.Client:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return httpx.Client(base_url=gateway.url, headers=headers, trust_env=False)


def code(answer: httpx.Response) -> str:
    found: str = answer.json()["error"]["code"]
    return found


HEAD = b"Host: localhost\r\nContent-Type: application/json\r\n"
JSON = b"POST /v1/chat/completions HTTP/1.1\r\n" + HEAD


def sized(body: bytes, path: bytes = b"/v1/chat/completions") -> bytes:
    return b"POST " + path + b" HTTP/1.1\r\n" + HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


def header(line: bytes) -> bytes:
    return b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n" + line + b"\r\n\r\n"


def answered(gateway: Gateway, sent: bytes, *, ends: bool) -> tuple[int, bytes]:
    """Return the status and the bytes of the answer to raw bytes; status 0 if the connection was just closed.

    With `ends`, the client closes its side afterwards.
    """
    with connection(gateway) as sock:
        with contextlib.suppress(OSError):
            sock.sendall(sent)
            if ends:
                sock.shutdown(socket.SHUT_WR)
        came = b""
        with contextlib.suppress(OSError):
            while part := sock.recv(65536):
                came += part
                head, _, body = came.partition(b"\r\n\r\n")
                if b"content-length" in head and len(body) >= int(
                    head.partition(b"content-length: ")[2].split(b"\r\n")[0]
                ):
                    break
        return int(came.split(b" ")[1]) if came.startswith(b"HTTP/") else 0, came


@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        pytest.param(b"\x16\x03\x01\x02\x00\x01", {400}, id="TLS where there is none"),
        pytest.param(b"nonsense\r\n\r\n", {400}, id="no HTTP"),
        pytest.param(header(b"Connection: upgrade\r\nUpgrade: websocket"), {200}, id="another protocol"),
        pytest.param(b"GET  HTTP/1.1\r\n\r\n", {400}, id="no target"),
        pytest.param(b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n", {400}, id="a tunnel"),
        pytest.param(b"CONNECT /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", {400}, id="a tunnel to a path"),
        pytest.param(b"GET http://[::bad/health HTTP/1.1\r\nHost: x\r\n\r\n", {400}, id="no URL"),
        pytest.param(b"GET http://localhost HTTP/1.1\r\nHost: x\r\n\r\n", {400}, id="no path"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400}, id="HTTP/2"),
        pytest.param(b"GET /v1/models HTTP/9.9\r\n\r\n", {400}, id="no version"),
        pytest.param(b"BREW /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", {400}, id="no method"),
        pytest.param(b"PATCH /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", {405}, id="another method"),
        pytest.param(b"GET /%ff%00%0a HTTP/1.1\r\nHost: x\r\n\r\n", {404}, id="a path that is no text"),
        pytest.param(b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n", {400, 404}, id="a path of bytes"),
        pytest.param(b"GET /v1/models/%ff%fe HTTP/1.1\r\nHost: x\r\n\r\n", {404}, id="a name of bytes"),
        pytest.param(b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n", {404, 431}, id="a target without end"),
        pytest.param(header(b"X-A: " + b"a" * 200_000), {431}, id="a header without end"),
        pytest.param(header(b"X-A: " + b"a" * MAX_HEADER_BYTES), {431}, id="long headers"),
        pytest.param(header(b"\r\n".join([b"X-A: a"] * (MAX_HEADERS + 1))), {431}, id="many headers"),
        pytest.param(header(b"X-\x00: a"), {400}, id="a header's name"),
        pytest.param(header(b"X-Request-Id: \xff\xfe"), {200}, id="an id that is none"),
        pytest.param(header(b"Authorization: Bearer \xff\xfe"), {200}, id="a key that is none, without keys"),
        pytest.param(header(b"Authorization: Bearer gq_\xff\xfe"), {401}, id="a key that is none"),
        pytest.param(header(b"x-gridq-agent: a b"), {400}, id="an agent's name"),
        pytest.param(b"GET /queues HTTP/1.1\r\nHost: [\r\n\r\n", {200, 400, 403}, id="a host that is none"),
        pytest.param(header(b"Origin: http://["), {403}, id="an origin that is none"),
        pytest.param(JSON + b"Content-Length: x\r\n\r\n", {400}, id="a length that is none"),
        pytest.param(JSON + b"Content-Length: 99999999999999999999\r\n\r\n", {400, 413}, id="a huge length"),
        pytest.param(JSON + b"Content-Length: 65537\r\n\r\n", {413}, id="a length over the bound"),
        pytest.param(JSON + b"Content-Length: 10\r\n\r\nabc", {0, 400}, id="less than its length"),
        pytest.param(JSON + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", {0, 400}, id="no chunk"),
        pytest.param(
            JSON + b"Transfer-Encoding: chunked\r\n\r\n" + b"8000\r\n" + b"x" * 0x8000 + b"\r\n"
            b"8001\r\n" + b"x" * 0x8001 + b"\r\n0\r\n\r\n", {413}, id="chunks over the bound",
        ),
        pytest.param(
            JSON + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            {400},
            id="two lengths",
        ),
        pytest.param(sized(b""), {400}, id="no body"),
        pytest.param(sized(b"{"), {400}, id="half a body"),
        pytest.param(sized(b"[]"), {400}, id="a list"),
        pytest.param(sized(b"\xff\xfe{}"), {400}, id="a body that is no text"),
        pytest.param(sized(b"\x00" * 100), {400}, id="zeros"),
        pytest.param(sized(b"[" * 60_000), {400}, id="brackets"),
        pytest.param(sized(b'{"model":' + b"[" * 500 + b"]" * 500 + b"}"), {400}, id="deep"),
        pytest.param(sized(b'{"model":NaN}'), {400}, id="not a number"),
        pytest.param(sized(b'{"model":' + b"9" * 5000 + b"}"), {400}, id="a long number"),
        pytest.param(sized(b'{"model":"\\ud800","messages":[]}'), {400, 404, 503}, id="half a character"),
        pytest.param(sized(b'{"model":"' + b"m" * 60_000 + b'"}'), {400, 404}, id="a long name"),
        pytest.param(sized(b'{"model":{},"stream":"yes"}'), {400}, id="other types"),
        pytest.param(sized(b"{}", b"/v1/messages"), {400}, id="Anthropic's, empty"),
    ],
)  # fmt: skip
def test_malformed_requests_are_refused_without_server_errors(
    gateway: Gateway, sent: bytes, statuses: set[int], caplog: pytest.LogCaptureFixture
) -> None:
    status, came = answered(gateway, sent, ends=0 in statuses)
    assert status in statuses, came[:400]
    assert b"Traceback" not in came
    if status >= 400:
        head, _, body = came.partition(b"\r\n\r\n")
        reply = json.loads(body)
        assert reply["error"]["message"]
        assert reply["error"]["code"]
        assert b"x-request-id" in head
    assert gateway.http.get("/v1/models").status_code == 200, "and the gateway goes on"
    assert not caplog.records, "clients cannot fill the log"


def test_endless_headers_are_bounded_in_size_and_time(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connection(gateway) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n")
        with contextlib.suppress(OSError):
            for _ in range(200):
                sock.sendall(b"X-A: " + b"a" * 1000 + b"\r\n")
        with contextlib.suppress(OSError):
            assert sock.recv(65536).startswith(b"HTTP/1.1 431")
    monkeypatch.setattr(connections, "HEADER_TIMEOUT_SECONDS", 0.2)
    for begun in (b"", b"GET / HTTP/1.1\r\nHost: x\r\n"):
        with connection(gateway) as sock:
            sock.sendall(begun)
            assert sock.recv(1) == b"", "the gateway ends it"


@pytest.mark.parametrize(
    "more", [b"Content-Length: 9\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n"]
)
def test_a_missing_body_times_out(gateway: Gateway, monkeypatch: pytest.MonkeyPatch, more: bytes) -> None:
    monkeypatch.setattr(connections, "BODY_TIMEOUT_SECONDS", 0.2)
    with connection(gateway) as sock:
        sock.sendall(JSON + more)
        came = b""
        while part := sock.recv(65536):
            came += part
    head, _, body = came.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert json.loads(body)["error"]["type"] == "invalid_request_error"
    assert json.loads(body)["error"]["code"] == "request.timeout"


def test_an_idle_connection_is_kept(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "BODY_TIMEOUT_SECONDS", 0.02)
    monkeypatch.setattr(connections, "HEADER_TIMEOUT_SECONDS", 0.02)
    with connection(gateway) as sock:
        for sent in (sized(b"{}"), header(b"X-A: a")):
            sock.sendall(sent)
            read_answers(sock, 1)
            sock.settimeout(0.2)
            with pytest.raises(TimeoutError):
                sock.recv(1)
            sock.settimeout(20)


def test_a_connection_serves_many_requests(gateway: Gateway) -> None:
    with connection(gateway) as sock:
        for _ in range(3):
            sock.sendall(header(b"X-A: " + b"a" * 20_000))
            assert read_answers(sock, 1)[0][0] == 200


UPGRADES = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
SLEEP = json.dumps(
    {"graph": {"root": stage("bench_sleep", ms=1)}, "input": {}, "wait_for_seat": True}
).encode()


def upgrading(body: bytes, *, chunked: bool = False) -> bytes:
    """Return a POST of a client that offers HTTP/2, such as curl with --http2 or Java's HttpClient."""
    length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(body)
    sent = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else body
    return b"POST /jobs HTTP/1.1\r\n" + HEAD + UPGRADES + length + b"\r\n\r\n" + sent


def read_answers(sock: socket.socket, count: int) -> list[tuple[int, Any]]:
    """Return the status and the JSON of `count` answers of an open connection."""
    came = b""
    found: list[tuple[int, Any]] = []
    while len(found) < count:
        head, ended, body = came.partition(b"\r\n\r\n")
        if ended:
            length = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
            if len(body) >= length:
                found.append((int(head.split(b" ")[1]), json.loads(body[:length])))
                came = body[length:]
                continue
        part = sock.recv(65536)
        assert part, (found, came)
        came += part
    assert not came
    return found


@pytest.mark.parametrize("size", [1, 50, 100_000])
@pytest.mark.parametrize("chunked", [False, True])
def test_upgrade_requests_are_ignored(gateway: Gateway, size: int, chunked: bool) -> None:
    sent = 2 * upgrading(SLEEP, chunked=chunked) + header(UPGRADES.rstrip()) + header(b"X-A: a")
    with connection(gateway) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(sent), size):
            sock.sendall(sent[at : at + size])
        found = read_answers(sock, 4)
    assert [status for status, _ in found] == [202, 202, 200, 200]
    assert found[0][1]["job"] != found[1][1]["job"]


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("behind", [b"BAD\r\n\r\n", b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n"])
@pytest.mark.parametrize("path", ["?wait=30", "/events"])
def test_input_after_a_running_request_does_not_end_up_in_its_response(
    gateway: Gateway, at_once: bool, behind: bytes, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    job = gateway.post("/jobs", json.loads(SLEEP), 202)["job"]
    tasks = gateway.server.server_state.tasks
    wait_for(lambda: not tasks)
    with connection(gateway) as sock:
        request = f"GET /jobs/{job}{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        sock.sendall(request + behind if at_once else request)
        wait_for(lambda: tasks)
        if not at_once:
            sock.sendall(behind)
        gateway.ask("DELETE", f"/jobs/{job}", 200)
        came = b""
        while part := sock.recv(65536):
            came += part
    assert came.startswith(b"HTTP/1.1 200")
    assert came.count(b"HTTP/1.1") == 1
    assert came.endswith((b"}", b"0\r\n\r\n")), "the whole answer"
    assert b"cancelled" in came
    assert not caplog.records


@pytest.mark.parametrize("ends", [False, True])
def test_a_running_request_is_cancelled_with_its_connection(
    gateway: Gateway, ends: bool, caplog: pytest.LogCaptureFixture
) -> None:
    job = gateway.post("/jobs", json.loads(SLEEP), 202)["job"]
    with connection(gateway) as sock:
        sock.sendall(
            f"GET /jobs/{job}?wait=30 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
            + (header(b"X-A: a") if ends else JSON + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n")
        )
        if ends:
            sock.shutdown(socket.SHUT_WR)
        assert sock.recv(1) == b"", "it ends without an answer"
    wait_for(lambda: not gateway.server.server_state.tasks)
    gateway.ask("DELETE", f"/jobs/{job}", 200)
    assert not caplog.records


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("host", "evil.example.com", 403),
        ("host", "localhost:99", 200),
        ("host", "[::1]:80", 200),
        ("host", "grid.localhost", 200),
        ("origin", "https://evil.example.com", 403),
        ("origin", "null", 403),
        ("origin", "http://localhost:3000", 200),
        ("origin", "https://app.example.com", 200),
        ("authorization", "Bearer sk-whatever", 200),
        ("x-gridq-agent", "ann", 200),
    ],
)
def test_without_keys_only_local_clients_and_pages_are_accepted(
    gateway: Gateway, name: str, value: str, status: int
) -> None:
    answer = gateway.http.get("/v1/models", headers={name: value})
    assert answer.status_code == status
    if status == 403:
        assert code(answer) == "auth.origin"


def test_other_machines_always_need_a_key(grid_env: GridEnv) -> None:
    keys = Keys(grid_env.prefix)
    with serving(grid_env.settings, host="0.0.0.0") as open_gateway:
        answer = open_gateway.http.get("/v1/models")
        assert (answer.status_code, code(answer)) == (403, "auth.open")
        key, text = api_keys.create(grid_env.client, keys, "ann")
        with client_of(open_gateway, text) as client, client_of(open_gateway) as bare:
            wait_for(lambda: client.get("/v1/models").status_code == 200, 5)
            assert bare.get("/v1/models").status_code == 401
            api_keys.forget(grid_env.client, keys, key.id)
            wait_for(lambda: client.get("/v1/models").status_code in (401, 403), 5)
            wait_for(lambda: bare.get("/v1/models").status_code == 403, 5)


def test_an_outage_is_reported_without_the_servers_address(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "data") as server:
        config = Settings(broker_url=server.url, prefix="away:", home=tmp_path, profiles=(BENCH, "llm"))
        with serving(config) as gateway:
            assert gateway.http.get("/v1/models").status_code == 200
            server.kill()
            wait_for(lambda: gateway.http.get("/v1/models").status_code == 503)
            for path in ("/v1/chat/completions", "/v1/messages", "/jobs"):
                answer = gateway.http.post(path, json={"model": "any", "max_tokens": 1})
                assert (answer.status_code, code(answer)) == (503, "broker.unreachable")
                assert int(answer.headers["retry-after"]) >= 1
                assert "redis" not in answer.text
                assert str(urlsplit(server.url).port) not in answer.text
            server.start()
            wait_for(lambda: gateway.http.get("/v1/models").status_code == 200)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    certfile, keyfile = folder / "cert.pem", folder / "key.pem"
    made = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(keyfile), "-out", str(certfile)]
    subprocess.run(["openssl", *made.split(), *names, *files], check=True, capture_output=True)
    return certfile, keyfile


def test_with_a_certificate_only_tls_is_accepted(config: Settings, certificate: tuple[Path, Path]) -> None:
    certfile, keyfile = certificate
    with serving(config, certfile=certfile, keyfile=keyfile) as secure:
        assert secure.url.startswith("https://")
        trusting = ssl.create_default_context(cafile=str(certfile))
        with httpx.Client(base_url=secure.url, verify=trusting, trust_env=False) as client:
            assert client.get("/v1/models").status_code == 200
        with httpx.Client(base_url=secure.url, trust_env=False) as client, pytest.raises(httpx.ConnectError):
            client.get("/v1/models")
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{port_of(secure)}/v1/models", trust_env=False)
