"""Connections that cannot be held open by headers or bodies that do not end. uvicorn itself bounds neither
the length of headers nor the time that either may take; the length of bodies is bounded in `limits`.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gridq.errors import GridError, HeadersTooLarge, RequestError, RequestTooSlow
from gridq.gateway.http import errors
from gridq.gateway.http.bounds import HEADER_BYTES

HEAD_SECONDS = 30.0
"""Seconds within which a connection's first request must have sent its headers, and each that has begun."""

BODY_SECONDS = 60.0
"""Seconds after its headers within which a request must have sent its whole body."""


class Connection(HttpToolsProtocol):
    """One connection of the gateway: uvicorn's `http=Connection`."""

    _timer: asyncio.TimerHandle | None = None
    _head = True
    """Whether a request's headers are waited for, or have not ended."""
    _size = 0
    """Bytes of a head that came so far without its end."""
    _running: RequestResponseCycle | None = None
    """The request that the application answers, or last answered; others may wait behind it."""
    _deaf = False
    """Whether what comes is no longer read: the answers that are running are the connection's last."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._timer = self.loop.call_later(HEAD_SECONDS, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True  # uvicorn tells the connection's last request alone
            self._running.message_event.set()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except httptools.HttpParserCallbackError:
            self.send_400_response("Its target has no path, or is no URL.")
        except httptools.HttpParserError:
            # Not logged: whoever reaches the gateway could fill the log.
            self.send_400_response("Invalid HTTP request received.")
        if self._deaf or self.transport.is_closing():
            return
        if self._head:
            self._size += len(data)
            if self._size > 2 * HEADER_BYTES:
                most = f"at most {HEADER_BYTES} bytes"
                about = {"path": "headers", "expected": most}
                self._end(HeadersTooLarge("The request's headers are too long", about))
            elif self._timer is None:
                self._timer = self.loop.call_later(HEAD_SECONDS, self._too_slow)
        elif not self._has_body_to_come():
            self._stop_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(BODY_SECONDS, self._too_slow)

    def _feed(self, data: bytes) -> None:
        """Parse what came. Other protocols that a client would rather speak are ignored (RFC 9110, section
        7.8): httptools cannot, it ends such a request at its headers. They are read again without the wish.
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
        self._head, self._size = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if self.parser.get_method() == b"CONNECT":
            raise httptools.HttpParserError("a tunnel, whose target has no path")
        if self.parser.should_upgrade():
            return  # they come again: `_feed`
        super().on_headers_complete()
        self._head = False
        self._stop_timer()

    def on_message_complete(self) -> None:
        if not self._head:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._end(RequestError("That is no HTTP request", {"reason": msg}))

    def _has_body_to_come(self) -> bool:
        return self.cycle is not None and self.cycle.more_body and not self.cycle.response_complete

    def _too_slow(self) -> None:
        if self.transport.is_closing():
            return
        if self._has_body_to_come():
            about = {"expected": f"the whole within {BODY_SECONDS:g} s"}
            self._end(RequestTooSlow("The request's body did not come in time", about))
        elif not self._last():
            self.transport.close()

    def _last(self) -> bool:
        """Whether whole requests are being answered. If so the connection ends after them, and nothing that
        came behind them is answered: it would be taken for their answer.
        """
        if self.cycle is None or self.cycle.response_complete or self.cycle.more_body:
            return False
        self._deaf = True
        self.cycle.keep_alive = False
        return True

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, error: GridError) -> None:
        """Answer what is no request that the application could see, and end the connection."""
        self._stop_timer()
        if self._last():
            return
        if not self._head and (self.cycle.response_started or self.pipeline):
            self.transport.close()  # it would stand within an answer, or in the place of another request's
            return
        path = "" if self._head else self.scope["path"]
        request_id = errors.new_request_id()
        body = json.dumps(errors.shape(path, error, request_id), separators=(",", ":")).encode()
        headers = {
            **errors.headers_of(error, request_id),
            "content-type": "application/json",
            "content-length": str(len(body)),
            "x-content-type-options": "nosniff",
            "connection": "close",
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.transport.write(STATUS_LINE[errors.status_of(error)] + lines.encode("latin-1") + b"\r\n" + body)
        self.transport.close()
