"""Who asks: the API key of a request, what it may do, and whose jobs it may see.

A key comes as `Authorization: Bearer …` or `X-API-Key: …` (Anthropic's header too). One that was good is not
looked up again for at most KEPT seconds; what it submits is checked by the admission script all the same, so
a revoked key starts nothing more from that instant on. In logs a key is its id alone.

A grid without keys lets everybody in, but only where the gateway listens on this machine alone, and then no
page of a foreign origin and no foreign host name: a browser would lend both the machine's own reach.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import SecretStr
from starlette.requests import Request

from gridq.config.urls import is_loopback
from gridq.errors import (
    AuthError,
    ConfigError,
    GatewayOpen,
    KeyInvalid,
    KeyMissing,
    KeyRevoked,
    OriginRefused,
    TooManyAttempts,
)
from gridq.gateway.auth.failed_attempts import BURST, REFILL_SECONDS, FailedAttempts, resolve_address
from gridq.gateway.auth.key_limits import KeyLimiter
from gridq.gateway.http import cors
from gridq.gateway.http.bounds import body_too_large
from gridq.limits import api_keys
from gridq.limits.api_keys import ALL, UNLIMITED, Key
from gridq.limits.quotas_file import NAME

if TYPE_CHECKING:
    from gridq.gateway.grid.connection import GridConnection

CACHE_SECONDS = 1.0
"""Seconds for which a key that was good, and whether the grid asks for keys, is not looked up again."""

MAX_CACHED_KEYS = 1024
"""Keys that are remembered."""


FORWARDING_HEADERS = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
"""Headers by which a proxy says for whom it asks."""

KEY_DETAILS = {
    "path": "Authorization",
    "expected": "Authorization: Bearer gq_<id>_<secret>, or the same key in X-API-Key",
    "fix": "ask the operator for a key (`gridq keys create`)",
}


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. `key` is the id of the API key, its fingerprint in logs; empty where the grid has none."""

    agent: str
    key: str = ""
    scopes: frozenset[str] = ALL

    @property
    def sees_all(self) -> bool:
        """Whether it may see everybody's jobs: with `read-all` or `operate`."""
        return not self.key or not self.scopes.isdisjoint(("read-all", "operate"))

    def may_see(self, agent: str) -> bool:
        """Whether it may see the jobs of `agent`."""
        return agent == self.agent or self.sees_all

    def may_end(self, agent: str) -> bool:
        """Whether it may cancel the jobs of `agent`: its own, or with `operate` any."""
        return not self.key or agent == self.agent or "operate" in self.scopes


class Authenticator:
    """The callers of one gateway: the keys that were good lately, and the addresses that tried wrong ones."""

    def __init__(self, door: GridConnection) -> None:
        self.door = door
        self.attempts = FailedAttempts()
        self.secrets = FailedAttempts()
        """Those that tried wrong secrets of workers; apart, for these wait before they are compared."""
        self.slots = KeyLimiter(door)
        self._known: OrderedDict[bytes, tuple[float, Key]] = OrderedDict()
        self._asks: tuple[float, bool] = (0.0, True)
        self._looking: dict[bytes, asyncio.Future[Any]] = {}

    async def key(self, text: str, address: str) -> Key:
        """The record of the key `text`. KeyInvalid, KeyRevoked; TooManyAttempts of this address."""
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        known = self._known.get(digest)
        if known is not None and time.monotonic() < known[0]:
            return known[1]
        until = time.monotonic() + CACHE_SECONDS
        try:
            found: Key = await self._once(digest, self._look_up, text)
        except (KeyInvalid, KeyRevoked) as exc:
            self._known.pop(digest, None)
            # Only who is wrong is kept waiting: others at the same address must not be, and no number of
            # tries finds 256 random bits.
            wait = self.attempts.wait(address)
            if wait:
                raise _too_many_attempts("keys", wait, "use a key that is good, or") from None
            self.attempts.failed(address)
            raise type(exc)(exc.message, dict(KEY_DETAILS)) from None
        self._known[digest], self._asks = (until, found), (until, True)
        self._known.move_to_end(digest)
        while len(self._known) > MAX_CACHED_KEYS:
            self._known.popitem(last=False)
        return found

    async def asks(self) -> bool:
        """Whether the grid asks for keys: it has one, or had."""
        until, asked = self._asks
        now = time.monotonic()
        if now >= until:
            asked = await self._once(b"", self._look_for_keys)
            self._asks = now + CACHE_SECONDS, asked
        return asked

    def _look_up(self, text: str) -> Key:
        scripts = self.door.client.scripts
        return api_keys.verify(scripts.client, scripts.keys, SecretStr(text), scope=None)

    def _look_for_keys(self) -> bool:
        scripts = self.door.client.scripts
        return bool(scripts.client.exists(scripts.keys("api_keys")))

    async def _once(self, name: bytes, look: Callable[..., Any], *args: str) -> Any:
        """What `look` finds, called once for all requests that want to know the same at the same time."""
        task = self._looking.get(name)
        if task is None:
            task = self._looking[name] = asyncio.ensure_future(self.door.call(look, *args))
            task.add_done_callback(partial(self._looked, name))
        return await asyncio.shield(task)

    def _looked(self, name: bytes, task: asyncio.Future[Any]) -> None:
        del self._looking[name]
        if not task.cancelled():
            task.exception()  # seen, though every request that waited for it may have gone


async def identify(request: Request, *scopes: str) -> Caller:
    """The caller of a request, who may one of `scopes`.

    KeyMissing, KeyInvalid, KeyRevoked, KeyScopeMissing, OriginRefused, GatewayOpen, TooManyAttempts.
    """
    door: GridConnection = request.app.state.door
    callers = _authenticator_of(request)
    text = read_key(request)
    asks = await callers.asks()
    if not asks and not text.startswith(
        "gq_"
    ):  # clients of the API formats must send something, and mean nothing
        return _identify_without_key(request, door)
    if not text:
        raise KeyMissing("This grid asks for an API key", dict(KEY_DETAILS))
    address = client_address(request)
    key = await callers.key(text, address)
    if not any(map(key.require_scope, scopes)):
        raise api_keys.lacks(key.id, scopes[0])
    request.state.caller = f"{key.agent} ({key.id})"
    await _apply_key_limits(request, key)
    return Caller(key.agent, key.id, frozenset(key.scopes))


def require_scope(*scopes: str) -> Callable[[Request], Awaitable[Caller]]:
    """The dependency of a route that needs one of `scopes`:
    `caller: Annotated[Caller, Depends(may("submit"))]`.
    """

    async def caller(request: Request) -> Caller:
        return await identify(request, *scopes)

    return caller


async def require_worker_secret(request: Request) -> None:
    """The dependency of the routes for workers, who know the grid's secret (`X-Grid-Secret`).

    Where none is set whoever is at this machine may, on a grid that asks for no keys.
    AuthError: it is another, or one must be set. OriginRefused: as `check_local`. TooManyAttempts.
    """
    door: GridConnection = request.app.state.door
    secret = door.options.secret
    callers, address = _authenticator_of(request), client_address(request)
    if secret is None:
        if not is_loopback(door.options.host) or await callers.asks():
            raise AuthError(
                "This gateway takes no workers",
                {"path": "X-Grid-Secret", "fix": "set GRIDQ_GATEWAY_SECRET_FILE there"},
            )
        check_local(request, door)
        return
    wait = callers.secrets.wait(address)
    if wait:  # first: an operator's own secret may be one that can be guessed
        raise _too_many_attempts("secrets", wait)
    told = request.headers.get("x-grid-secret", "").encode("latin-1")
    if hmac.compare_digest(told, secret.get_secret_value().encode()):
        return
    callers.secrets.failed(address)
    raise AuthError(
        "The grid's secret is missing or wrong",
        {"path": "X-Grid-Secret", "expected": "what GRIDQ_GATEWAY_SECRET is at the gateway"},
    )


def read_key(request: Request) -> str:
    """The key in a request's headers; empty where there is none."""
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and text.strip():
        return text.strip()
    return request.headers.get("x-api-key", "").strip()


def client_address(request: Request) -> str:
    """The address of who asks, seen through the proxies that GRIDQ_GATEWAY_PROXIES names."""
    door: GridConnection = request.app.state.door
    peer = request.client.host if request.client else ""
    return resolve_address(peer, request.headers.getlist("x-forwarded-for"), door.options.proxies)


def check_local(request: Request, door: GridConnection) -> None:
    """Let in without a key whoever is at this machine. OriginRefused: a page of a foreign origin, or a name
    that a foreign page had resolve to this machine, or a proxy that passes on what others ask.
    """
    through = next((name for name in FORWARDING_HEADERS if name in request.headers), None)
    if through is not None:
        raise OriginRefused(
            "The request came through a proxy, and this grid asks for no key",
            {"path": through, "fix": "make a key (`gridq keys create`) for who comes that way"},
        )
    named = request.headers.get("host", "")
    if not _is_own_host(named, door.options.host):
        raise OriginRefused(
            f"This gateway is not called {named[:100]}",
            {"path": "Host", "expected": "127.0.0.1 or localhost", "fix": "make a key, and use it"},
        )
    origin = request.headers.get("origin")
    if origin is None or origin in door.options.origins:
        return
    if origin.partition("://")[2] != named and not is_loopback(_host_of(origin)):
        raise OriginRefused(
            "A page of another origin may not ask a grid that asks for no key",
            {"path": "Origin", "fix": "make a key for it, or name it in GRIDQ_GATEWAY_ORIGINS"},
        )


def _identify_without_key(request: Request, door: GridConnection) -> Caller:
    """The caller on a grid without keys: what `x-gridq-agent` says, else `default`."""
    if not is_loopback(door.options.host):
        raise GatewayOpen(
            "The grid has no API key, and the gateway listens beyond its machine",
            {"path": "GRIDQ_GATEWAY_HOST", "fix": "make one by `gridq keys create`, or listen on 127.0.0.1"},
        )
    check_local(request, door)
    agent = request.headers.get("x-gridq-agent", "default")
    if not NAME.fullmatch(agent):
        raise ConfigError(
            "The agent's name is none",
            {"path": "x-gridq-agent", "expected": "1 to 64 letters, digits, '_', '.', '@' or '-'"},
        )
    request.state.caller = agent
    return Caller(agent)


async def _apply_key_limits(request: Request, key: Key) -> None:
    """Hold the request to the key's own limits. OriginRefused, InputTooLarge, KeyRateExceeded, KeyBusy.

    `guard` reads what is left in the request's state: whose page may read the answer, and what to give back.
    """
    limits, state = key.limits, request.state
    if limits is UNLIMITED or getattr(state, "limits", None) is not None:  # the second time it is in
        return
    state.limits = limits
    cors.check_origin(key, request.headers.get("origin"))
    state.origins = limits.origins
    if limits.max_body is not None:
        if int(request.headers.get("content-length", "0")) > limits.max_body:
            raise body_too_large(limits.max_body)
        state.body.most = min(state.body.most, limits.max_body)
        state.body.check()
    slots = _authenticator_of(request).slots
    place = await slots.enter(key)
    if place is not None:
        state.leave = partial(slots.leave, place)


def _too_many_attempts(what: str, wait: float, sooner: str = "") -> TooManyAttempts:
    """The refusal of an address that has tried too many wrong `what`; `wait` in seconds, `sooner`: what helps
    without waiting.
    """
    return TooManyAttempts(
        f"Too many wrong {what} came from this address",
        {
            "bottleneck": f"the wrong {what} of one address ({BURST} at once, then one in {EVERY:g} s)",
            "retry_after": wait,
            "fix": f"{sooner} ask again in {math.ceil(wait)} s".strip(),
        },
    )


def _authenticator_of(request: Request) -> Authenticator:
    found: Authenticator = request.app.state.callers
    return found


@lru_cache(maxsize=64)
def _is_own_host(named: str, own: str) -> bool:
    """Whether the Host header `named` can be meant for this machine: an address, which nobody can make point
    elsewhere, a name without a dot, which is none of the public's, or the gateway's `own`.
    """
    host = _host_of(f"//{named}")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return "." not in host or host.endswith(".localhost") or host == own
    return True


def _host_of(url: str) -> str:
    """The host in a URL, empty where it holds none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
