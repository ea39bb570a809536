"""Identify the caller of a request by its API key, and check what it may do and whose jobs it may see.

A key comes in `Authorization: Bearer …` or `X-API-Key: …`, Anthropic's header. A valid key is cached for
CACHE_SECONDS. The admission script checks the key of each job again, so a revoked key cannot start another
job even while it is cached. Logs show only the ID of a key.

A grid without keys accepts everybody, but only if the gateway listens on this machine alone. It then
refuses web pages of other origins and unknown host names, because through a browser any web page could
reach this machine. Clients of the model APIs must send some text as a key, so any is accepted, unless it has
the form of a grid's key. gridq's own programs refuse all keys there: their user has set one on purpose.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache, partial
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
from gridq.gateway.grid.connection import GridConnection
from gridq.gateway.grid.snapshot import Cached
from gridq.gateway.http import cors
from gridq.gateway.http.bounds import BodyLimit
from gridq.limits import api_keys
from gridq.limits.api_keys import ALL_SCOPES, UNLIMITED, Key
from gridq.limits.quotas_file import NAME
from gridq.protocol.models import Json

CACHE_SECONDS = 1.0
"""How long a valid key is cached, and the answer to whether the grid requires keys."""

MAX_CACHED_KEYS = 1024
"""Maximum number of cached keys."""


FORWARDING_HEADERS = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
"""Headers that a proxy adds to a request that it forwards."""

OWN_PREFIX = "gq_"
"""The start of each key of a grid."""

FOREIGN_KEY_HEADERS = ("api-key", "x-goog-api-key")
"""The headers of the keys of Azure's and Google's clients."""

KEY_DETAILS: dict[str, Json] = {
    "path": "Authorization",
    "expected": "Authorization: Bearer gq_<id>_<secret>, or the same key in X-API-Key",
    "fix": "send a valid key; the operator creates one with `gridq keys create`",
}


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request. `key` is the ID of its API key, empty on a grid without keys."""

    agent: str
    key: str = ""
    scopes: frozenset[str] = ALL_SCOPES

    @property
    def sees_all(self) -> bool:
        """True if it may see everybody's jobs: with the scope `read-all` or `operate`."""
        return not self.key or not self.scopes.isdisjoint(("read-all", "operate"))

    @property
    def operates(self) -> bool:
        """True if it is an operator of the grid: with the scope `operate`, or on a grid without keys."""
        return not self.key or "operate" in self.scopes

    def may_see(self, agent: str) -> bool:
        """Return True if it may see the jobs of `agent`."""
        return agent == self.agent or self.sees_all

    def may_cancel(self, agent: str) -> bool:
        """Return True if it may cancel the jobs of `agent`: its own, or with the scope `operate` any."""
        return agent == self.agent or self.operates


class Authenticator:
    """Verify API keys for one gateway. Caches valid keys and slows down addresses that try invalid ones."""

    def __init__(self, grid: GridConnection) -> None:
        self.grid = grid
        self.failed_keys = FailedAttempts()
        self.failed_secrets = FailedAttempts()
        """Invalid worker secrets, counted apart: here the delay comes before the comparison."""
        self.key_limiter = KeyLimiter(grid)
        self._keys: dict[bytes, Cached[Key]] = {}  # by digest, the one used last at the end
        self._requires_key: Cached[bool] = Cached(partial(grid.call, self._has_keys), CACHE_SECONDS)

    async def verify(self, text: str, address: str) -> Key:
        """Return the record of the API key `text`.

        Raises KeyInvalid and KeyRevoked, and TooManyAttempts if `address` has tried too many invalid keys.
        """
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        known = self._keys.pop(digest, None)
        found = known or Cached(partial(self.grid.call, self._read_key, text), CACHE_SECONDS)
        self._keys[digest] = found
        if len(self._keys) > MAX_CACHED_KEYS:
            del self._keys[next(iter(self._keys))]
        try:
            key = await found.get()
        except (KeyInvalid, KeyRevoked) as exc:
            self._keys.pop(digest, None)
            # Only invalid keys are delayed. Valid ones from the same address are not, and no number of
            # attempts finds 256 random bits.
            retry_after = self.failed_keys.retry_after(address)
            if retry_after:
                raise _make_attempts_error("keys", retry_after, "use a valid key, or") from None
            self.failed_keys.record(address)
            details = dict(KEY_DETAILS)
            if not text.startswith(OWN_PREFIX):
                details["reason"] = "it is not a key of this grid: a vendor's key belongs to a seat"
            raise type(exc)(exc.message, details) from None
        if known is None and not await self._requires_key.get():
            self._requires_key.invalidate()  # it may be the grid's first key
        return key

    async def requires_key(self) -> bool:
        """Return True if the grid requires keys: it has, or once had, at least one."""
        return await self._requires_key.get()

    def _read_key(self, text: str) -> Key:
        scripts = self.grid.client.scripts
        return api_keys.verify(scripts.client, scripts.keys, SecretStr(text), scope=None)

    def _has_keys(self) -> bool:
        scripts = self.grid.client.scripts
        return bool(scripts.client.exists(scripts.keys("api_keys")))


async def identify(request: Request, *scopes: str) -> Caller:
    """Return the caller of a request, who needs at least one of `scopes`.

    Raises KeyMissing, KeyInvalid, KeyRevoked, KeyScopeMissing, OriginRefused, GatewayOpen and
    TooManyAttempts.
    """
    grid: GridConnection = request.app.state.grid
    authenticator = _get_authenticator(request)
    text = read_key(request)
    requires_key = await authenticator.requires_key()
    # Clients of the model APIs cannot omit the key, so a grid without keys ignores keys of another form.
    if not requires_key and not text.startswith(OWN_PREFIX):
        return _identify_without_key(request, grid)
    if not text:
        raise KeyMissing("This grid requires an API key", KEY_DETAILS | _find_misplaced_key(request))
    address = find_client_address(request)
    key = await authenticator.verify(text, address)
    if not any(map(key.may, scopes)):
        raise api_keys.build_scope_error(key.id, scopes[0])
    request.state.caller = f"{key.agent} ({key.id})"
    await _apply_key_limits(request, key)
    return Caller(key.agent, key.id, frozenset(key.scopes))


def require_scope(*scopes: str) -> Callable[[Request], Awaitable[Caller]]:
    """Return the FastAPI dependency of a route that needs one of `scopes`.

    For example: `caller: Annotated[Caller, Depends(require_scope("submit"))]`.
    """

    async def caller(request: Request) -> Caller:
        return await identify(request, *scopes)

    return caller


async def require_worker_secret(request: Request) -> None:
    """Check `X-Grid-Secret`; the dependency of the routes for workers over HTTP.

    If no secret is set, only this machine may enrol workers, and only on a grid without API keys.

    Raises AuthError if the secret is wrong or must be set first, OriginRefused as `check_local`, and
    TooManyAttempts.
    """
    grid: GridConnection = request.app.state.grid
    secret = grid.options.worker_secret
    authenticator, address = _get_authenticator(request), find_client_address(request)
    if secret is None:
        if not is_loopback(grid.options.host) or await authenticator.requires_key():
            raise AuthError(
                "This gateway does not accept workers over HTTP",
                {
                    "path": "X-Grid-Secret",
                    "fix": "set GRIDQ_GATEWAY_WORKER_SECRET_FILE for the gateway",
                },
            )
        check_local(request)
        return
    retry_after = authenticator.failed_secrets.retry_after(address)
    if retry_after:  # before the comparison: an operator may choose a secret that can be guessed
        raise _make_attempts_error("secrets", retry_after)
    sent = request.headers.get("x-grid-secret", "").encode("latin-1")
    if hmac.compare_digest(sent, secret.get_secret_value().encode()):
        return
    authenticator.failed_secrets.record(address)
    raise AuthError(
        "The worker secret is missing or wrong",
        {"path": "X-Grid-Secret", "expected": "the value of GRIDQ_GATEWAY_WORKER_SECRET at the gateway"},
    )


def read_key(request: Request) -> str:
    """Return the API key in a request's headers, empty if there is none.

    Clients may send a vendor's key from their environment in the other of the two headers: a key of a grid
    has precedence.
    """
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    bearer = text.strip() if scheme.lower() == "bearer" else ""
    other = request.headers.get("x-api-key", "").strip()
    return other if not bearer or (other.startswith(OWN_PREFIX) > bearer.startswith(OWN_PREFIX)) else bearer


def _find_misplaced_key(request: Request) -> dict[str, Json]:
    """Return the reason for a key that stands in a header of another API; empty if there is none."""
    name = next((name for name in FOREIGN_KEY_HEADERS if name in request.headers), None)
    return {} if name is None else {"reason": f"the key is in the header {name}"}


def find_client_address(request: Request) -> str:
    """Return the client's address, as the proxies in GRIDQ_GATEWAY_TRUSTED_PROXIES report it."""
    grid: GridConnection = request.app.state.grid
    peer = request.client.host if request.client else ""
    return resolve_address(peer, request.headers.getlist("x-forwarded-for"), grid.options.trusted_proxies)


def check_local(request: Request) -> None:
    """Accept a request without a key only if it comes from this machine.

    Raises OriginRefused for a web page of another origin, for a host name that may have been rebound to
    this machine (DNS rebinding), and for a request that a proxy forwarded.
    """
    grid: GridConnection = request.app.state.grid
    through = next((name for name in FORWARDING_HEADERS if name in request.headers), None)
    if through is not None:
        raise OriginRefused(
            "Requests through a proxy need an API key, and this grid has none",
            {"path": through, "fix": "create a key with `gridq keys create`"},
        )
    named = request.headers.get("host", "")
    if not _is_own_host(named, grid.options.host):
        raise OriginRefused(
            f"Without an API key this gateway does not answer to the host name {named[:100]}",
            {
                "path": "Host",
                "expected": "127.0.0.1 or localhost",
                "fix": "use http://127.0.0.1, or create a key with `gridq keys create`",
            },
        )
    origin = request.headers.get("origin")
    if origin is None or origin in grid.options.allowed_origins:
        return
    if origin.partition("://")[2] != named and not is_loopback(_parse_host(origin)):
        raise OriginRefused(
            "Web pages of other origins may not call a grid that has no API keys",
            {
                "path": "Origin",
                "fix": "create a key with `gridq keys create`, or add the origin to "
                "GRIDQ_GATEWAY_ALLOWED_ORIGINS",
            },
        )


def _identify_without_key(request: Request, grid: GridConnection) -> Caller:
    """Return the caller on a grid without keys: the agent in `x-gridq-agent`, else `default`."""
    if not is_loopback(grid.options.host):
        raise GatewayOpen(
            "This gateway is reachable from other machines, but its grid has no API keys",
            {
                "path": "GRIDQ_GATEWAY_HOST",
                "fix": "create a key with `gridq keys create`, or listen on 127.0.0.1",
            },
        )
    check_local(request)
    agent = request.headers.get("x-gridq-agent", "default")
    if not NAME.fullmatch(agent):
        raise ConfigError(
            "Invalid agent name",
            {"path": "x-gridq-agent", "expected": "1 to 64 letters, digits, '_', '.', '@' or '-'"},
        )
    request.state.caller = agent
    return Caller(agent)


async def _apply_key_limits(request: Request, key: Key) -> None:
    """Apply the key's own limits. Raises OriginRefused, InputTooLarge, KeyRateExceeded and KeyBusy.

    The middleware reads from the request's state which origin may read the response and which slot to
    release.
    """
    limits, state = key.limits, request.state
    if limits is UNLIMITED or getattr(state, "limits", None) is not None:  # applied already
        return
    state.limits = limits
    cors.check_origin(key, request.headers.get("origin"))
    state.origins = limits.origins
    if limits.max_body is not None:
        state.body.lower(BodyLimit(limits.max_body, f"max_body of the key {key.id}"))
    key_limiter = _get_authenticator(request).key_limiter
    slot = await key_limiter.acquire(key)
    if slot is not None:
        state.release_slot = partial(key_limiter.release, slot)


def _make_attempts_error(what: str, retry_after: float, alternative: str = "") -> TooManyAttempts:
    """Return the refusal of an address that tried too many invalid `what`.

    `retry_after` is in seconds; `alternative` is what helps without waiting.
    """
    return TooManyAttempts(
        f"This address sent too many invalid {what}",
        {
            "bottleneck": f"invalid {what} per address ({BURST}, then one every {REFILL_SECONDS:g} s)",
            "retry_after": retry_after,
            "fix": f"{alternative} retry in {math.ceil(retry_after)} s".strip(),
        },
    )


def _get_authenticator(request: Request) -> Authenticator:
    found: Authenticator = request.app.state.authenticator
    return found


@lru_cache(maxsize=64)
def _is_own_host(named: str, own: str) -> bool:
    """Return True if the Host header `named` can mean this machine.

    That is an IP address, which cannot be rebound, a name without a dot, which is not in the public
    DNS, or the gateway's `own`.
    """
    host = _parse_host(f"//{named}")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return "." not in host or host.endswith(".localhost") or host == own
    return True


def _parse_host(url: str) -> str:
    """Return the host of a URL, empty if it has none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
