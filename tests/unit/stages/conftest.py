from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gridq.config.settings import settings

Configure = Callable[..., None]


@pytest.fixture
def configure(monkeypatch: pytest.MonkeyPatch) -> Iterator[Configure]:
    """Set settings for one test: `configure(http_allow="a.example", max_value=2048)`."""

    def apply(**values: object) -> None:
        for name, value in values.items():
            monkeypatch.setenv("GRIDQ_" + name.upper(), str(value))
        settings.cache_clear()

    apply()
    yield apply
    monkeypatch.undo()
    settings.cache_clear()


class Server(ThreadingHTTPServer):
    """A real HTTP server whose paths are functions; it records the requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.routes: dict[str, Callable[[Handler], None]] = {}
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.arrived = threading.Event()
        self.released = threading.Event()

    @property
    def port(self) -> int:
        return self.server_address[1]

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", "0")))
        headers = {name.lower(): text for name, text in self.headers.items()}
        self.server.requests.append((self.command, self.path, headers, body))
        self.server.arrived.set()
        try:
            self.server.routes[self.path.partition("?")[0]](self)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_GET = do_POST = _serve

    def answer(self, body: bytes = b"", status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name.replace("_", "-"), text)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def web() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.released.set()
        server.shutdown()
        thread.join()
