"""A pool of connections to one endpoint whose calls can be ended from another thread.

The standard library's blocking client uses a tenth of the processor time of a pooled client on an event
loop. This module adds what it lacks: a call ends at its deadline however slowly the bytes arrive, and
`Call.drop` ends it at once from another thread, during name lookup, connecting, sending or reading.

Proxies come from HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, certificates from SSL_CERT_FILE and
SSL_CERT_DIR.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import os
import queue
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import certifi

CONNECT_SECONDS = 10.0
MAX_IDLE_CONNECTIONS = 512
"""Equals the maximum concurrency of a seat."""

JOINED_BYTES = 256 * 1024
"""Head and body of a request up to this size are sent as one. A longer body is not copied for that."""

IDLE_SECONDS = 30.0
"""Lifetime of an idle connection. The latest one is used first, so a quiet seat keeps few."""


class CallDropped(OSError):
    """The call was dropped from another thread."""


class NotConnected(OSError):
    """No connection could be opened: the name is unknown, or the endpoint refuses connections, does not
    accept one in time, or fails the TLS handshake. It has received nothing of the request.
    """


class Call:
    """A running call, which `drop` ends."""

    def __init__(self, get_deadline: Callable[[], float | None], silence: float) -> None:
        """Create a call. `get_deadline` returns its deadline in monotonic time, which may move.

        One wait lasts at most `silence` seconds.
        """
        self._get_deadline = get_deadline
        self._limit: float | None = None
        self._silence = silence
        self._lock = threading.Lock()
        self._socket: CallSocket | None = None
        self._is_dropped = False
        self.connected: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def compute_timeout(self) -> float:
        """Return the seconds that the next wait may last. Raises TimeoutError and CallDropped."""
        if self._is_dropped:
            raise CallDropped("the call was dropped")
        limits = [each for each in (self._get_deadline(), self._limit) if each is not None]
        if not limits:
            return self._silence
        remaining = min(limits) - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("the call reached its deadline")
        return min(self._silence, remaining)

    @property
    def is_dropped(self) -> bool:
        return self._is_dropped

    def limit_to(self, seconds: float) -> None:
        """End the call at most `seconds` from now."""
        self._limit = time.monotonic() + seconds

    def attach(self, call_socket: CallSocket | None) -> None:
        """Make `drop` end the waits of `call_socket`. None detaches the call from its socket."""
        with self._lock:
            self._socket = call_socket
            if call_socket is not None:
                call_socket.call = self

    def drop(self) -> None:
        """End the call, from any thread. Does nothing if it has ended."""
        with self._lock:
            self._is_dropped = True
            self.connected.put(None)
            if self._socket is not None:
                self._socket.shut_down()


class CallSocket:
    """A connected socket for `http.client`. The call that it serves limits every wait on it."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._unsent: list[bytes] = []
        self._readers = 0
        self._is_closed = False
        self.is_refused = False
        """True if the endpoint stopped reading before the request was sent."""
        self.call: Call | None = None
        self.idle_since = time.monotonic()

    @property
    def is_expired(self) -> bool:
        return time.monotonic() - self.idle_since > IDLE_SECONDS

    @property
    def is_stale(self) -> bool:
        """True if it was idle for too long, or if the endpoint has closed it or sent unexpected data."""
        if self.is_expired:
            return True
        self._socket.settimeout(0)
        try:
            # the recv of a TLS socket takes no flags
            socket.socket.recv(self._socket, 1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def _prepare(self) -> socket.socket:
        assert self.call is not None
        self._socket.settimeout(self.call.compute_timeout())
        return self._socket

    def sendall(self, data: bytes) -> None:
        """Keep `data` until the answer is read, so that head and body are sent together."""
        self._unsent.append(data)

    def receive(self, buffer: memoryview) -> int:
        if self._unsent:
            unsent, self._unsent = self._unsent, []
            if sum(map(len, unsent)) < JOINED_BYTES:
                unsent = [b"".join(unsent)]
            try:
                for data in unsent:
                    self._prepare().sendall(data)
            except (BrokenPipeError, ConnectionResetError):
                # It may have answered already, as to a body that is too large. If not, the read fails too.
                self.is_refused = True
        return self._prepare().recv_into(buffer)

    def makefile(self, mode: str) -> io.BufferedReader:
        self._readers += 1
        return io.BufferedReader(_Reader(self), 64 * 1024)

    def shut_down(self) -> None:
        """End every wait on the socket, from any thread."""
        with contextlib.suppress(OSError):
            # the shutdown of a TLS socket would change its state under the reading thread
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket once its last reader has closed: a response may outlive its connection."""
        self._is_closed = True
        self._close_if_unused()

    def release_reader(self) -> None:
        self._readers -= 1
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._is_closed and self._readers == 0:
            self._socket.close()


class _Reader(io.RawIOBase):
    def __init__(self, call_socket: CallSocket) -> None:
        self._socket = call_socket

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._socket.receive(buffer)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._socket.release_reader()


Connection = tuple[http.client.HTTPConnection, CallSocket]


class Connections:
    """The connections to one endpoint. Safe to use from several threads."""

    def __init__(self, url: str, headers: dict[str, str], silence: float, *, use_proxy: bool = True) -> None:
        """Create a pool without connections.

        `url` is the endpoint's base. One wait for its data lasts at most `silence` seconds. No proxy reaches
        an endpoint on this machine: without `use_proxy`, those of the environment are ignored.
        """
        parts = urlsplit(url)
        self._tls = parts.scheme == "https"
        host, self._port = parts.hostname or "", parts.port or (443 if self._tls else 80)
        self._host = host if host.isascii() else host.encode("idna").decode()
        self._base = quote(parts.path.rstrip("/"), safe="/%:@!$&'()*+,;=~")
        self._url_host = f"[{self._host}]" if ":" in self._host else self._host
        is_default = self._port == (443 if self._tls else 80)
        self._host_header = self._url_host if is_default else f"{self._url_host}:{self._port}"
        self._headers = {"User-Agent": "gridq", **headers}
        self._silence = silence
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._calls: set[Call] = set()
        proxies = urllib.request.getproxies() if use_proxy else {}
        proxy = proxies.get(parts.scheme) or proxies.get("all")
        is_bypassed = urllib.request.proxy_bypass(f"{self._host}:{self._port}")
        self._proxy = (
            urlsplit(proxy if "://" in proxy else f"http://{proxy}") if proxy and not is_bypassed else None
        )
        if self._proxy and not self._tls:
            self._base = f"http://{self._url_host}:{self._port}{self._base}"
            self._headers |= self._make_proxy_headers()

    @contextlib.contextmanager
    def request(
        self, method: str, path: str, body: bytes | None, call: Call, headers: dict[str, str] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """Send a request and yield its response. The connection is reused if the response is read to its end.

        `headers` are added to this request. Raises NotConnected if no connection could be opened, OSError and
        http.client.HTTPException if the endpoint closes it, TimeoutError if a wait or the call takes too
        long, and CallDropped.
        """
        with self._lock:
            self._calls.add(call)
        try:
            connection, call_socket = self._take_idle() or self._connect(call)
            call.attach(call_socket)
            try:
                stated = self._list_headers(headers or {}, body)
                connection.request(method, f"{self._base}/{path}", body, stated)
                response = connection.getresponse()
                try:
                    yield response
                finally:
                    is_read = response.isclosed() if response.length is None else response.length == 0
                    is_reusable = is_read and not response.will_close and not call_socket.is_refused
                    response.close()
            except BaseException as exc:
                call.attach(None)
                connection.close()
                if call.is_dropped and isinstance(exc, OSError | http.client.HTTPException):
                    raise CallDropped("the call was dropped") from None
                raise
            call.attach(None)
            self._put_back(connection, call_socket) if is_reusable else connection.close()
        finally:
            with self._lock:
                self._calls.discard(call)

    def close(self) -> None:
        """Drop the running calls and close the connections. The next call opens a new one."""
        with self._lock:
            calls, idle, self._idle = list(self._calls), self._idle, []
        for call in calls:
            call.drop()
        for connection, _ in idle:
            connection.close()

    def _list_headers(self, more: dict[str, str], body: bytes | None) -> dict[str, str]:
        """Return the headers of a request. If two have one name, in whatever case, the last applies."""
        own = {"Content-Type": "application/json", "Content-Length": str(len(body or b""))}
        every = ({"Host": self._host_header}, self._headers, more, {} if body is None else own)
        last = {name.lower(): (name, value) for each in every for name, value in each.items()}
        return dict(last.values())

    def _take_idle(self) -> Connection | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection, call_socket = self._idle.pop()
            if not call_socket.is_stale:
                return connection, call_socket
            connection.close()

    def _put_back(self, connection: http.client.HTTPConnection, call_socket: CallSocket) -> None:
        call_socket.idle_since = time.monotonic()
        with self._lock:
            self._idle.append((connection, call_socket))
            has_excess = self._idle[0][1].is_expired or len(self._idle) > MAX_IDLE_CONNECTIONS
            oldest = self._idle.pop(0)[0] if has_excess else None
        if oldest is not None:  # one for each that returns is enough, and costs the call little
            oldest.close()

    def _connect(self, call: Call) -> Connection:
        """Open a connection on a thread of its own: a name lookup and a handshake cannot be interrupted."""
        results, abandoned = call.connected, threading.Event()
        seconds = min(CONNECT_SECONDS, call.compute_timeout())

        def connect() -> None:
            try:
                results.put(self._open())
            except Exception as exc:  # the caller's thread raises it
                results.put(exc)
            if abandoned.is_set():
                _close_all(results)

        threading.Thread(target=connect, name="gridq-connect", daemon=True).start()
        try:
            result = results.get(timeout=seconds)
        except queue.Empty:
            result = TimeoutError("it did not accept the connection in time")
        if isinstance(result, tuple):
            return result
        abandoned.set()
        _close_all(results)
        call.compute_timeout()
        # a host that is no name is a UnicodeError
        if isinstance(result, OSError | http.client.HTTPException | UnicodeError):
            raise NotConnected(f"{type(result).__name__}: {result}") from result
        raise result if result is not None else CallDropped("the call was dropped")

    def _open(self) -> Connection:
        host, port = self._host, self._port
        if self._proxy is not None:
            if self._proxy.scheme != "http":
                raise OSError(
                    f"a proxy with the scheme {self._proxy.scheme!r} is not supported, only http://"
                )
            host, port = self._proxy.hostname or "", self._proxy.port or 80
        seconds = min(CONNECT_SECONDS, self._silence)
        connection = http.client.HTTPConnection(host, port, timeout=seconds)
        if self._tls and self._proxy is not None:
            connection.set_tunnel(self._url_host, self._port, self._make_proxy_headers())
        connection.connect()
        connection.auto_open = 0
        if self._tls:
            # by hand: the standard library would check the certificate for `[::1]` behind a tunnel
            connection.sock = self._certificates.wrap_socket(connection.sock, server_hostname=self._host)
        call_socket = connection.sock = CallSocket(connection.sock)
        return connection, call_socket

    def _make_proxy_headers(self) -> dict[str, str]:
        if self._proxy is None or not self._proxy.username:
            return {}
        credentials = f"{unquote(self._proxy.username)}:{unquote(self._proxy.password or '')}"
        return {"Proxy-Authorization": "Basic " + base64.b64encode(credentials.encode()).decode("ascii")}

    @property
    def _certificates(self) -> ssl.SSLContext:
        """The trusted certificates: SSL_CERT_FILE or SSL_CERT_DIR, else those of the package `certifi`."""
        file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
        with _certificates_lock:
            return _load_certificates(None, folder) if folder and not file else _load_certificates(file, None)


_certificates_lock = threading.Lock()


@cache
def _load_certificates(file: str | None, folder: str | None) -> ssl.SSLContext:
    """Load certificates, once for all connections: it takes tens of milliseconds of processor time, which
    adds up where many seats list their models at once.
    """
    if folder:
        return ssl.create_default_context(capath=folder)
    return ssl.create_default_context(cafile=file or certifi.where())


def _close_all(results: queue.SimpleQueue[Any]) -> None:
    """Close the connections that opened after the caller had stopped waiting."""
    with contextlib.suppress(queue.Empty):
        while True:
            result = results.get_nowait()
            if isinstance(result, tuple):
                result[0].close()
