"""Call the gateways of a grid over HTTP: try one after the other until one answers.

Any call may be sent twice, because after a lost reply nobody knows whether it was done. So every call is
built to be idempotent.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx
from pydantic import SecretStr

from gridq.client import responses
from gridq.client.connection_pools import POOL_LIMITS, Pools
from gridq.config.urls import is_loopback, parse_gateways
from gridq.errors import ConfigError, GatewayStops, GatewayUnreachable, GridError
from gridq.limits import api_keys
from gridq.protocol.models import Json
from gridq.store import values

CONNECT_TIMEOUT_SECONDS = 5.0
ANSWER_TIMEOUT_SECONDS = 10.0
"""The time a gateway may take to answer, in addition to the time it is asked to wait."""

CallKind = Literal["short", "submission", "wait"]
"""Calls that are answered at once, calls that a gateway may hold for a while, and calls that wait for a job.
"""

MAX_CONCURRENT_CALLS = 64
"""The most short calls, and the most submissions, in flight at once; further callers queue.

Calls that wait for a job are not counted, so they never delay an answer to others.
"""


@dataclass(frozen=True, slots=True)
class Call:
    """One request to a gateway.

    `wait` is the number of seconds that the gateway may hold it on purpose, or that a stream may stay silent.
    `kind` says which other calls it shares the limit of MAX_CONCURRENT_CALLS with.
    """

    method: str
    path: str
    params: Mapping[str, str | int | float] = field(default_factory=dict)
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    wait: float = 0.0
    kind: CallKind = "short"


class Gateways:
    """The gateways of one grid, called with one API key. Threads may share it.

    `url` names one gateway or several, and `timeout` is the number of seconds that one may take to answer.
    Raises ConfigError if `url` is not such a URL, and KeyInvalid if `key` cannot be a key.
    """

    def __init__(self, url: str, key: SecretStr | None, *, timeout: float = ANSWER_TIMEOUT_SECONDS) -> None:
        self.urls = parse_gateways(url, "the client's URL")
        self._base_urls = [_parse_base_url(each) for each in self.urls]
        self._headers = {"accept": "application/json", "user-agent": "gridq", **build_auth_header(key)}
        self._timeout = timeout
        self._preferred = 0
        # Gateways on this machine are called without a proxy, and without TLS no certificates are loaded.
        uses_tls = any(base.scheme == "https" for base in self._base_urls)
        self.options: dict[str, Any] = {
            "trust_env": not all(is_loopback(base.host) for base in self._base_urls),
            "verify": httpx.create_ssl_context() if uses_tls else False,
        }
        self._pools: Pools[httpx.Client] = Pools(lambda: httpx.Client(limits=POOL_LIMITS, **self.options))
        self._slots = {
            "short": threading.Semaphore(MAX_CONCURRENT_CALLS),
            "submission": threading.Semaphore(MAX_CONCURRENT_CALLS),
        }

    def send(self, call: Call) -> Json:
        """Make a call and return the answer's JSON.

        Raises GatewayUnreachable if no gateway answers, and otherwise the GridError that the answer is.
        """
        failover = self.start_failover()
        for index in failover:
            try:
                with self._slots.get(call.kind, nullcontext()), self._pools.acquire() as pool:
                    reply = pool.send(self.build_request(index, call))
            except httpx.RequestError as exc:
                failover.record_failure(exc)
                continue
            if failover.accept(reply):
                self.prefer(index)
                return parse_reply(reply)
        raise failover.build_error()

    @contextmanager
    def stream(self, call: Call) -> Iterator[Iterator[bytes] | None]:
        """Make a call and provide its body as it arrives; None if there is nothing more to stream.

        Raises GatewayUnreachable if no gateway answers, or if the connection breaks within the block.
        """
        with self._pools.acquire() as pool:
            failover = self.start_failover()
            for index in failover:
                try:
                    reply = pool.send(self.build_request(index, call, stream=True), stream=True)
                except httpx.RequestError as exc:
                    failover.record_failure(exc)
                    continue
                try:
                    if reply.status_code == httpx.codes.NO_CONTENT:
                        yield None
                        return
                    if not reply.is_success or not _is_event_stream(reply):
                        reply.read()
                        if not failover.accept(reply):
                            continue
                        parse_reply(reply)
                    self.prefer(index)
                    yield reply.iter_bytes()
                    return
                except httpx.RequestError as exc:
                    failover.record_failure(exc)
                    self.prefer(index + 1)
                    raise failover.build_error() from exc
                finally:
                    reply.close()
            raise failover.build_error()

    def close(self) -> None:
        for pool in self._pools.pools:
            pool.close()

    def start_failover(self) -> Failover:
        """Return the order in which to try the gateways for one call."""
        return Failover(self.urls, self._preferred)

    def prefer(self, index: int) -> None:
        """Try the gateway of this index first from now on."""
        self._preferred = index % len(self.urls)

    def build_request(self, index: int, call: Call, *, stream: bool = False) -> httpx.Request:
        """Return the call as a request to the gateway of this index."""
        headers = {**self._headers, **call.headers}
        if call.body is not None:
            headers["content-type"] = "application/json"
        base = self._base_urls[index]
        timeouts = {
            "connect": min(CONNECT_TIMEOUT_SECONDS, self._timeout),
            "read": call.wait if stream else call.wait + self._timeout,
            "write": self._timeout,
            "pool": None,
        }
        return httpx.Request(
            call.method,
            base.copy_with(path=base.path.rstrip("/") + call.path),
            params=dict(call.params) or None,
            content=call.body,
            headers=headers,
            extensions={"timeout": timeouts},
        )


class AsyncGateways:
    """The same for asyncio. It may be used on one event loop after another."""

    def __init__(self, gateways: Gateways) -> None:
        self._gateways = gateways
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pools: Pools[httpx.AsyncClient] = Pools(self._make_pool)
        self._slots: dict[str, asyncio.Semaphore] = {}

    async def send(self, call: Call) -> Json:
        """Make a call and return the answer's JSON; see Gateways.send."""
        self._bind_to_loop()
        gateways = self._gateways
        failover = gateways.start_failover()
        for index in failover:
            try:
                async with self._slots.get(call.kind, nullcontext()):
                    with self._pools.acquire() as pool:
                        reply = await pool.send(gateways.build_request(index, call))
            except httpx.RequestError as exc:
                failover.record_failure(exc)
                continue
            if failover.accept(reply):
                gateways.prefer(index)
                return parse_reply(reply)
        raise failover.build_error()

    @asynccontextmanager
    async def stream(self, call: Call) -> AsyncIterator[AsyncIterator[bytes] | None]:
        """Make a call and provide its body as it arrives; see Gateways.stream."""
        self._bind_to_loop()
        with self._pools.acquire() as pool:
            gateways = self._gateways
            failover = gateways.start_failover()
            for index in failover:
                try:
                    reply = await pool.send(gateways.build_request(index, call, stream=True), stream=True)
                except httpx.RequestError as exc:
                    failover.record_failure(exc)
                    continue
                try:
                    if reply.status_code == httpx.codes.NO_CONTENT:
                        yield None
                        return
                    if not reply.is_success or not _is_event_stream(reply):
                        await reply.aread()
                        if not failover.accept(reply):
                            continue
                        parse_reply(reply)
                    gateways.prefer(index)
                    yield reply.aiter_bytes()
                    return
                except httpx.RequestError as exc:
                    failover.record_failure(exc)
                    gateways.prefer(index + 1)
                    raise failover.build_error() from exc
                finally:
                    await reply.aclose()
            raise failover.build_error()

    async def close(self) -> None:
        if self._loop is asyncio.get_running_loop():
            for pool in self._pools.pools:
                await pool.aclose()

    def _make_pool(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(limits=POOL_LIMITS, **self._gateways.options)

    def _bind_to_loop(self) -> None:
        """Start with new pools on a new loop: connections of another loop cannot be used here."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            self._pools = Pools(self._make_pool)
            self._slots = {
                "short": asyncio.Semaphore(MAX_CONCURRENT_CALLS),
                "submission": asyncio.Semaphore(MAX_CONCURRENT_CALLS),
            }


class Failover:
    """The attempts of one call. Iterate it for the index of the next gateway to try.

    Each gateway is tried once, beginning with the one that answered last. A gateway whose connection broke is
    tried once more, because an idle connection may have been closed in the meantime.
    """

    def __init__(self, urls: tuple[str, ...], first: int) -> None:
        self._urls = urls
        self._pending = [(first + offset) % len(urls) for offset in range(len(urls))]
        self._retried: set[int] = set()
        self._current = first
        self._reason = ""

    def __iter__(self) -> Iterator[int]:
        while self._pending:
            self._current = self._pending.pop(0)
            yield self._current

    def record_failure(self, exc: httpx.RequestError) -> None:
        """Record that the current gateway did not answer."""
        is_broken = isinstance(exc, httpx.RemoteProtocolError | httpx.ReadError | httpx.WriteError)
        if is_broken and self._current not in self._retried:
            self._retried.add(self._current)
            self._pending.append(self._current)
        reason = "it does not answer in time" if isinstance(exc, httpx.TimeoutException) else str(exc)
        self._reason = reason.rstrip(".") or type(exc).__name__

    def accept(self, reply: httpx.Response) -> bool:
        """Return whether the reply comes from a gateway, and from one that is not stopping."""
        error = _parse_error_reply(reply)
        if isinstance(error, GatewayStops):
            self._reason = error.message
            return False
        if error is not None or (reply.is_success and _is_json(reply)):
            return True
        self._reason = f"what answers is not a gateway: {reply.status_code} {reply.reason_phrase}".strip()
        if reply.has_redirect_location:
            self._reason += f", to {reply.headers['location'][:200]}"
        return False

    def build_error(self) -> GatewayUnreachable:
        """Return the error for when no gateway is left to try."""
        urls = ", ".join(self._urls)
        fix = "correct the URL (GRIDQ_URL or --grid), or start one there: gridq gateway"
        if "CERTIFICATE_VERIFY_FAILED" in self._reason:
            fix = (
                "set SSL_CERT_FILE to a file with the certificate of the authority that signed the gateway's"
            )
        return GatewayUnreachable(
            f"No gateway answers at {urls}", {"path": urls, "reason": self._reason, "fix": fix}
        )


def parse_reply(reply: httpx.Response) -> Json:
    """Return the JSON of a gateway's reply, or raise the GridError that the reply is."""
    error = _parse_error_reply(reply)
    if error is not None:
        raise error
    return values.decode(reply.content)


def _parse_error_reply(reply: httpx.Response) -> GridError | None:
    """Return the error that a reply carries, of the class that has its code, or None."""
    if reply.is_success or not _is_json(reply):
        return None
    try:
        return responses.parse_error(values.decode(reply.content))
    except (ValueError, LookupError, TypeError):
        return None


def build_auth_header(key: SecretStr | None) -> dict[str, str]:
    """Return the header that carries the key. Raises KeyInvalid if the key holds characters no header can."""
    text = "" if key is None else key.get_secret_value().strip()
    if not (text.isascii() and text.isprintable()):
        raise api_keys.build_key_error("unknown")
    return {"authorization": f"Bearer {text}"} if text else {}


def _parse_base_url(url: str) -> httpx.URL:
    try:
        return httpx.URL(url)
    except httpx.InvalidURL as exc:
        raise ConfigError(
            "This is not the URL of a gateway", {"path": urlsplit(url).hostname, "reason": str(exc)}
        ) from None


def _is_json(reply: httpx.Response) -> bool:
    return str(reply.headers.get("content-type")).startswith("application/json")


def _is_event_stream(reply: httpx.Response) -> bool:
    return str(reply.headers.get("content-type")).startswith("text/event-stream")
