"""The outermost middleware: request ID, bounds, CORS, response headers, and the handling of unexpected
errors.

It is a single one, because each middleware costs every request some time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from fastapi import FastAPI
from redis.exceptions import RedisError
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gridq.config.settings import Settings
from gridq.errors import EncodingRefused, GridError, RequestError
from gridq.gateway.http import cors, errors
from gridq.gateway.http.body_memory import BodyMemory
from gridq.gateway.http.bounds import BodyLimit, BoundedBody, check_headers
from gridq.gateway.http.cors import Header
from gridq.gateway.options import GatewayOptions
from gridq.store.connection import translate_error

log = logging.getLogger(__name__)

KeyOrigins = Callable[[], Awaitable[frozenset[str]]]
"""Read the origins that the API keys allow."""

ServerLimit = Callable[[], Awaitable[BodyLimit | None]]
"""Read the largest body that the Redis server can store; None if it sets no limit."""

DEFAULT_MODEL_BODY_BYTES = 32 * 1024 * 1024
"""The largest body of a model API: that of Anthropic's Messages, which its documents give as 32 MB."""

NOSNIFF = (b"x-content-type-options", b"nosniff")
NO_STORE = (b"cache-control", b"no-store")
"""Responses are private to their caller."""

PAGE_HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
        b"frame-ancestors 'none'",
    ),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
)
"""Headers of an HTML page, unless the page sets them itself."""


def install(
    app: FastAPI,
    config: Settings,
    options: GatewayOptions,
    key_origins: KeyOrigins,
    server_limit: ServerLimit,
) -> None:
    """Add the error handlers and the middleware to `app`. Call it once, in `create_app`."""
    errors.install(app)
    app.add_middleware(
        Guard, config=config, options=options, key_origins=key_origins, server_limit=server_limit
    )


class Guard:
    """The middleware of one gateway."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        config: Settings,
        options: GatewayOptions,
        key_origins: KeyOrigins,
        server_limit: ServerLimit,
    ) -> None:
        self.app = app
        self.allowed = frozenset(options.allowed_origins)
        self.key_origins = key_origins
        self.server_limit = server_limit
        self.body_memory = BodyMemory(options.body_memory)
        own = "GRIDQ_GATEWAY_MAX_BODY"
        if options.max_body is not None:
            self.model_limit = self.limit = BodyLimit(options.max_body, own)
        else:
            self.limit = BodyLimit(config.max_value, "GRIDQ_MAX_VALUE")
            self.model_limit = max(
                BodyLimit(DEFAULT_MODEL_BODY_BYTES, own), self.limit, key=lambda limit: limit.max_bytes
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_headers = {name: value for name, value in scope["headers"] if name in _READ_HEADERS}
        state = scope.setdefault("state", {})
        request_id = errors.make_request_id(request_headers.get(b"x-request-id", b"").decode("latin-1"))
        state["request_id"] = request_id
        is_model_api = scope["path"].startswith(errors.MODEL_API_PATH)
        length = _read_length(request_headers.get(b"content-length"))
        state["body"] = body = BoundedBody(
            receive,
            self.model_limit if is_model_api else self.limit,
            self.body_memory,
            self.server_limit,
            length,
        )
        origin = request_headers[b"origin"].decode("latin-1") if b"origin" in request_headers else None
        started = False
        head = scope["method"] == "HEAD"  # handled as GET, sent without a body
        inner_scope = {**scope, "method": "GET"} if head else scope

        async def send_response(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = _complete_headers(message.get("headers", ()), scope["path"], request_id)
                if origin is not None and self._is_allowed(scope, origin):
                    message["headers"] += cors.make_allow_headers(origin)
            elif head:
                return
            await send(message)
            if head:  # end at once, so that the handler of a stream sees the disconnect
                await send({"type": "http.response.body"})

        try:
            if length is None and b"content-length" in request_headers:
                raise RequestError(
                    "Content-Length is not a number",
                    {"path": "Content-Length", "expected": "a number of bytes"},
                )
            body.check()
            check_headers(scope["headers"])
            _check_framing(scope)
            if (
                origin is not None
                and scope["method"] == "OPTIONS"
                and b"access-control-request-method" in request_headers
            ):
                await self._preflight(
                    scope, origin, request_headers.get(b"access-control-request-headers", b""), send
                )
                return
            await self.app(inner_scope, body, send_response)
        except ClientDisconnect:
            return
        except asyncio.CancelledError:  # uvicorn shuts down and the request did not end within GRIDQ_DRAIN
            if not started:
                response = errors.make_error_response(Request(scope, receive), errors.make_stopping_error())
                await response(scope, receive, send_response)
        except Exception as exc:
            if started:
                # uvicorn closes the connection, so that a partial response does not look complete.
                log.error(
                    "a response was cut off by an error",
                    exc_info=exc,
                    extra=errors.make_log_fields(Request(scope)),
                )
                return
            request = Request(scope, receive)
            if isinstance(exc, GridError | RedisError):
                error = exc if isinstance(exc, GridError) else translate_error(exc)
                response = errors.make_error_response(request, error)
            else:
                response = await errors.handle_unexpected(request, exc)
            await response(scope, receive, send_response)
        finally:
            if "route" in inner_scope:
                scope["route"] = inner_scope["route"]  # for the request metrics
            body.release()
            release_slot = state.get("release_slot")
            if release_slot is not None:
                release_slot()

    def _is_allowed(self, scope: Scope, origin: str) -> bool:
        """Return True if a page of `origin` may read the response."""
        return origin in self.allowed or "*" in self.allowed or origin in scope["state"].get("origins", ())

    async def _preflight(self, scope: Scope, origin: str, wanted: bytes, send: Send) -> None:
        """Answer a CORS preflight request."""
        if not self._is_allowed(scope, origin) and origin not in await self.key_origins():
            raise cors.make_origin_error(origin)
        headers = [*cors.make_preflight_headers(origin, wanted), NOSNIFF]
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


def _read_length(value: bytes | None) -> int | None:
    """Return the length that a request states for its body; None if it states none, or no number."""
    return int(value[:19]) if value is not None and value.isdigit() else None


def _check_framing(scope: Scope) -> None:
    """Refuse a request whose framing is ambiguous (RFC 9112, sections 3.2 and 6.1) or whose body is
    compressed.
    """
    hosts = transfers = 0
    for name, value in scope["headers"]:
        if name == b"host":
            hosts += 1
        elif name == b"transfer-encoding":
            transfers += 1
            if transfers > 1 or value.strip().lower() != b"chunked":
                details = {
                    "path": "Transfer-Encoding",
                    "expected": "one header with the value chunked, or none",
                }
                raise RequestError("Unsupported Transfer-Encoding", details)
        elif name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            details = {
                "path": "Content-Encoding",
                "expected": "identity",
                "fix": "send the body uncompressed",
            }
            raise EncodingRefused("Compressed request bodies are not supported", details)
    if hosts > 1 or (not hosts and scope.get("http_version") == "1.1"):
        details = {"path": "Host", "expected": "one Host header"}
        raise RequestError("The Host header is missing or repeated", details)


_READ_HEADERS = frozenset(
    (
        *(b"x-request-id", b"origin", b"content-length"),
        *(b"access-control-request-method", b"access-control-request-headers"),
    )
)


def _complete_headers(headers: object, path: str, request_id: str) -> list[Header]:
    """Return the headers of a response with those that every response has."""
    found: list[Header] = list(headers)  # type: ignore[call-overload]
    present = dict(found)
    if b"x-request-id" not in present:
        found.append((b"x-request-id", request_id.encode()))
    if path.startswith(errors.ANTHROPIC_PATH):
        found.append((b"request-id", request_id.encode()))  # Anthropic's name of the same ID
    found.append(NOSNIFF)
    if b"cache-control" not in present:
        found.append(NO_STORE)
    if present.get(b"content-type", b"").startswith(b"text/html"):
        found += [header for header in PAGE_HEADERS if header[0] not in present]
    return found
