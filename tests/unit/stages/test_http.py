"""http_get and remote_stage against a real server."""

from __future__ import annotations

import contextlib
import email.utils
import gzip
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridq.errors import (
    ConfigError,
    GridError,
    HostNotAllowed,
    JobCancelled,
    OutputTooLarge,
    SeatUnavailable,
    StageError,
)
from gridq.profiles.profile import StageContext
from gridq.protocol.models import StageCall
from gridq.stages import run_builtin
from gridq.stages.allowed_hosts import parse_url
from gridq.stages.http import parse_date, parse_retry_after
from tests.unit.stages.conftest import Configure, Handler, Server


def run(name: str, value: Any, context: StageContext | None = None) -> Any:
    call = StageCall(id="0", name=name, path="root", implementation=f"builtin:{name}")
    return run_builtin(call, value, context or StageContext())


@pytest.fixture
def allowed(configure: Configure, web: Server) -> Configure:
    """Only the test's own server may be asked, under its address and not under its name."""
    configure(http_allow=f"127.0.0.1:{web.port}", http_timeout=20)
    return configure


def test_get_answers_status_headers_and_body(allowed: Configure, web: Server) -> None:
    web.routes["/a"] = lambda h: h.answer(
        "grüße".encode("latin-1"), Content_Type="text/plain; charset=latin-1", X_A="1"
    )
    output = run("http_get", {"url": web.url("/a?q=1"), "headers": {"X-Key": "k"}})
    assert output["status"] == 200
    assert output["body"] == "grüße"
    assert output["headers"]["x-a"] == "1"
    assert web.requests[0][:2] == ("GET", "/a?q=1")
    assert web.requests[0][2]["x-key"] == "k"


def test_get_takes_a_bare_url_and_http_body_its_body(allowed: Configure, web: Server) -> None:
    web.routes["/a"] = lambda h: h.answer(b"hi")
    assert run("http_body", run("http_get", web.url("/a"))) == "hi"


def test_no_host_is_allowed_unless_listed(configure: Configure, web: Server) -> None:
    with pytest.raises(HostNotAllowed) as caught:
        run("http_get", web.url("/a"))
    assert "GRIDQ_HTTP_ALLOW" in str(caught.value.fix)
    assert caught.value.path == "root"
    assert web.requests == []


@pytest.mark.parametrize(
    ("entries", "url", "may"),
    [
        ("a.example", "http://a.example/", True),
        ("A.example.", "https://a.EXAMPLE:8443/", True),
        ("a.example:443", "https://a.example/", True),
        ("a.example:443", "http://a.example/", False),
        ("a.example", "http://b.a.example/", False),
        ("a.example", "http://a.example@b.example/", False),
        ("a.example", "http://b.example#@a.example/", False),
        ("[::1]:80", "http://[::1]/", True),
        ("::1", "http://[::1]:9/", True),
        ("[::1]:80", "http://[::1]:81/", False),
        ("127.0.0.1", "http://0x7f.1/", False),
        ("b.example, xn--bcher-kva.example", "http://bücher.example/", True),
    ],
)
def test_hosts_are_checked_against_the_allow_list(
    configure: Configure, entries: str, url: str, may: bool
) -> None:
    from gridq.stages.allowed_hosts import check_allowed

    configure(http_allow=entries)
    if may:
        check_allowed(parse_url(url))
    else:
        with pytest.raises(HostNotAllowed):
            check_allowed(parse_url(url))


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://a.example/", "//a.example", "a.example/b", "http://", "http://[", ""]
)
def test_urls_that_are_not_http_are_refused(url: str) -> None:
    with pytest.raises(StageError, match="URL"):
        run("http_get", {"url": url})


@given(text=st.text(max_size=30) | st.text(max_size=20).map("http://{}".format))
def test_arbitrary_text_is_a_url_or_a_stage_error(text: str) -> None:
    with contextlib.suppress(StageError):
        assert parse_url(text).host


def test_a_redirect_is_followed_to_an_allowed_host(allowed: Configure, web: Server) -> None:
    web.routes["/a"] = lambda h: h.answer(status=302, Location="/b?x=1")
    web.routes["/b"] = lambda h: h.answer(b"there")
    assert run("http_get", {"url": web.url("/a"), "headers": {"x-key": "k"}})["body"] == "there"
    assert web.requests[1][1] == "/b?x=1"
    assert web.requests[1][2]["x-key"] == "k"


def test_a_redirect_to_a_host_that_is_not_allowed_is_not_followed(allowed: Configure, web: Server) -> None:
    web.routes["/a"] = lambda h: h.answer(status=307, Location=web.url("/b", host="localhost"))
    web.routes["/b"] = lambda h: h.answer(b"secret")
    with pytest.raises(HostNotAllowed, match="localhost"):
        run("http_get", web.url("/a"))
    assert [path for _, path, _, _ in web.requests] == ["/a"]


def test_a_callers_header_is_not_sent_on_to_another_host(allowed: Configure, web: Server) -> None:
    allowed(http_allow="127.0.0.1 localhost")
    web.routes["/a"] = lambda h: h.answer(
        status=302, Location=web.url("/b", host="localhost"), Set_Cookie="a=1"
    )
    web.routes["/b"] = lambda h: h.answer(b"ok")
    run("http_get", {"url": web.url("/a"), "headers": {"Authorization": "Bearer k"}})
    assert web.requests[0][2]["authorization"] == "Bearer k"
    assert "authorization" not in web.requests[1][2]
    assert "cookie" not in web.requests[1][2]


def test_redirects_are_limited(allowed: Configure, web: Server) -> None:
    web.routes["/a"] = lambda h: h.answer(status=302, Location="/a")
    with pytest.raises(StageError, match="more than 10 times"):
        run("http_get", web.url("/a"))
    assert len(web.requests) == 11


@pytest.mark.parametrize("location", ["file:///etc/passwd", "http://[", "ftp://127.0.0.1/"])
def test_a_redirect_to_an_invalid_url_is_refused(allowed: Configure, web: Server, location: str) -> None:
    web.routes["/a"] = lambda h: h.answer(status=302, Location=location)
    with pytest.raises(StageError, match=r"URL|host"):
        run("http_get", web.url("/a"))


Route = Callable[[Handler], None]


def endless(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    while not handler.server.released.is_set():
        handler.wfile.write(b"400\r\n" + b"x" * 1024 + b"\r\n")


@pytest.mark.parametrize(
    "route",
    [
        lambda h: h.answer(b"x" * 5000),
        endless,
        lambda h: h.answer(gzip.compress(b"x" * 100_000), Content_Encoding="gzip"),
    ],
    ids=["stated", "endless", "packed"],
)
def test_a_body_over_the_limit_is_refused(allowed: Configure, web: Server, route: Route) -> None:
    allowed(max_value=4096)
    web.routes["/a"] = route
    with pytest.raises(OutputTooLarge, match=f"body of http://127.0.0.1:{web.port}/a is larger than 4096"):
        run("http_get", web.url("/a?key=secret"))


def test_a_4xx_is_the_stages_fault_and_shows_no_query(allowed: Configure, web: Server) -> None:
    web.routes["/a"] = lambda h: h.answer(b"no such thing", status=404)
    with pytest.raises(StageError, match="status 404") as caught:
        run("http_get", web.url("/a?key=secret"))
    assert caught.value.details["status"] == 404
    assert caught.value.reason == "HTTP 404 no such thing"
    assert "secret" not in caught.value.to_json()


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_or_failing_server_is_tried_again(allowed: Configure, web: Server, status: int) -> None:
    web.routes["/a"] = lambda h: h.answer(status=status, Retry_After="7")
    with pytest.raises(SeatUnavailable) as caught:
        run("http_get", web.url("/a"))
    assert caught.value.details["retry_after"] == 7.0
    assert caught.value.details["status"] == status


def test_retry_after_is_seconds_or_a_date() -> None:
    assert parse_retry_after("12") == 12.0
    assert parse_retry_after(email.utils.formatdate(time.time() - 60, usegmt=True)) == 0.0
    later = parse_retry_after(email.utils.formatdate(time.time() + 3600, usegmt=True))
    assert later is not None
    assert 3000 < later <= 3600
    assert parse_retry_after("2.5") == 2.5
    for text in ("", "soon", "-1", "1e9", "9" * 50, "2.", ".5", "\u0661"):
        assert parse_retry_after(text) is None


@pytest.mark.parametrize("zone", ["", " -0000", " GMT", " +0000"])
def test_a_date_without_a_zone_is_of_utc_wherever_the_machine_stands(
    monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    time.tzset()
    try:
        assert parse_date(f"Sat, 28 Nov 2026 12:00:00{zone}") == 1_795_867_200
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_server_that_cannot_be_reached_is_tried_again(configure: Configure) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
    configure(http_allow="127.0.0.1")
    with pytest.raises(SeatUnavailable, match="cannot be reached"):
        run("http_get", f"http://127.0.0.1:{port}/")


def dripping(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    while not handler.server.released.wait(0.05):
        handler.wfile.write(b".")


def silent(handler: Handler) -> None:
    handler.server.released.wait(60)


@pytest.mark.parametrize("route", [silent, dripping])
def test_the_timeout_is_for_the_whole_answer(allowed: Configure, web: Server, route: Route) -> None:
    allowed(http_timeout=0.5)
    web.routes["/a"] = route
    with pytest.raises(SeatUnavailable, match="no answer within"):
        run("http_get", web.url("/a"))


@pytest.mark.parametrize("route", [silent, dripping])
def test_cancelling_ends_the_request(allowed: Configure, web: Server, route: Route) -> None:
    web.routes["/a"] = route
    context = StageContext()
    caught: list[BaseException] = []

    def ask() -> None:
        try:
            run("http_get", web.url("/a"), context)
        except GridError as exc:
            caught.append(exc)

    slot = threading.Thread(target=ask)
    slot.start()
    assert web.arrived.wait(10)
    context.cancel()
    # The request's own timeout is 20 s: only the cancellation can end it before.
    slot.join(10)
    assert not slot.is_alive()
    assert [type(exc) for exc in caught] == [JobCancelled]


def test_a_cancelled_stage_sends_no_request(allowed: Configure, web: Server) -> None:
    context = StageContext()
    context.cancel()
    with pytest.raises(JobCancelled):
        run("http_get", web.url("/a"), context)
    assert web.requests == []


def test_cancelling_after_the_answer_does_nothing(allowed: Configure, web: Server) -> None:
    web.routes["/a"] = lambda h: h.answer(b"hi")
    context = StageContext()
    assert run("http_get", web.url("/a"), context)["body"] == "hi"
    context.cancel()


@pytest.mark.parametrize(
    "headers", [{"Host": "b.example"}, {"a b": "x"}, {"a": "x\r\ny: z"}, {"a": 1}, {"a": "ü"}]
)
def test_a_header_that_cannot_be_sent_is_refused(
    allowed: Configure, web: Server, headers: dict[str, Any]
) -> None:
    with pytest.raises(StageError, match="header"):
        run("http_get", {"url": web.url("/a"), "headers": headers})
    assert web.requests == []


def reply(answer: Any, status: int = 200) -> Route:
    return lambda handler: handler.answer(
        json.dumps(answer).encode(), status, Content_Type="application/json"
    )


def test_a_remote_stage_posts_its_input_and_takes_data_output(allowed: Configure, web: Server) -> None:
    web.routes["/s"] = reply({"ok": True, "data": {"output": [1]}})
    assert run("remote_stage", {"url": web.url("/s"), "input": {"a": "ü"}}) == [1]
    command, _, headers, body = web.requests[0]
    assert command == "POST"
    assert headers["content-type"] == "application/json"
    assert json.loads(body) == {"input": {"a": "ü"}}


@pytest.mark.parametrize(
    ("value", "sent"), [({"a": 1, "b": 2}, {"a": 1, "b": 2}), ({"items": [1]}, [1]), ({"input": None}, None)]
)
def test_a_remote_stage_sends_its_input(
    allowed: Configure, web: Server, value: dict[str, Any], sent: Any
) -> None:
    web.routes["/s"] = reply({"data": {"output": None}})
    assert run("remote_stage", {**value, "url": web.url("/s")}) is None
    assert json.loads(web.requests[0][3]) == {"input": sent}


@pytest.mark.parametrize(
    ("route", "message"),
    [
        (reply({"ok": False, "error": "no such city"}), "no such city"),
        (reply({"ok": False, "error": {"code": 7}}, status=500), '{"code": 7}'),
        (reply({"detail": "x"}, status=503), "HTTP status 503"),
        (reply({"ok": True, "data": {}}), "no data.output"),
        (reply([1]), "no data.output"),
        (lambda h: h.answer(b"<html>"), "not JSON"),
        (lambda h: h.answer(b'{"data": {"output": NaN}}'), "NaN is not JSON"),
        (lambda h: h.answer(status=302, Location="/other"), "redirects a POST"),
    ],
)
def test_a_remote_stage_that_fails_is_a_stage_error(
    allowed: Configure, web: Server, route: Route, message: str
) -> None:
    web.routes["/s"] = route
    with pytest.raises(StageError) as caught:
        run("remote_stage", {"url": web.url("/s"), "input": 1})
    assert message in str(caught.value)


def test_a_post_is_repeated_where_a_redirect_says_so(allowed: Configure, web: Server) -> None:
    web.routes["/s"] = lambda h: h.answer(status=308, Location="/t")
    web.routes["/t"] = reply({"data": {"output": 1}})
    assert run("remote_stage", {"url": web.url("/s"), "input": 5}) == 1
    assert web.requests[1][0] == "POST"
    assert json.loads(web.requests[1][3]) == {"input": 5}


def test_a_connection_that_breaks_is_tried_again(allowed: Configure, web: Server) -> None:
    def broken(handler: Handler) -> None:
        handler.close_connection = True

    web.routes["/s"] = broken
    with pytest.raises(SeatUnavailable):
        run("remote_stage", {"url": web.url("/s"), "input": 1})


def test_a_setting_that_cannot_be_read_is_named(configure: Configure, web: Server) -> None:
    configure(http_timeout="soon")
    with pytest.raises(ConfigError, match="GRIDQ_HTTP_TIMEOUT"):
        run("http_get", web.url("/a"))
