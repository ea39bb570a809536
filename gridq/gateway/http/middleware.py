"""What surrounds every request: its id, bounds, CORS, the headers of the answer, and the last resort where
something fails that nobody expected. One middleware, for each costs every request some time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from fastapi import FastAPI
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gridq.config.settings import Settings
from gridq.errors import EncodingRefused, GridError, RequestError
from gridq.gateway.http import cors, errors
from gridq.gateway.http.bounds import BoundedBody, body_too_large, headers_fault
from gridq.gateway.http.cors import Header
from gridq.gateway.options import GatewayOptions

log = logging.getLogger(__name__)

KeyOrigins = Callable[[], Awaitable[frozenset[str]]]
"""Read the origins that the API keys allow."""

NOSNIFF = (b"x-content-type-options", b"nosniff")
NO_STORE = (b"cache-control", b"no-store")
"""Answers are private to who asked."""

PAGE = (
    (
        b"content-security-policy",
        b"default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
        b"frame-ancestors 'none'",
    ),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
)
"""Headers of a page (text/html), each unless the page sets it itself."""


def install(app: FastAPI, config: Settings, options: GatewayOptions, key_origins: KeyOrigins) -> None:
    """Guard `app`: its faults, the bounds of its requests, CORS and headers. Call it once, in create_app."""
    errors.install(app)
    app.add_middleware(
        Guard,
        most=options.max_body or config.max_value,
        allowed=options.origins,
        key_origins=key_origins,
    )


class Guard:
    """The middleware. `most`: bytes of a body, `allowed`: the gateway's own origins."""

    def __init__(self, app: ASGIApp, *, most: int, allowed: tuple[str, ...], key_origins: KeyOrigins) -> None:
        self.app = app
        self.most = most
        self.allowed = frozenset(allowed)
        self.key_origins = key_origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        named = {name: value for name, value in scope["headers"] if name in _LOOKED_AT}
        state = scope.setdefault("state", {})
        request_id = errors.new_request_id(named.get(b"x-request-id", b"").decode("latin-1"))
        state["request_id"] = request_id
        state["body"] = body = BoundedBody(receive, self.most)
        origin = named[b"origin"].decode("latin-1") if b"origin" in named else None
        started = False
        head = scope["method"] == "HEAD"  # answered as a GET is, without its body
        inner = {**scope, "method": "GET"} if head else scope

        async def answer(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = _headers(message.get("headers", ()), scope["path"], request_id)
                if origin is not None and self._granted(scope, origin):
                    message["headers"] += cors.granted(origin)
            elif head:
                return
            await send(message)
            if head:  # at once, for a stream's body may take long to end: its maker hears that nobody reads
                await send({"type": "http.response.body"})

        try:
            fault = self._fault(scope, named)
            if fault is not None:
                raise fault
            if (
                origin is not None
                and scope["method"] == "OPTIONS"
                and b"access-control-request-method" in named
            ):
                await self._preflight(scope, origin, named.get(b"access-control-request-headers", b""), send)
                return
            await self.app(inner, body, answer)
        except ClientDisconnect:
            return
        except asyncio.CancelledError:  # uvicorn, as it stops, of what has not ended within GRIDQ_DRAIN
            if not started:
                response = errors.answer(Request(scope, receive), errors.stopping())
                await response(scope, receive, answer)
        except Exception as exc:
            if started:
                # The connection ends: an answer that breaks off must not look whole.
                log.error("an answer broke off", exc_info=exc, extra=errors.about(Request(scope)))
                return
            request = Request(scope, receive)
            if isinstance(exc, GridError):
                response = errors.answer(request, exc)
            else:
                response = await errors.unexpected(request, exc)
            await response(scope, receive, answer)
        finally:
            if "route" in inner:
                scope["route"] = inner["route"]  # for whoever counts
            leave = state.get("leave")
            if leave is not None:
                leave()

    def _fault(self, scope: Scope, named: dict[bytes, bytes]) -> GridError | None:
        """Why the request is refused before anybody looks at it."""
        length = named.get(b"content-length", b"0")
        if not length.isdigit():
            return RequestError("The Content-Length is no number", {"path": "Content-Length"})
        if len(length) > 18 or int(length) > self.most:
            return body_too_large(self.most)
        return headers_fault(scope["headers"]) or _framing_fault(scope)

    def _granted(self, scope: Scope, origin: str) -> bool:
        """Whether a page of `origin` may read the answer."""
        return origin in self.allowed or "*" in self.allowed or origin in scope["state"].get("origins", ())

    async def _preflight(self, scope: Scope, origin: str, wanted: bytes, send: Send) -> None:
        """Answer a browser that asks whether it may ask."""
        if not self._granted(scope, origin) and origin not in await self.key_origins():
            raise cors.refused(origin)
        headers = [*cors.preflight(origin, wanted), NOSNIFF]
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


def _framing_fault(scope: Scope) -> GridError | None:
    """Why it is not sure what is asked for: RFC 9112, sections 3.2 and 6.1; RFC 9110, section 8.4."""
    hosts = transfers = 0
    for name, value in scope["headers"]:
        if name == b"host":
            hosts += 1
        elif name == b"transfer-encoding":
            transfers += 1
            if transfers > 1 or value.strip().lower() != b"chunked":
                details = {"path": "Transfer-Encoding", "expected": "chunked, once, or none"}
                return RequestError("The body's transfer coding is not known here", details)
        elif name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            details = {"path": "Content-Encoding", "expected": "identity", "fix": "send the body as it is"}
            return EncodingRefused("The body is encoded", details)
    if hosts > 1 or (not hosts and scope.get("http_version") == "1.1"):
        details = {"path": "Host", "expected": "it once"}
        return RequestError("The request names no host, or several", details)
    return None


_LOOKED_AT = frozenset(
    (
        *(b"x-request-id", b"origin", b"content-length"),
        *(b"access-control-request-method", b"access-control-request-headers"),
    )
)


def _headers(headers: object, path: str, request_id: str) -> list[Header]:
    """The headers of an answer with those that each one has."""
    found: list[Header] = list(headers)  # type: ignore[call-overload]
    named = dict(found)
    if b"x-request-id" not in named:
        found.append((b"x-request-id", request_id.encode()))
    if path.startswith("/v1/messages"):
        found.append((b"request-id", request_id.encode()))  # Anthropic's name for it
    found.append(NOSNIFF)
    if b"cache-control" not in named:
        found.append(NO_STORE)
    if named.get(b"content-type", b"").startswith(b"text/html"):
        found += [header for header in PAGE if header[0] not in named]
    return found
