"""Read one HTTP response as it arrives, by the parser in C that the gateway reads requests with.

The standard library's parser is that of e-mail: it would take longer for the head of a stream than everything
else that the first words of an answer wait for on their way through the worker.
"""

from __future__ import annotations

import http.client
from collections.abc import Callable

import httptools

MAX_HEAD_BYTES = 256 * 1024
"""Limit of the status line and the headers together."""

FINAL = 200
"""The lowest status of a response that is not followed by another one to the same request."""


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
        self._head_bytes = 0
        self._parts: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)
        # As lenient as the standard library. What follows a response is never taken for another one.
        self._parser.set_dangerous_leniencies(
            lenient_headers=True,
            lenient_chunked_length=True,
            lenient_version=True,
            lenient_optional_cr_before_lf=True,
            lenient_optional_crlf_after_chunk=True,
            lenient_spaces_after_chunk_size=True,
        )

    def read_head(self) -> None:
        while not self._has_head:
            data = self._receive()
            if not data:
                raise http.client.RemoteDisconnected("it closed the connection without a response")
            self._head_bytes += len(data)
            self._feed(data)
            if not self._has_head and self._head_bytes > MAX_HEAD_BYTES:
                raise http.client.LineTooLong("response head")

    def read(self) -> bytes:
        """Return the next part of the body, b"" after its end."""
        while not (self._parts or self.is_complete):
            data = self._receive()
            if data:
                self._feed(data)
            elif self._ends_with_connection:
                self.is_complete = True
            else:
                raise http.client.IncompleteRead(b"")
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @property
    def _ends_with_connection(self) -> bool:
        return not {"content-length", "transfer-encoding"} & self.headers.keys()

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as exc:
            if not self.is_complete:
                raise http.client.BadStatusLine(str(exc)) from None
            self.keeps_connection = False

    # -- called by the parser

    def on_message_begin(self) -> None:
        if self.is_complete:
            self.keeps_connection = False  # it sent more than was asked for

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._has_head:
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._has_head:
            return
        self.status = self._parser.get_status_code()
        self._has_head = self.status >= FINAL
        if not self._has_head:
            self.headers.clear()

    def on_body(self, data: bytes) -> None:
        if not self.is_complete:
            self._parts.append(data)

    def on_message_complete(self) -> None:
        if self._has_head and not self.is_complete:
            self.is_complete = True
            self.keeps_connection = self._parser.should_keep_alive()
