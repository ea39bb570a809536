"""Connections that cannot be held open by headers without end. uvicorn's own bounds neither their length nor
the time that they take; what comes after them is bounded in `limits`.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gridq.errors import GridError, HeadersTooLarge, RequestError
from gridq.gateway import faults
from gridq.gateway.limits import HEADER_BYTES

HEAD_SECONDS = 30.0
"""Seconds within which a connection's first request must have sent its headers, and each that has begun."""


class Connection(HttpToolsProtocol):
    """One connection of the gateway: uvicorn's `http=Connection`."""

    _timer: asyncio.TimerHandle | None = None
    _head = False
    """Whether a request has begun whose headers have not ended."""
    _size = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._size = 0 if not self._head else self._size
        super().data_received(data)
        if not self._head:
            self._stop_timer()
            return
        self._size += len(data)
        if self._size > 2 * HEADER_BYTES:
            most = f"at most {HEADER_BYTES} bytes"
            self._end(
                HeadersTooLarge("The request's headers are too long", {"path": "headers", "expected": most})
            )
        elif self._timer is None:
            self._await_head()

    def on_message_begin(self) -> None:
        self._head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head = False
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        self._end(RequestError("That is no HTTP request", {"reason": msg}))

    def _await_head(self) -> None:
        self._timer = self.loop.call_later(HEAD_SECONDS, self._too_slow)

    def _too_slow(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, error: GridError) -> None:
        """Answer what is no request that the application could see, and end the connection."""
        self._stop_timer()
        self._head = False
        request_id = faults.new_request_id()
        body = json.dumps(faults.grid_error(error, request_id), separators=(",", ":")).encode()
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
