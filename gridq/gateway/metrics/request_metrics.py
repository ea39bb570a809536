"""Metrics of this gateway's HTTP requests: their number, their duration, and how many are open."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gridq.gateway.metrics.histogram import Histogram

NO_ROUTE = "(none)"
"""The route label of a request that matches no route, so that made-up paths do not become labels."""

KNOWN_METHODS = frozenset(("GET", "POST", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS"))

EVENT_STREAM = b"text/event-stream"
CONTENT_TYPE = b"content-type"


class RequestMetrics:
    """The request metrics of one gateway."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.seconds: defaultdict[str, Histogram] = defaultdict(Histogram)
        self.open = 0
        self.streams = 0


class RequestMetricsMiddleware:
    """The middleware that counts requests. A stream's duration ends with its response head."""

    def __init__(self, app: ASGIApp, request_metrics: RequestMetrics) -> None:
        self.app = app
        self.request_metrics = request_metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_metrics, began = self.request_metrics, time.monotonic()
        status, head, streams = 499, 0.0, False

        async def count(message: Message) -> None:
            nonlocal status, head, streams
            if message["type"] == "http.response.start":
                status, head = message["status"], time.monotonic()
                if any(
                    value.startswith(EVENT_STREAM)
                    for name, value in message["headers"]
                    if name == CONTENT_TYPE
                ):
                    streams = True
                    request_metrics.streams += 1
            await send(message)

        request_metrics.open += 1
        try:
            await self.app(scope, receive, count)
        finally:
            request_metrics.open -= 1
            request_metrics.streams -= streams
            route = find_route(scope)
            method = scope["method"] if scope["method"] in KNOWN_METHODS else NO_ROUTE
            request_metrics.requests[method, route, status] += 1
            if route != NO_ROUTE and head:
                request_metrics.seconds[route].observe((head if streams else time.monotonic()) - began)


def install(app: FastAPI) -> None:
    """Count the requests of `app` in `app.state.request_metrics`. Call it last, so that the middleware is
    the outermost.
    """
    app.state.request_metrics = RequestMetrics()
    app.add_middleware(RequestMetricsMiddleware, request_metrics=app.state.request_metrics)


def find_route(scope: Scope) -> str:
    """Return the route that a request matched, as it is declared: `/jobs/{id}`."""
    route: Any = scope.get("route")
    return str(getattr(route, "path", NO_ROUTE))
