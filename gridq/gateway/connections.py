"""Connections that cannot be held open by headers or bodies that do not end. uvicorn itself bounds neither
the length of headers nor the time that either may take; the length of bodies is bounded in `limits`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gridq.errors import GridError, HeadersTooLarge, RequestError, RequestTooSlow
from gridq.gateway import faults
from gridq.gateway.limits import HEADER_BYTES

HEAD_SECONDS = 30.0
"""Seconds within which a connection's first request must have sent its headers, and each that has begun."""

BODY_SECONDS = 60.0
"""Seconds after its headers within which a request must have sent its whole body."""


NOISE = ("Invalid HTTP request received.", "Unsupported upgrade request.", "No supported WebSocket library")
"""Beginnings of what uvicorn warns of at each request that is none: whoever reaches it could fill the log."""


def quiet(record: logging.LogRecord) -> bool:
    """Whether a line of uvicorn's is worth keeping."""
    return not record.getMessage().startswith(NOISE)


logging.getLogger("uvicorn.error").addFilter(quiet)


class Connection(HttpToolsProtocol):
    """One connection of the gateway: uvicorn's `http=Connection`."""

    _timer: asyncio.TimerHandle | None = None
    _head = True
    """Whether a request's headers are waited for, or have not ended."""
    _size = 0
    """Bytes of a head that came so far without its end."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._timer = self.loop.call_later(HEAD_SECONDS, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
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

    def on_message_begin(self) -> None:
        self._head, self._size = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head = False
        self._stop_timer()
        super().on_headers_complete()

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
        else:
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, error: GridError) -> None:
        """Answer what is no request that the application could see, and end the connection."""
        self._stop_timer()
        if not self._head and self.cycle is not None and self.cycle.response_started:
            self.transport.close()
            return
        path = "" if self._head else self.scope["path"]
        request_id = faults.new_request_id()
        body = json.dumps(faults.shape(path, error, request_id), separators=(",", ":")).encode()
        headers = {
            **faults.headers_of(error, request_id),
            "content-type": "application/json",
            "content-length": str(len(body)),
            "x-content-type-options": "nosniff",
            "connection": "close",
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.transport.write(STATUS_LINE[faults.status_of(error)] + lines.encode("latin-1") + b"\r\n" + body)
        self.transport.close()
