"""CORS: which pages may ask the gateway from a browser, and read what it answers.

The gateway's own `origins` may always; a key's own bind that key to them. A preflight bears no key, so it is
granted to the gateway's origins and to those of any key that stands.
"""

from __future__ import annotations

import re

from gridq.errors import GridError, OriginRefused
from gridq.limits.api_keys import Key

METHODS = b"GET, POST, DELETE, OPTIONS"
EXPOSED = (
    b"x-request-id, request-id, retry-after, x-gridq-code, x-gridq-job, x-gridq-worker, "
    b"x-gridq-queue-wait-ms, x-gridq-cost-cents"
)
HOUR = b"3600"

_NAMES = re.compile(rb"[A-Za-z0-9_, -]{1,2000}")

Header = tuple[bytes, bytes]


def granted(origin: str) -> list[Header]:
    """The headers by which a page of `origin` may read an answer."""
    return [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-expose-headers", EXPOSED),
        (b"vary", b"Origin"),
    ]


def preflight(origin: str, headers: bytes) -> list[Header]:
    """The headers of the answer to a browser that asks whether it may ask, with the `headers` that it names:
    any, for official clients send a dozen of their own. A browser keeps no login for the gateway that it
    would add by itself.
    """
    return [
        *granted(origin),
        (b"access-control-allow-methods", METHODS),
        (b"access-control-allow-headers", headers if _NAMES.fullmatch(headers) else b"authorization"),
        (b"access-control-max-age", HOUR),
    ]


def check(key: Key, origin: str | None) -> None:
    """OriginRefused: a page uses a key that is bound to other origins. Programs send no origin."""
    if origin is not None and key.limits.origins and origin not in key.limits.origins:
        raise refused(origin)


def refused(origin: str) -> GridError:
    """The page's origin is not among those that may."""
    return OriginRefused(
        f"Pages of {origin[:200]} may not ask this gateway",
        {"path": "Origin", "fix": "give the origin to a key (--origin) or to GRIDQ_GATEWAY_ORIGINS"},
    )
