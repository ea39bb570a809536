"""What this gateway has been asked: requests by route and status, how long they took, what is open."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gridq.gateway.metrics.histogram import Distribution

NOWHERE = "(none)"
"""The route of a request that met none: paths that people make up are not told apart."""

METHODS = frozenset(("GET", "POST", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS"))

STREAM = b"text/event-stream"


class Tally:
    """The counts of one gateway."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.seconds: defaultdict[str, Distribution] = defaultdict(Distribution)
        self.open = 0
        self.streams = 0


class Counting:
    """The middleware that counts. The time of a stream is that to its head."""

    def __init__(self, app: ASGIApp, tally: Tally) -> None:
        self.app = app
        self.tally = tally

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        tally, began = self.tally, time.monotonic()
        status, head, streams = 499, 0.0, False

        async def count(message: Message) -> None:
            nonlocal status, head, streams
            if message["type"] == "http.response.start":
                status, head = message["status"], time.monotonic()
                if any(value.startswith(STREAM) for name, value in message["headers"] if name == TYPE):
                    streams = True
                    tally.streams += 1
            await send(message)

        tally.open += 1
        try:
            await self.app(scope, receive, count)
        finally:
            tally.open -= 1
            tally.streams -= streams
            route = route_of(scope)
            method = scope["method"] if scope["method"] in METHODS else NOWHERE
            tally.requests[method, route, status] += 1
            if route != NOWHERE and head:
                tally.seconds[route].add((head if streams else time.monotonic()) - began)


TYPE = b"content-type"


def install(app: FastAPI) -> None:
    """Count what `app` is asked, in `app.state.tally`: the last middleware to be added, so the outermost."""
    app.state.tally = Tally()
    app.add_middleware(Counting, tally=app.state.tally)


def route_of(scope: Scope) -> str:
    """The route that a request met, as it is written: `/jobs/{id}`."""
    route: Any = scope.get("route")
    return str(getattr(route, "path", NOWHERE))
