"""Connections to one endpoint, kept for the next call, each of whose waits can be ended from outside.

The standard library's blocking client costs a tenth of the processor time of a pooled client on an event
loop. What it lacks stands here: a call ends at its deadline however slowly the bytes drip, and `drop`, from
another thread, ends it at once, whether it is looking a name up, connecting, sending or reading.

Proxies are used as HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY name them, certificates as SSL_CERT_FILE
and SSL_CERT_DIR do.
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
from collections.abc import Iterator
from functools import cached_property
from typing import Any
from urllib.parse import unquote, urlsplit

import certifi

CONNECT_SECONDS = 10.0
MAX_KEPT = 512
"""As many as a seat may have slots."""

KEPT_SECONDS = 30.0
"""How long an idle connection is kept; the freshest is used first, so a quieter seat needs fewer."""


class Dropped(OSError):
    """The call was dropped."""


class Call:
    """One call under way, which `drop` ends."""

    def __init__(self, until: float | None, silence: float) -> None:
        """`until`: its deadline by the monotonic clock; `silence`: seconds that one wait may last."""
        self._until = until
        self._silence = silence
        self._lock = threading.Lock()
        self._line: Line | None = None
        self._dropped = False
        self.connected: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def left(self) -> float:
        """Seconds for the next wait. TimeoutError: its time is over. Dropped: nobody wants the answer."""
        if self._dropped:
            raise Dropped("the call was dropped")
        if self._until is None:
            return self._silence
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the call's time is over")
        return min(self._silence, left)

    @property
    def dropped(self) -> bool:
        return self._dropped

    def hurry(self, seconds: float) -> None:
        """Let it last no longer than `seconds` from now on."""
        until = time.monotonic() + seconds
        self._until = until if self._until is None else min(self._until, until)

    def use(self, line: Line | None) -> None:
        """From now on `drop` ends the waits of `line`; None: the call has none any more."""
        with self._lock:
            self._line = line
            if line is not None:
                line.call = self

    def drop(self) -> None:
        """End the call, from any thread; harmless where it is over."""
        with self._lock:
            self._dropped = True
            self.connected.put(None)
            if self._line is not None:
                self._line.cut()


class Line:
    """A connected socket as `http.client` uses one; every wait on it is bounded by the call it serves."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._unsent: list[bytes] = []
        self._readers = 0
        self._closed = False
        self.call: Call | None = None
        self.idle_since = time.monotonic()

    @property
    def old(self) -> bool:
        return time.monotonic() - self.idle_since > KEPT_SECONDS

    @property
    def stale(self) -> bool:
        """Whether it was idle for long, or the other side has closed it or sent what nobody asked for."""
        if self.old:
            return True
        self._socket.settimeout(0)
        try:
            # a TLS socket's own recv takes no flags
            socket.socket.recv(self._socket, 1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def _ready(self) -> socket.socket:
        assert self.call is not None
        self._socket.settimeout(self.call.left())
        return self._socket

    def sendall(self, data: bytes) -> None:
        """Keep `data` until the answer is waited for: head and body go out together."""
        self._unsent.append(data)

    def receive(self, buffer: memoryview) -> int:
        if self._unsent:
            unsent, self._unsent = b"".join(self._unsent), []
            self._ready().sendall(unsent)
        return self._ready().recv_into(buffer)

    def makefile(self, mode: str) -> io.BufferedReader:
        self._readers += 1
        return io.BufferedReader(_Reader(self), 64 * 1024)

    def cut(self) -> None:
        """End every wait on it, from any thread."""
        with contextlib.suppress(OSError):
            # a TLS socket's own shutdown would change it under the thread that reads
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it when its last reader has closed: a response outlives the connection that it ends."""
        self._closed = True
        self._end()

    def reader_closed(self) -> None:
        self._readers -= 1
        self._end()

    def _end(self) -> None:
        if self._closed and self._readers == 0:
            self._socket.close()


class _Reader(io.RawIOBase):
    def __init__(self, line: Line) -> None:
        self._line = line

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._line.receive(buffer)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._line.reader_closed()


Connected = tuple[http.client.HTTPConnection, Line]


class Connections:
    """The connections to one endpoint. Safe to use from several threads."""

    def __init__(self, url: str, headers: dict[str, str], silence: float) -> None:
        """`url` is the endpoint's base; `silence`: seconds that it may send nothing."""
        parts = urlsplit(url)
        self._tls = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port or (443 if self._tls else 80)
        self._base = parts.path.rstrip("/")
        self._headers = {"User-Agent": "gridq", **headers}
        self._silence = silence
        self._lock = threading.Lock()
        self._kept: list[Connected] = []
        self._calls: set[Call] = set()
        proxies = urllib.request.getproxies()
        proxy = proxies.get(parts.scheme) or proxies.get("all")
        skipped = urllib.request.proxy_bypass(f"{self._host}:{self._port}")
        self._proxy = (
            urlsplit(proxy if "://" in proxy else f"http://{proxy}") if proxy and not skipped else None
        )
        if self._proxy and not self._tls:
            netloc = f"[{self._host}]" if ":" in self._host else self._host
            self._base = f"http://{netloc}:{self._port}{self._base}"
            self._headers |= self._proxy_login()

    @contextlib.contextmanager
    def ask(
        self, method: str, path: str, body: bytes | None, call: Call, login: dict[str, str] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """One call; its response, whose connection is kept where it was read to its end. `login`: headers of
        this call alone.

        OSError, http.client.HTTPException: the endpoint was not reached, or broke off. TimeoutError: a wait
        or the call lasted too long. Dropped.
        """
        with self._lock:
            self._calls.add(call)
        try:
            connection, line = self._idle() or self._connect(call)
            call.use(line)
            try:
                headers = {**self._headers, **(login or {})}
                if body is not None:
                    headers["Content-Type"] = "application/json"
                connection.request(method, f"{self._base}/{path}", body, headers)
                response = connection.getresponse()
                try:
                    yield response
                finally:
                    read = response.isclosed() if response.length is None else response.length == 0
                    whole = read and not response.will_close
                    response.close()
            except BaseException as exc:
                call.use(None)
                connection.close()
                if call.dropped and isinstance(exc, OSError | http.client.HTTPException):
                    raise Dropped("the call was dropped") from None
                raise
            call.use(None)
            self._keep(connection, line) if whole else connection.close()
        finally:
            with self._lock:
                self._calls.discard(call)

    def close(self) -> None:
        """Drop the calls under way and close the connections; the next call opens a new one."""
        with self._lock:
            calls, kept, self._kept = list(self._calls), self._kept, []
        for call in calls:
            call.drop()
        for connection, _ in kept:
            connection.close()

    def _idle(self) -> Connected | None:
        while True:
            with self._lock:
                if not self._kept:
                    return None
                connection, line = self._kept.pop()
            if not line.stale:
                return connection, line
            connection.close()

    def _keep(self, connection: http.client.HTTPConnection, line: Line) -> None:
        line.idle_since = time.monotonic()
        with self._lock:
            self._kept.append((connection, line))
            over = [self._kept.pop(0)] if self._kept[0][1].old or len(self._kept) > MAX_KEPT else []
        for old, _ in over:  # one for each that comes is enough, and costs the call little
            old.close()

    def _connect(self, call: Call) -> Connected:
        """A new connection, made on a thread of its own, as neither a name server nor a handshake can be
        interrupted.
        """
        made, abandoned = call.connected, threading.Event()
        seconds = min(CONNECT_SECONDS, call.left())

        def make() -> None:
            try:
                made.put(self._open())
            except Exception as exc:  # whatever it is, the caller's thread raises it
                made.put(exc)
            if abandoned.is_set():
                _discard(made)

        threading.Thread(target=make, name="gridq-connect", daemon=True).start()
        try:
            found = made.get(timeout=seconds)
        except queue.Empty:
            found = TimeoutError("it did not take the connection in time")
        if isinstance(found, tuple):
            return found
        abandoned.set()
        _discard(made)
        call.left()
        raise found if found is not None else Dropped("the call was dropped")

    def _open(self) -> Connected:
        host, port = self._host, self._port
        if self._proxy is not None:
            if self._proxy.scheme != "http":
                raise OSError(f"a proxy of the kind {self._proxy.scheme!r} is not supported, only http://")
            host, port = self._proxy.hostname or "", self._proxy.port or 80
        seconds = min(CONNECT_SECONDS, self._silence)
        if self._tls:
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, port, timeout=seconds, context=self._certificates
            )
            if self._proxy is not None:
                connection.set_tunnel(self._host, self._port, self._proxy_login())
        else:
            connection = http.client.HTTPConnection(host, port, timeout=seconds)
        connection.connect()
        connection.auto_open = 0
        line = connection.sock = Line(connection.sock)
        return connection, line

    def _proxy_login(self) -> dict[str, str]:
        if self._proxy is None or not self._proxy.username:
            return {}
        login = f"{unquote(self._proxy.username)}:{unquote(self._proxy.password or '')}"
        return {"Proxy-Authorization": "Basic " + base64.b64encode(login.encode()).decode("ascii")}

    @cached_property
    def _certificates(self) -> ssl.SSLContext:
        """Whom to trust: SSL_CERT_FILE or SSL_CERT_DIR, else the bundle of the package `certifi`."""
        file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
        if file:
            return ssl.create_default_context(cafile=file)
        if folder:
            return ssl.create_default_context(capath=folder)
        return ssl.create_default_context(cafile=certifi.where())


def _discard(made: queue.SimpleQueue[Any]) -> None:
    """Close a connection that came when nobody waited for it any more."""
    with contextlib.suppress(queue.Empty):
        while True:
            found = made.get_nowait()
            if isinstance(found, tuple):
                found[0].close()
