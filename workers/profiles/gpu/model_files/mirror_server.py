"""Serve the models of this machine to the others of the grid, by the SHA-256 of their files.

A request is `GET /models/<sha256>` with the header that `mirror_protocol.sign` makes. It may have
`Range: bytes=N-`. Only files of the list of local models are opened, and only while their size and
modification time are those with which gridq verified them. A file that is removed meanwhile is still given to
those who get it already.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from pydantic import ValidationError

from gridq.errors import ConfigError, ModelReferenceInvalid
from workers.model_apis.model_catalogue import CHECKSUM_CACHE, has_checksum
from workers.profiles.gpu.model_files.local_models import LocalFile, LocalModel, LocalModels
from workers.profiles.gpu.model_files.mirror_protocol import (
    PATH,
    Mirror,
    SharedFile,
    SharedModel,
    is_signed,
    make_secret,
)
from workers.profiles.gpu.model_files.references import HubReference, UrlReference, parse_reference

log = logging.getLogger(__name__)

SECRET_SECONDS = 86_400
"""The age at which a secret is replaced. It is valid for as long again, for pulls that are under way; then
machines that have left the grid get nothing more.
"""

MAX_TRANSFERS = 4
MAX_CONNECTIONS = 32
"""Connections beyond these are closed at once, and transfers refused with 503."""

HEAD_SECONDS = 10.0
SEND_SECONDS = 30.0
MIN_BYTES_PER_SECOND = 100_000
"""A connection is closed if its request takes longer than the first, if its client takes nothing for the
second, or if it is slower than the third on the whole.
"""

CHUNK_BYTES = 1024 * 1024
MAX_MODELS = 500
"""Models that a mirror advertises, those used last."""

RETRY_SECONDS = 5


class MirrorServer:
    """The HTTP server of one home folder's models. Raises ConfigError if it cannot listen at `address`.

    `gated`: also models of gated and private repositories, and of URLs with a query. `bytes_per_second`
    limits all transfers together.
    """

    def __init__(
        self,
        home: Path,
        address: tuple[str, int],
        *,
        gated: bool = False,
        bytes_per_second: float | None = None,
    ) -> None:
        self._home = home
        self._gated = gated
        self._secrets: tuple[str, ...] = (make_secret(),)
        self._secret_made_at = time.monotonic()
        self._server = _listen(address, self._answer)
        self._transfers = threading.BoundedSemaphore(MAX_TRANSFERS)
        self._pace = _Pace(bytes_per_second)
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        self.url = f"http://{host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="mirror", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop listening, and cut the transfers that are under way: others go on with what they have."""
        self._server.shutdown()
        self._server.close_connections()
        self._server.server_close()

    def describe(self, machine: str) -> Mirror:
        """Return what this machine advertises."""
        models = sorted(self.list_models(), key=lambda model: model.used_at, reverse=True)
        return Mirror(
            machine=machine,
            url=self.url,
            secret=self._renew_secret(),
            models=tuple(_describe_models(models[:MAX_MODELS])),
        )

    def _renew_secret(self) -> str:
        now = time.monotonic()
        if now - self._secret_made_at >= SECRET_SECONDS:
            self._secrets, self._secret_made_at = (make_secret(), self._secrets[0]), now
        return self._secrets[0]

    def list_models(self) -> list[LocalModel]:
        """Return the models that may be shared and whose files are as they were verified."""
        return [
            model
            for model in LocalModels(self._home).read()
            if self._may_share(model) and all(self._is_verified(file) for file in model.files)
        ]

    def _may_share(self, model: LocalModel) -> bool:
        """Return whether a model came from where others can get it: not a file that the owner had."""
        try:
            reference = parse_reference(model.reference)
        except ModelReferenceInvalid:  # somebody wrote into the list
            return False
        if isinstance(reference, HubReference):
            return model.access == "open" or (self._gated and model.access in ("gated", "private"))
        # a query is often the right to read the file: a signature, or a token
        return isinstance(reference, UrlReference) and (self._gated or not urlsplit(reference.url).query)

    def _is_verified(self, file: LocalFile) -> bool:
        try:
            return self._matches(file, os.stat(file.path))
        except OSError:
            return False

    def _matches(self, file: LocalFile, found: os.stat_result) -> bool:
        is_file = stat.S_ISREG(found.st_mode) and found.st_size == file.size
        return is_file and has_checksum(file.path, found, file.sha256, self._home / CHECKSUM_CACHE)

    def _open(self, sha256: str) -> BinaryIO | None:
        """Return the opened file with this digest, None if this machine shares none."""
        for model in LocalModels(self._home).read():
            for file in model.files if self._may_share(model) else ():
                if file.sha256 != sha256:
                    continue
                try:
                    # without waiting, should the file have become a pipe
                    opened = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
                except OSError:
                    continue
                if self._matches(file, os.fstat(opened)):
                    return os.fdopen(opened, "rb")
                os.close(opened)
        return None

    def _answer(self, request: _Request) -> None:
        match = re.fullmatch(PATH + r"([0-9a-f]{64})", request.path, re.ASCII)
        sha256 = match[1] if match else ""
        header = request.headers.get("authorization", "")
        # before anything else, so that a stranger does not learn what is here
        if not any(is_signed(secret, sha256, header) for secret in self._secrets) or not sha256:
            request.refuse(403)
        elif not self._transfers.acquire(blocking=False):
            request.refuse(503, {"Retry-After": str(RETRY_SECONDS)})
        else:
            try:
                opened = self._open(sha256)
                if opened is None:
                    request.refuse(404)
                    return
                with opened:
                    request.send_file(opened, self._pace)
            finally:
                self._transfers.release()


def _describe_models(models: Iterable[LocalModel]) -> Iterator[SharedModel]:
    """Yield what others learn of the models. One that they would not believe is left out."""
    for model in models:
        try:
            yield _describe_model(model)
        except ValidationError as exc:
            log.warning("%s is not shared: %s", model.name, exc.errors(include_url=False)[0]["msg"])


def _describe_model(model: LocalModel) -> SharedModel:
    """Return what others learn of a model. The URL of a web server is left out, as it may hold a password."""
    reference = parse_reference(model.reference)
    is_of_hub = isinstance(reference, HubReference)
    files = []
    for file in model.files:
        path = file.path.rpartition(f"/snapshots/{model.commit}/")[2] if is_of_hub else file.sha256
        files.append(SharedFile(path=path.lstrip("/"), size=file.size, sha256=file.sha256))
    return SharedModel(
        reference=model.reference if is_of_hub else "",
        commit=model.commit if is_of_hub else "",
        quantization=model.quantization,
        access=model.access,
        pulled_at=model.pulled_at,
        files=tuple(files),
    )


class _Pace:
    """Holds all transfers together to a number of bytes a second; None: no limit."""

    def __init__(self, bytes_per_second: float | None) -> None:
        self._rate = bytes_per_second
        self._lock = threading.Lock()
        self._free_at = 0.0

    def wait(self, count: int) -> None:
        """Wait until `count` more bytes may be sent."""
        if self._rate is None:
            return
        with self._lock:
            now = time.monotonic()
            begin = max(now, self._free_at)
            self._free_at = begin + count / self._rate
        time.sleep(begin - now)

    def compute_seconds(self, count: int) -> float:
        """Return how long `count` bytes may take: the time for a slow client, or for the limit."""
        rate = MIN_BYTES_PER_SECOND if self._rate is None else min(MIN_BYTES_PER_SECOND, self._rate / 8)
        return SEND_SECONDS + count / rate


class _Request(BaseHTTPRequestHandler):
    """One connection, with one request."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "gridq", ""
    timeout = HEAD_SECONDS
    server: _Server

    def do_GET(self) -> None:
        self.close_connection = True
        self.server.answer(self)

    def send_file(self, file: BinaryIO, pace: _Pace) -> None:
        """Send the file from the byte that the request asks for."""
        size = os.fstat(file.fileno()).st_size
        match = re.fullmatch(r"bytes=(\d{1,18})-", self.headers.get("range", ""), re.ASCII)
        at = int(match[1]) if match else 0
        if match and at >= size:
            self.refuse(416, {"Content-Range": f"bytes */{size}"})
            return
        self.server.set_deadline(self.connection, pace.compute_seconds(size - at))
        self.connection.settimeout(SEND_SECONDS)
        self.send_response(206 if match else 200)
        if match:
            self.send_header("Content-Range", f"bytes {at}-{size - 1}/{size}")
        self.send_header("Content-Type", "application/octet-stream")
        self._end_head(size - at)
        log.info("%s gets %s from byte %d on", self.client_address[0], self.path, at)
        while at < size:
            count = min(CHUNK_BYTES, size - at)
            pace.wait(count)
            sent = self.connection.sendfile(file, at, count)
            if not sent:
                return  # the file was cut: the connection ends early
            at += sent

    def refuse(self, status: int, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        self._end_head(0)

    def _end_head(self, length: int) -> None:
        self.send_header("Content-Length", str(length))
        self.send_header("Connection", "close")
        self.end_headers()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that is no HTTP, or of another method, without a page."""
        self.close_connection = True
        self.refuse(code)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("%s: " + format, self.client_address[0], *args)


class _Server(ThreadingHTTPServer):
    """Closes connections that are late, and those beyond MAX_CONNECTIONS."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = MAX_CONNECTIONS

    def __init__(
        self, address: Any, family: socket.AddressFamily, answer: Callable[[_Request], None]
    ) -> None:
        self.address_family = family
        self.answer = answer
        self._lock = threading.Lock()
        self._deadlines: dict[socket.socket, float] = {}
        super().__init__(address, _Request)

    def server_bind(self) -> None:
        """Bind without looking up the host's name, which may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def shutdown(self) -> None:
        """Stop at once. The server looks twice a second; a socket that is shut down wakes it."""
        with contextlib.suppress(OSError):  # not every system can do this with a socket that listens
            self.socket.shutdown(socket.SHUT_RDWR)
        super().shutdown()

    def set_deadline(self, connection: socket.socket, seconds: float) -> None:
        with self._lock:
            self._deadlines[connection] = time.monotonic() + seconds

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            is_full = len(self._deadlines) >= MAX_CONNECTIONS
        if is_full:
            self.shutdown_request(request)
            return
        self.set_deadline(request, HEAD_SECONDS)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._deadlines.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Cut late connections; their threads then end with an error of the socket."""
        self.close_connections(time.monotonic())

    def close_connections(self, now: float | None = None) -> None:
        """Cut the connections whose deadline has passed at `now`, or all."""
        with self._lock:
            for connection, until in self._deadlines.items():
                if now is None or until < now:
                    try:
                        connection.shutdown(socket.SHUT_RDWR)
                    except OSError:  # the client has left
                        continue

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("the transfer to %s broke off", client_address[0], exc_info=True)


def _listen(address: tuple[str, int], answer: Callable[[_Request], None]) -> _Server:
    host, port = address
    where = f"{host}:{port}"
    try:
        family, *_, found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return _Server(found, family, answer)
    except OSError as exc:
        raise ConfigError(
            f"Models cannot be shared at {where}",
            {
                "path": "gpu.share_models",
                "reason": exc.strerror or str(exc),
                "fix": "set an address of this machine that others reach, and a port that is free",
            },
        ) from None
