"""The gateway as a program: the application with all its routes, and the server that runs it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from importlib.metadata import version
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from gridq.config.settings import Settings
from gridq.errors import StartTimeout
from gridq.execution.shutdown import EXIT_GRACE_SECONDS, SECOND_SIGNAL_GRACE_SECONDS
from gridq.gateway.auth.caller import Authenticator
from gridq.gateway.grid.connection import GridConnection
from gridq.gateway.grid.snapshot import GridSnapshot
from gridq.gateway.http import middleware, openapi
from gridq.gateway.http.connections import BoundedConnection
from gridq.gateway.http_workers.hosting import WorkerHost
from gridq.gateway.metrics import request_metrics
from gridq.gateway.metrics.collector import MetricsCollector
from gridq.gateway.options import GatewayOptions, check_certificate
from gridq.gateway.routes import anthropic, enrolment, events, health, jobs, metrics, openai, queues, workers
from gridq.store.connection import check_server, connect_to_submit, translated

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def create_app(config: Settings, options: GatewayOptions) -> FastAPI:
    """The application of one gateway; its lifespan opens and closes the door, `app.state.door`."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        grid = app.state.grid = await GridConnection.open(config, options)
        app.state.authenticator = Authenticator(grid)
        app.state.snapshot = GridSnapshot(grid)
        app.state.metrics = MetricsCollector(grid, app.state.request_metrics)
        app.state.worker_host = WorkerHost(config)
        app.state.worker_host.start()
        try:
            yield
        finally:
            await asyncio.to_thread(app.state.worker_host.stop)
            await grid.close()

    app = FastAPI(
        title="gridq",
        version=version("gridq"),
        description="A grid of language models and machines behind one address.",
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,  # its pages come from elsewhere, which the guard's headers forbid
        redoc_url=None,
    )
    for part in (openai, anthropic, jobs, events, workers, enrolment, queues, health, metrics):
        app.include_router(part.router)
    middleware.install(app, config, options, lambda: app.state.snapshot.origins.get())
    request_metrics.install(app)
    openapi.describe(app)
    return app


class _Server(uvicorn.Server):
    """uvicorn, which says when it is ready, and ends as it is told to: with SIGTERM as with SIGINT."""

    def __init__(
        self, app: FastAPI, config: uvicorn.Config, ready: Callable[[str], None], drain: float
    ) -> None:
        super().__init__(config)
        self._app = app
        self._ready = ready
        self._drain = drain

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready(self.url)

    async def shutdown(self, sockets: Any = None) -> None:
        grid: GridConnection = self._app.state.grid
        grid.closing = True  # whoever watches without an end is told to come back elsewhere
        worker_host: WorkerHost = self._app.state.worker_host
        worker_host.begin_stop()  # within the same time
        await super().shutdown(sockets)
        if self.force_exit:  # the lifespan would wait for what those workers run, and for the server
            os._exit(os.EX_OK)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal ends it in order, at the latest EXIT_GRACE_SECONDS seconds after the drain even where the
        server is away; the second one cuts off what is open, within SECOND_SIGNAL_GRACE_SECONDS.
        """
        seconds = SECOND_SIGNAL_GRACE_SECONDS if self.should_exit else self._drain + EXIT_GRACE_SECONDS
        self.force_exit, self.should_exit = self.should_exit, True
        last = threading.Timer(seconds, _end_now)
        last.daemon = True
        last.start()

    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        scheme = "https" if self.config.is_ssl else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at a signal, and then end as any program does: uvicorn's own would die of it once more."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _end_now() -> None:
    log.error("what is open did not end: the gateway ends without it")
    os._exit(1)


def serve(config: Settings, options: GatewayOptions, *, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; `ready` is told the URL as soon as it listens.

    Then nobody new is let in, and what is open may end within GRIDQ_DRAIN, until a second signal; streams
    that do not are cut off and can be read on at another gateway. The server's faults (`check_server`) and
    ConfigError before it listens: the port is taken, a certificate cannot be read.
    """
    server = make_server(config, options, ready)
    server.run()
    if not server.started:
        raise StartTimeout("The gateway could not start", {"reason": "its log says why"})


def make_server(config: Settings, options: GatewayOptions, ready: Callable[[str], None]) -> uvicorn.Server:
    """The server of `serve`, for whoever runs it otherwise: `should_exit` ends it."""
    _check(config, options)
    app = create_app(config, options)
    return _Server(
        app,
        uvicorn.Config(
            app,
            host=options.host,
            port=options.port,
            loop="uvloop",
            http=BoundedConnection,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            proxy_headers=False,
            ssl_certfile=options.certfile,
            ssl_keyfile=options.keyfile,
            timeout_graceful_shutdown=math.ceil(config.drain),
            timeout_keep_alive=75,
        ),
        ready,
        config.drain,
    )


def _check(config: Settings, options: GatewayOptions) -> None:
    """Refuse at once what would only be met later."""
    check_certificate(options)
    url = config.broker_url.get_secret_value()
    client = connect_to_submit(url, name="gridq-gateway")
    try:
        with translated(url):
            check_server(client)
    finally:
        client.close()
