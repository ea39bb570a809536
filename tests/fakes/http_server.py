"""The base classes of the fake HTTP servers."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class Handler(BaseHTTPRequestHandler):
    """Handles one connection and logs nothing."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        pass

    def body(self) -> Any:
        """Return the JSON of the request."""
        return json.loads(self.rfile.read(int(self.headers["content-length"])))

    def answer(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        """Send `value` as JSON, or bytes unchanged."""
        raw = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def begin_stream(self) -> None:
        """Send the head of an event stream. `chunk` sends its data; empty data ends it."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


class QuietServer(ThreadingHTTPServer):
    """A server that prints no traceback when a client resets its connection, as some tests do."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class LocalServer:
    """Start it with `with`. `url` is its address, with `path` at the end."""

    def __init__(self, handler: type[Handler], path: str = "", port: int = 0) -> None:
        self._server = QuietServer(("127.0.0.1", port), handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}{path}"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(OSError):  # as in mirror_server.py: it stops at once
            self._server.socket.shutdown(socket.SHUT_RDWR)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


class ModelServer(LocalServer):
    """A server of a model API that records its requests. `url` is its base URL, `key` the key it accepts."""

    def __init__(self, handler: type[Handler], key: str | None) -> None:
        super().__init__(handler, "/v1")
        self.key = key
        self.requests: list[dict[str, Any]] = []
        self.started = threading.Event()
        self.disconnected = threading.Event()
        self.stopping = threading.Event()

    def __exit__(self, *exc: object) -> None:
        self.stopping.set()
        super().__exit__(*exc)

    def take(self, handler: Handler) -> dict[str, Any]:
        """Record a request and return its body."""
        body: dict[str, Any] = handler.body()
        self.requests.append({"path": handler.path, "body": body, "headers": dict(handler.headers)})
        self.started.set()
        return body

    def keep_silent(self, handler: Handler) -> None:
        """Send nothing until the client disconnects or the server stops."""
        while not self.stopping.is_set():
            if select.select([handler.connection], [], [], 0.05)[0]:
                self.disconnected.set()
                break
        handler.close_connection = True
