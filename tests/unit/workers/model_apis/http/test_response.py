"""How a response is read, from bytes as they may arrive."""

from __future__ import annotations

import http.client
from collections.abc import Sequence

import pytest

from workers.model_apis.http import response as response_module
from workers.model_apis.http.response import Response

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
TWO = HEAD + b"Content-Length: 2\r\n\r\n"


def read(parts: Sequence[bytes]) -> tuple[Response, bytes]:
    """Return the response that arrives in `parts`, after which its connection ends, and its body."""
    left = iter(parts)
    response = Response(lambda: next(left, b""))
    response.read_head()
    body = b""
    while part := response.read():
        body += part
    assert response.read() == b""
    return response, body


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_chunked_body_in_pieces_of_any_size(size: int):
    raw = HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nTrailer: x\r\n\r\n"
    response, body = read([raw[at : at + size] for at in range(0, len(raw), size)])
    assert (response.status, body) == (200, b"abcde")
    assert response.headers == {"content-type": "text/plain", "transfer-encoding": "chunked"}
    assert response.keeps_connection


def test_the_head_is_there_before_the_body():
    parts = iter([HEAD + b"Content-Length: 2\r\n\r\n"])
    response = Response(lambda: next(parts))
    response.read_head()
    assert (response.status, response.is_complete) == (200, False)


@pytest.mark.parametrize(
    ("raw", "body", "keeps"),
    [
        (HEAD + b"Content-Length: 2\r\n\r\nab", b"ab", True),
        (HEAD + b"Content-Length: 2\r\nConnection: close\r\n\r\nab", b"ab", False),
        (HEAD + b"Content-Length: 0\r\n\r\n", b"", True),
        (HEAD + b"\r\nab", b"ab", False),  # its end is that of the connection
        (b"HTTP/1.0 200 OK\r\n\r\nab", b"ab", False),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
        (b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nab", b"ab", True),  # without a reason
        (HEAD.replace(b"\r\n", b"\n") + b"Content-Length: 2\n\nab", b"ab", True),
        (HEAD + b"Content-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n", b"ab", True),
        (HEAD + b"Content-Length: 2\r\n\r\nabc", b"ab", False),  # more than was asked for
        (HEAD + b"Content-Length: 2\r\n\r\nab" + HEAD + b"\r\n", b"ab", False),
        (b"HTTP/1.1 100 Continue\r\nA: b\r\n\r\n" + HEAD + b"Content-Length: 2\r\n\r\nab", b"ab", True),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n" + HEAD + b"Content-Length: 2\r\n\r\nab", b"ab", True),
        (b"HTTP/1.1 100 Continue\r\nConnection: close\r\n\r\n" + TWO + b"ab", b"ab", True),
        (b"HTTP/1.0 100 Continue\r\n\r\n" + TWO + b"ab", b"ab", True),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nab", b"", False),
        (
            b"HTTP/1.1 200 OK\r\nUpgrade: h2c\r\nConnection: upgrade\r\nContent-Length: 2\r\n\r\nab",
            b"ab",
            True,
        ),
        (b"HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\n", b"", True),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 2\r\n\r\n", b"", True),
        (b"HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\nab", b"", False),
        (HEAD + b"Transfer-Encoding: identity\r\n\r\nab", b"ab", False),
        (HEAD + b"Transfer-Encoding: identity\r\nContent-Length: 2\r\n\r\nab", b"ab", False),
        (HEAD + b"Transfer-Encoding: gzip, Chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n", b"ab", True),
        (CHUNKED + b"2\r\nab\r\n0\r\n\r\n\r\nH", b"ab", False),
        (CHUNKED + b"2\r\nab\r\n0\r\nA: b\r\nno trailer\r\nContent-Length: 9\r\n\r\n", b"ab", True),
        (CHUNKED + b"2\r\nab\r\n0\r\n", b"ab", False),  # the last line is missing, the body is whole
        (CHUNKED + b"2\nab\n0\n\n", b"ab", True),
    ],
)
def test_where_a_body_ends_and_whether_its_connection_is_kept(raw: bytes, body: bytes, keeps: bool):
    response, found = read([raw])
    assert found == body
    assert response.is_complete
    assert response.keeps_connection is keeps
    assert "a" not in response.headers


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (b"", http.client.RemoteDisconnected),
        (b"HTTP/1.1 200 OK\r\nContent-", http.client.RemoteDisconnected),
        (b"220 smtp.example.com ESMTP\r\n\r\n", http.client.BadStatusLine),
        (HEAD + b"Content-Length: 3\r\n\r\nab", http.client.IncompleteRead),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", http.client.IncompleteRead),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\nabc\r\n", http.client.BadStatusLine),
        (CHUNKED + b"-3\r\nabc\r\n", http.client.BadStatusLine),
        (CHUNKED + b"2\r\nabc\r\n", http.client.BadStatusLine),
        (CHUNKED + b"ffffffffffffffffffff\r\nabc\r\n", http.client.IncompleteRead),
        (HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nabc", http.client.BadStatusLine),
    ],
)
def test_what_is_not_a_whole_response(raw: bytes, error: type[Exception]):
    with pytest.raises(error):
        read([raw] if raw else [])


def test_a_head_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(response_module, "MAX_HEAD_BYTES", 1000)
    with pytest.raises(http.client.LineTooLong):
        read([HEAD, *([b"X-Y: z\r\n"] * 1000)])


@pytest.mark.parametrize("size", [1, 3, 10_000])
@pytest.mark.parametrize(
    "line",
    [b"2;x", b"2; x=y", b"2 ;x", b"2 ; x = y ; z", b"2\t;\tx", b'2;x="a;\\"b" ; y', b"2;", b"2  ", b"0002"],
)
def test_extensions_of_chunks_are_ignored_as_rfc_9112_asks(line: bytes, size: int):
    raw = CHUNKED + line + b"\r\nab\r\n0 ; x\r\n\r\n"
    response, body = read([raw[at : at + size] for at in range(0, len(raw), size)])
    assert (body, response.keeps_connection) == (b"ab", True)


@pytest.mark.parametrize("start", [b"2;", b"0\r\nTrailer: "])
def test_a_line_without_end_in_a_body_is_given_up(monkeypatch: pytest.MonkeyPatch, start: bytes):
    monkeypatch.setattr(response_module, "MAX_HEAD_BYTES", 1000)
    received = 0

    def receive() -> bytes:
        nonlocal received
        received += 100
        return CHUNKED + start if received == 100 else b"x" * 100

    response = Response(receive)
    response.read_head()
    with pytest.raises(http.client.LineTooLong):
        list(iter(response.read, b""))
    assert received < 2000


def test_a_head_in_single_bytes_and_folded_lines():
    raw = HEAD + "Retry-After:\r\n 5\r\nA: gr\xfc\xdf\r\nContent-Length: 0\r\n\r\n".encode("latin-1")
    response, _ = read([raw[at : at + 1] for at in range(len(raw))])
    assert response.headers["retry-after"] == "5"
    assert response.headers["a"] == "gr\xfc\xdf"
