"""The framing of requests: host, coding of the body, HEAD."""

from __future__ import annotations

import http.client
import json
from urllib.parse import urlsplit

import pytest

from tests.builders import stage
from tests.integration.gateway.conftest import Served
from tests.waiting import wait_for

HOST = ("host", "localhost")


def ask(served: Served, method: str, path: str, *headers: tuple[str, str], body: bytes = b"",
        version: int = 11) -> tuple[int, dict[str, str], bytes]:  # fmt: skip
    """Return status, headers and body for a request with only these headers."""
    connection = http.client.HTTPConnection(urlsplit(served.url).netloc, timeout=20)
    connection._http_vsn, connection._http_vsn_str = version, f"HTTP/{version // 10}.{version % 10}"  # type: ignore[attr-defined]
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for name, value in headers:
        connection.putheader(name, value)
    connection.endheaders(body)
    reply = connection.getresponse()
    found = reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read()
    connection.close()
    return found


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([HOST, ("transfer-encoding", "gzip, chunked")], 400),
        ([HOST, ("transfer-encoding", "gzip"), ("transfer-encoding", "chunked")], 400),
        ([HOST, ("transfer-encoding", "chunked"), ("content-encoding", "gzip")], 415),
        ([HOST, ("transfer-encoding", "Chunked"), ("content-encoding", "Identity")], 200),
        ([HOST, HOST, ("transfer-encoding", "chunked")], 400),
        ([("transfer-encoding", "chunked")], 400),
    ],
)
def test_ambiguous_framing_is_refused(served: Served, headers: list[tuple[str, str]], status: int) -> None:
    text = json.dumps({"model": "echo", "max_tokens": 5, "messages": [{"role": "user", "content": "a"}]})
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(text), text.encode())
    reply = ask(served, "POST", "/v1/messages", *headers, body=body)
    assert reply[0] == status, reply
    assert json.loads(reply[2])["type"] == ("message" if status == 200 else "error")


def test_http_1_0_needs_no_host(served: Served) -> None:
    assert ask(served, "GET", "/health", version=10)[0] == 200


@pytest.mark.parametrize(
    "path", ["/health", "/v1/models", "/v1/models/echo", "/workers", "/jobs/gone", "/no"]
)
def test_head_is_answered_like_get_without_a_body(served: Served, path: str) -> None:
    status, headers, body = ask(served, "GET", path, HOST)
    reply = ask(served, "HEAD", path, HOST)
    assert reply[0] == status
    assert reply[1]["content-type"] == headers["content-type"]
    assert reply[1]["x-request-id"]
    assert body
    assert reply[2] == b""


def test_head_of_a_stream_does_not_wait_for_its_end(served: Served) -> None:
    graph = {"root": stage("llm_complete", model="nobody-yet", prompt="x")}
    job = served.gateway.post("/jobs", {"graph": graph, "stream": True, "wait_for_seat": True}, 202)["job"]
    status, headers, body = ask(served, "HEAD", f"/jobs/{job}/events", HOST)
    assert (status, body) == (200, b"")
    assert headers["content-type"].startswith("text/event-stream")
    assert served.gateway.get(f"/jobs/{job}")["state"] == "running"
    wait_for(lambda: "gridq_http_open_streams 0" in served.gateway.http.get("/metrics").text)
    served.gateway.ask("DELETE", f"/jobs/{job}", 200)


def test_head_requests_are_counted_by_route(served: Served) -> None:
    ask(served, "HEAD", "/queues", HOST)
    line = 'method="HEAD",route="/queues",status="200"'
    wait_for(lambda: line in served.gateway.http.get("/metrics").text)


def test_head_without_a_get_route(served: Served) -> None:
    assert ask(served, "HEAD", "/v1/messages", HOST)[0] == 405
