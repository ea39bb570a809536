"""Read one HTTP response as it arrives: its head by the parser in C that the gateway reads requests with.

The standard library's parser is that of e-mail: it would take longer for the head of a stream than everything
else that the first words of an answer wait for on their way through the worker. Chunks are read here, for
the parser in C refuses extensions that RFC 9112 allows.
"""

from __future__ import annotations

import http.client
import re
from collections.abc import Callable, Iterator

import httptools

MAX_HEAD_BYTES = 256 * 1024
"""Limit of the status line and the headers together, and of each line of a chunked body."""

SWITCHING_PROTOCOLS = 101
INTERIM = frozenset(range(100, 200)) - {SWITCHING_PROTOCOLS}
"""Another response to the same request follows these."""

WITHOUT_BODY = frozenset({SWITCHING_PROTOCOLS, 204, 304})

_HEAD_END = re.compile(rb"\n\r?\n")
_HEAD_END_BYTES = 3
_CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]+")


class Response:
    """The response to one request: its head, once `read_head` has returned, and its body, part by part.

    `receive()` returns the next bytes of the connection, none at its end. Reading raises what it raises, and
    http.client.HTTPException if the response is not HTTP or breaks off.
    """

    def __init__(self, receive: Callable[[], bytes]) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        """By name in lower case. Of a repeated one the last."""
        self.is_complete = False
        """True once the body was received to its end."""
        self.keeps_connection = False
        """True if another request may follow on the connection once this one is complete."""
        self._receive = receive
        self._has_head = False
        self._data = b""  # what was received last
        self._at = 0  # how far it is read
        self._body = self._iter_body()

    def read_head(self) -> None:
        before, size = b"", 0
        self._begin_parsing()
        while not self._has_head:
            if not self._fill():
                raise http.client.RemoteDisconnected("it closed the connection without a response")
            searched = before + self._data[self._at :]
            end = _HEAD_END.search(searched)
            part = searched[len(before) : end.end() if end else None]
            self._at += len(part)
            size += len(part)
            try:
                self._parser.feed_data(part)
            except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
                if not self._has_head:
                    raise http.client.BadStatusLine(str(exc)) from None
            if not self._has_head and size > MAX_HEAD_BYTES:
                raise http.client.LineTooLong("response head")
            before = b"" if end else searched[1 - _HEAD_END_BYTES :]
            if end and not self._has_head:  # an interim response may have announced the connection's end
                self._begin_parsing()
        del self._parser  # each refers to the other

    def _begin_parsing(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(  # as lenient as the standard library
            lenient_headers=True,
            lenient_chunked_length=True,
            lenient_version=True,
            lenient_optional_cr_before_lf=True,
        )

    def read(self) -> bytes:
        """Return the next part of the body, b"" after its end."""
        return next(self._body, b"")

    def _iter_body(self) -> Iterator[bytes]:
        """Yield the body, by the rules of RFC 9112 section 6.3."""
        codings = self.headers.get("transfer-encoding", "identity").lower().split(",")
        if self.status in WITHOUT_BODY:
            pass
        elif codings[-1].strip() == "chunked":
            yield from self._iter_chunks()
        elif codings != ["identity"] or "content-length" not in self.headers:
            while self._fill():
                yield self._take(len(self._data))
        else:
            yield from self._iter_bytes(int(self.headers["content-length"]))
        self.is_complete = True
        if self._at < len(self._data):  # it sent more than was asked for
            self.keeps_connection = False

    def _iter_chunks(self) -> Iterator[bytes]:
        while size := self._read_chunk_size():
            yield from self._iter_bytes(size)
            if self._read_line().strip():
                raise http.client.BadStatusLine("a chunk is longer than it says")
        try:
            while self._read_line().strip():  # a trailer
                pass
        except http.client.IncompleteRead:  # the body is whole
            self.keeps_connection = False

    def _read_chunk_size(self) -> int:
        size = self._read_line().partition(b";")[0].strip()
        if not _CHUNK_SIZE.fullmatch(size):
            raise http.client.BadStatusLine("a chunk does not begin with its size")
        return int(size, 16)

    def _iter_bytes(self, count: int) -> Iterator[bytes]:
        while count:
            self._require_data()
            part = self._take(count)
            count -= len(part)
            yield part

    def _read_line(self) -> bytes:
        """Return the next line, with its end."""
        line = b""
        while not line.endswith(b"\n"):
            self._require_data()
            end = self._data.find(b"\n", self._at) + 1
            line += self._take((end or len(self._data)) - self._at)
            if len(line) > MAX_HEAD_BYTES:
                raise http.client.LineTooLong("line of a chunked body")
        return line

    def _take(self, count: int) -> bytes:
        """Return up to `count` bytes of what is received."""
        part = self._data[self._at : self._at + count]
        self._at += len(part)
        return part

    def _require_data(self) -> None:
        if not self._fill():
            raise http.client.IncompleteRead(b"")

    def _fill(self) -> bool:
        """Receive more if all is read. Return whether there is something to read."""
        if self._at == len(self._data):
            self._data, self._at = self._receive(), 0
        return bool(self._data)

    # -- called by the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status in INTERIM:
            self.headers.clear()
        else:
            self._has_head = True
            self.keeps_connection = self.status != SWITCHING_PROTOCOLS and self._parser.should_keep_alive()
