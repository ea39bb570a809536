"""CORS: which web pages may call the gateway and read its responses.

Pages of the gateway's own `allowed_origins` may, with any key. The origins of a key bind that key to them.
A preflight carries no key, so it is allowed for the gateway's origins and for those of every valid key.
"""

from __future__ import annotations

import re

from gridq.errors import GridError, OriginRefused
from gridq.limits.api_keys import Key

ALLOWED_METHODS = b"GET, POST, DELETE, OPTIONS"
EXPOSED_HEADERS = (
    b"x-request-id, request-id, retry-after, x-gridq-code, x-gridq-job, x-gridq-worker, "
    b"x-gridq-queue-wait-ms, x-gridq-cost-cents, x-gridq-dropped-fields"
)
MAX_AGE_SECONDS = b"3600"

_HEADER_NAMES = re.compile(rb"[A-Za-z0-9_, -]{1,2000}")

Header = tuple[bytes, bytes]


def make_allow_headers(origin: str) -> list[Header]:
    """Return the response headers that let a page of `origin` read the response."""
    return [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-expose-headers", EXPOSED_HEADERS),
        (b"vary", b"Origin"),
    ]


def make_preflight_headers(origin: str, headers: bytes) -> list[Header]:
    """Return the headers of the response to a preflight request.

    Every header name in `headers` is allowed, because official clients send a dozen of their own.
    Credentials are not: the gateway sets no cookies that a browser could add by itself.
    """
    return [
        *make_allow_headers(origin),
        (b"access-control-allow-methods", ALLOWED_METHODS),
        (b"access-control-allow-headers", headers if _HEADER_NAMES.fullmatch(headers) else b"authorization"),
        (b"access-control-max-age", MAX_AGE_SECONDS),
    ]


def check_origin(key: Key, origin: str | None) -> None:
    """Raise OriginRefused if a page of another origin uses a key that is bound to its origins. Programs
    send no origin.
    """
    if origin is not None and key.limits.origins and origin not in key.limits.origins:
        raise make_origin_error(origin)


def make_origin_error(origin: str) -> GridError:
    """Return the error of a page whose origin is not allowed."""
    return OriginRefused(
        f"Web pages of the origin {origin[:200]} may not call this gateway",
        {
            "path": "Origin",
            "fix": "create a key with `--origin`, or add the origin to GRIDQ_GATEWAY_ALLOWED_ORIGINS",
        },
    )
