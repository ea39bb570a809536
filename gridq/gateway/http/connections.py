"""Bound the time and the size of a request's head and body, so that a slow client cannot hold a connection
open.

uvicorn bounds neither the length of headers nor the time that headers and body may take. `bounds` limits
the length of bodies.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gridq.errors import GridError, HeadersTooLarge, RequestError, RequestTooSlow
from gridq.gateway.http import errors
from gridq.gateway.http.bounds import MAX_HEADER_BYTES
from gridq.gateway.streaming.sse import encode_json

HEADER_TIMEOUT_SECONDS = 30.0
"""The longest that the headers of a request may take, and a new connection to its first request."""

BODY_TIMEOUT_SECONDS = 60.0
"""The longest that the body of a request may take after its headers."""


class BoundedConnection(HttpToolsProtocol):
    """One connection of the gateway; uvicorn's `http=BoundedConnection`."""

    _timer: asyncio.TimerHandle | None = None
    _in_headers = True
    """True while the headers of a request are expected or incomplete."""
    _header_bytes = 0
    """Bytes of the incomplete head so far."""
    _current: RequestResponseCycle | None = None
    """The request that the application handles or handled last. Pipelined ones may be queued behind it."""
    _ignores_input = False
    """True once input is ignored, because the connection closes after the current responses."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._timer = self.loop.call_later(HEADER_TIMEOUT_SECONDS, self._handle_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._current is not None and not self._current.response_complete:
            self._current.disconnected = True  # uvicorn notifies only the last request of the connection
            self._current.message_event.set()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._current = cycle
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        if self._ignores_input:
            return
        self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except httptools.HttpParserCallbackError:
            self.send_400_response("The request target is not a URL with a path.")
        except httptools.HttpParserError:
            # Not logged, because anybody could fill the log.
            self.send_400_response("Invalid HTTP request received.")
        if self._ignores_input or self.transport.is_closing():
            return
        if self._in_headers:
            self._header_bytes += len(data)
            if self._header_bytes > 2 * MAX_HEADER_BYTES:
                details = {"path": "headers", "expected": f"at most {MAX_HEADER_BYTES} bytes"}
                self._reject(HeadersTooLarge("The request headers are too large", details))
            elif self._timer is None:
                self._timer = self.loop.call_later(HEADER_TIMEOUT_SECONDS, self._handle_timeout)
        elif not self._has_body_to_come():
            self._stop_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(BODY_TIMEOUT_SECONDS, self._handle_timeout)

    def _feed(self, data: bytes) -> None:
        """Parse input, ignoring requests to switch the protocol (RFC 9110, section 7.8).

        httptools cannot ignore them: it ends such a request at its headers. They are parsed again without
        `Upgrade`.
        """
        rest = memoryview(data)
        while rest:
            try:
                self.parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as stopped:
                rest = rest[stopped.args[0] :]
            version = self.parser.get_http_version().encode()
            lines = [self.parser.get_method() + b" " + self.url + b" HTTP/" + version]
            lines += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own
            self.parser.feed_data(b"\r\n".join(lines) + b"\r\n\r\n")

    def on_message_begin(self) -> None:
        self._in_headers, self._header_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if self.parser.get_method() == b"CONNECT":
            raise httptools.HttpParserError("CONNECT is not supported")
        if self.parser.should_upgrade():
            return  # `_feed` parses them again
        super().on_headers_complete()
        self._in_headers = False
        self._stop_timer()

    def on_message_complete(self) -> None:
        if not self._in_headers:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._reject(RequestError("The request is not valid HTTP", {"reason": msg}))

    def _has_body_to_come(self) -> bool:
        return self.cycle is not None and self.cycle.more_body and not self.cycle.response_complete

    def _handle_timeout(self) -> None:
        if self.transport.is_closing():
            return
        if self._has_body_to_come():
            details = {"path": "body", "expected": f"the whole body within {BODY_TIMEOUT_SECONDS:g} s"}
            self._reject(RequestTooSlow("The request body did not arrive in time", details))
        elif not self._finish_responses():
            self.transport.close()

    def _finish_responses(self) -> bool:
        """Close the connection after the responses to complete requests; return False if there are none.

        Input behind them is not answered: the client would take the answer for one of theirs.
        """
        if self.cycle is None or self.cycle.response_complete or self.cycle.more_body:
            return False
        self._ignores_input = True
        self.cycle.keep_alive = False
        return True

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _reject(self, error: GridError) -> None:
        """Answer a request that cannot reach the application, and close the connection."""
        self._stop_timer()
        if self._finish_responses():
            return
        if not self._in_headers and (self.cycle.response_started or self.pipeline):
            self.transport.close()  # the error would end up inside a response, or in place of another one
            return
        path = "" if self._in_headers else self.scope["path"]
        request_id = errors.make_request_id()
        body = encode_json(errors.format_error(path, error, request_id))
        headers = {
            **errors.make_headers(error, request_id),
            "content-type": "application/json",
            "content-length": str(len(body)),
            "x-content-type-options": "nosniff",
            "connection": "close",
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.transport.write(
            STATUS_LINE[errors.find_status(error)] + lines.encode("latin-1") + b"\r\n" + body
        )
        self.transport.close()
