"""The gateways that a client asks, one after the other until one answers.

Every call may be sent twice: after a lost reply nobody knows whether it was done. So each is made so that the
second time does nothing more.
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
from gridq.client.connection_pools import LIMITS, Pools
from gridq.config.urls import gateways, is_loopback
from gridq.errors import ConfigError, GatewayStops, GatewayUnreachable, GridError
from gridq.limits import api_keys
from gridq.protocol.models import Json
from gridq.store import values

CONNECT = 5.0
ANSWER = 10.0
"""Seconds for which a gateway may take its time, beside those for which it is asked to wait."""

Way = Literal["short", "submission", "wait"]
"""What is answered at once, what a gateway may hold for a while, and what waits for a job."""

MANY = 64
"""Short calls at once, and submissions: more callers than that wait for one another. Who waits for a job
keeps nobody from being answered.
"""


@dataclass(frozen=True, slots=True)
class Call:
    """One request. For `wait` seconds the gateway may hold it on purpose; a stream may be silent so long.
    `way` says with which other calls it shares connections.
    """

    method: str
    path: str
    params: Mapping[str, str | int | float] = field(default_factory=dict)
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    wait: float = 0.0
    way: Way = "short"


class Gateways:
    """The gateways of one grid, and the key that they are asked with. Threads may share it.

    `url` names one or several, `patience` is how many seconds one may take to answer. ConfigError: it is no
    such URL. KeyInvalid: no key can look like `key`.
    """

    def __init__(self, url: str, key: SecretStr | None, *, patience: float = ANSWER) -> None:
        self.places = gateways(url, "the client's URL")
        self._bases = [_base(place) for place in self.places]
        self._headers = {"accept": "application/json", "user-agent": "gridq", **bearer(key)}
        self._patience = patience
        self._at = 0
        # A gateway on this machine is not asked through a proxy, and without TLS no certificates are read.
        secure = any(base.scheme == "https" for base in self._bases)
        self.options: dict[str, Any] = {
            "trust_env": not all(is_loopback(base.host) for base in self._bases),
            "verify": httpx.create_ssl_context() if secure else False,
        }
        self._pools: Pools[httpx.Client] = Pools(lambda: httpx.Client(limits=LIMITS, **self.options))
        self._places = {"short": threading.Semaphore(MANY), "submission": threading.Semaphore(MANY)}

    def ask(self, call: Call) -> Json:
        """What a gateway answers, as JSON. GatewayUnreachable: none does; else the GridError that it says."""
        trial = self.trial()
        for number in trial:
            try:
                with self._places.get(call.way, nullcontext()), self._pools.one() as pool:
                    reply = pool.send(self.request(number, call))
            except httpx.RequestError as exc:
                trial.failed(exc)
                continue
            if trial.answered(reply):
                self.prefer(number)
                return answer_of(reply)
        raise trial.error()

    @contextmanager
    def follow(self, call: Call) -> Iterator[Iterator[bytes] | None]:
        """What a gateway sends, as it comes; None: there is nothing more. GatewayUnreachable: none answers,
        or one ceases to.
        """
        with self._pools.one() as pool:
            trial = self.trial()
            for number in trial:
                try:
                    reply = pool.send(self.request(number, call, stream=True), stream=True)
                except httpx.RequestError as exc:
                    trial.failed(exc)
                    continue
                try:
                    if reply.status_code == httpx.codes.NO_CONTENT:
                        yield None
                        return
                    if not reply.is_success or not _is_stream(reply):
                        reply.read()
                        if not trial.answered(reply):
                            continue
                        answer_of(reply)
                    self.prefer(number)
                    yield reply.iter_bytes()
                    return
                except httpx.RequestError as exc:
                    trial.failed(exc)
                    self.prefer(number + 1)
                    raise trial.error() from exc
                finally:
                    reply.close()
            raise trial.error()

    def close(self) -> None:
        """Give the connections back."""
        for pool in self._pools.made:
            pool.close()

    def trial(self) -> Trial:
        """The attempts to have one call answered."""
        return Trial(self.places, self._at)

    def prefer(self, number: int) -> None:
        """Ask this one first from now on."""
        self._at = number % len(self.places)

    def request(self, number: int, call: Call, *, stream: bool = False) -> httpx.Request:
        """The call as a request to the gateway of this number."""
        headers = {**self._headers, **call.headers}
        if call.body is not None:
            headers["content-type"] = "application/json"
        base = self._bases[number]
        silence = call.wait if stream else call.wait + self._patience
        times = {"connect": min(CONNECT, self._patience), "read": silence, "write": self._patience}
        return httpx.Request(
            call.method,
            base.copy_with(path=base.path.rstrip("/") + call.path),
            params=dict(call.params) or None,
            content=call.body,
            headers=headers,
            extensions={"timeout": {**times, "pool": None}},
        )


class AsyncGateways:
    """The same for asyncio, on whichever loop it is asked."""

    def __init__(self, gateways: Gateways) -> None:
        self._gateways = gateways
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pools: Pools[httpx.AsyncClient] = Pools(self._make)
        self._places: dict[str, asyncio.Semaphore] = {}

    async def ask(self, call: Call) -> Json:
        """As Gateways.ask."""
        self._come_to_loop()
        gateways = self._gateways
        trial = gateways.trial()
        for number in trial:
            try:
                async with self._places.get(call.way, nullcontext()):
                    with self._pools.one() as pool:
                        reply = await pool.send(gateways.request(number, call))
            except httpx.RequestError as exc:
                trial.failed(exc)
                continue
            if trial.answered(reply):
                gateways.prefer(number)
                return answer_of(reply)
        raise trial.error()

    @asynccontextmanager
    async def follow(self, call: Call) -> AsyncIterator[AsyncIterator[bytes] | None]:
        """As Gateways.follow."""
        self._come_to_loop()
        with self._pools.one() as pool:
            gateways = self._gateways
            trial = gateways.trial()
            for number in trial:
                try:
                    reply = await pool.send(gateways.request(number, call, stream=True), stream=True)
                except httpx.RequestError as exc:
                    trial.failed(exc)
                    continue
                try:
                    if reply.status_code == httpx.codes.NO_CONTENT:
                        yield None
                        return
                    if not reply.is_success or not _is_stream(reply):
                        await reply.aread()
                        if not trial.answered(reply):
                            continue
                        answer_of(reply)
                    gateways.prefer(number)
                    yield reply.aiter_bytes()
                    return
                except httpx.RequestError as exc:
                    trial.failed(exc)
                    gateways.prefer(number + 1)
                    raise trial.error() from exc
                finally:
                    await reply.aclose()
            raise trial.error()

    async def close(self) -> None:
        """Give the connections back."""
        if self._loop is asyncio.get_running_loop():
            for pool in self._pools.made:
                await pool.aclose()

    def _make(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(limits=LIMITS, **self._gateways.options)

    def _come_to_loop(self) -> None:
        """Begin anew on another loop than before, whose connections cannot be used here."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            self._pools = Pools(self._make)
            self._places = {"short": asyncio.Semaphore(MANY), "submission": asyncio.Semaphore(MANY)}


class Trial:
    """The attempts to have one call answered: by each gateway once, first the one that answered last; and by
    one whose connection broke once more, as a kept one may have been closed meanwhile.
    """

    def __init__(self, places: tuple[str, ...], first: int) -> None:
        self._places = places
        self._left = [(first + number) % len(places) for number in range(len(places))]
        self._again: set[int] = set()
        self._now = first
        self._reason = ""

    def __iter__(self) -> Iterator[int]:
        while self._left:
            self._now = self._left.pop(0)
            yield self._now

    def failed(self, exc: httpx.RequestError) -> None:
        """The gateway did not answer."""
        broke = isinstance(exc, httpx.RemoteProtocolError | httpx.ReadError | httpx.WriteError)
        if broke and self._now not in self._again:
            self._again.add(self._now)
            self._left.append(self._now)
        what = "it does not answer in time" if isinstance(exc, httpx.TimeoutException) else str(exc)
        self._reason = what.rstrip(".") or type(exc).__name__

    def answered(self, reply: httpx.Response) -> bool:
        """Whether what answered is a gateway that goes on, and not something before or instead of one."""
        error = _error_in(reply)
        if isinstance(error, GatewayStops):
            self._reason = error.message
            return False
        if error is not None or (reply.is_success and _is_json(reply)):
            return True
        self._reason = f"what answers is no gateway: {reply.status_code} {reply.reason_phrase}".strip()
        if reply.has_redirect_location:
            self._reason += f", to {reply.headers['location'][:200]}"
        return False

    def error(self) -> GatewayUnreachable:
        """What is to be told once nobody is left."""
        places = ", ".join(self._places)
        fix = "correct the URL (GRIDQ_URL or --grid), or start one there: gridq gateway"
        if "CERTIFICATE_VERIFY_FAILED" in self._reason:
            fix = "let SSL_CERT_FILE name a file with the certificate of who signed the gateway's own"
        return GatewayUnreachable(
            f"No gateway answers at {places}", {"path": places, "reason": self._reason, "fix": fix}
        )


def answer_of(reply: httpx.Response) -> Json:
    """What a gateway's reply says. Raises the GridError that it is."""
    error = _error_in(reply)
    if error is not None:
        raise error
    return values.decode(reply.content)


def _error_in(reply: httpx.Response) -> GridError | None:
    """The error that a reply tells of, of the class that has its code; None: it tells of none of ours."""
    if reply.is_success or not _is_json(reply):
        return None
    try:
        return responses.error_of(values.decode(reply.content))
    except (ValueError, LookupError, TypeError):
        return None


def bearer(key: SecretStr | None) -> dict[str, str]:
    """The header that tells a key. KeyInvalid: it holds what no key does, and no header can."""
    text = "" if key is None else key.get_secret_value().strip()
    if not (text.isascii() and text.isprintable()):
        raise api_keys.refused("unknown")
    return {"authorization": f"Bearer {text}"} if text else {}


def _base(place: str) -> httpx.URL:
    try:
        return httpx.URL(place)
    except httpx.InvalidURL as exc:
        raise ConfigError(
            "This is not the URL of a gateway", {"path": urlsplit(place).hostname, "reason": str(exc)}
        ) from None


def _is_json(reply: httpx.Response) -> bool:
    return str(reply.headers.get("content-type")).startswith("application/json")


def _is_stream(reply: httpx.Response) -> bool:
    return str(reply.headers.get("content-type")).startswith("text/event-stream")
