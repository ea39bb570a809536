"""The gateway program: the FastAPI application with all routes, and the server that runs it."""

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
from gridq.gateway.grid.snapshot import GridSnapshot, get_snapshot
from gridq.gateway.http import direct_routes, middleware, openapi
from gridq.gateway.http.bounds import BodyLimit
from gridq.gateway.http.connections import BoundedConnection
from gridq.gateway.http_workers.hosting import WorkerHost
from gridq.gateway.metrics import request_metrics
from gridq.gateway.metrics.collector import MetricsCollector
from gridq.gateway.options import GatewayOptions, check_certificate
from gridq.gateway.routes import (
    anthropic,
    enrolment,
    events,
    health,
    jobs,
    metrics,
    openai,
    queues,
    responses,
    unsupported,
    workers,
)
from gridq.process.heap import keep_heap_small
from gridq.store.connection import check_server, connect_to_submit, translate_errors

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def create_app(config: Settings, options: GatewayOptions) -> FastAPI:
    """Build the application of one gateway. Its lifespan opens and closes the grid connection."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        grid = app.state.grid = await GridConnection.open(config, options)
        app.state.authenticator = Authenticator(grid)
        app.state.snapshot = GridSnapshot(grid)
        app.state.metrics = MetricsCollector(grid, app.state.request_metrics)
        app.state.worker_host = WorkerHost(config, options.worker_networks)
        app.state.worker_host.start()
        try:
            yield
        finally:
            await asyncio.to_thread(app.state.worker_host.stop)
            await grid.close()

    async def read_key_origins() -> frozenset[str]:
        return await get_snapshot(app).origins.get()

    async def read_server_limit() -> BodyLimit | None:
        return await get_snapshot(app).server_limit.get()

    app = FastAPI(
        title="gridq",
        version=version("gridq"),
        description="One address for a grid of language models and machines. Call it with the OpenAI or "
        "Anthropic client, or submit graphs of stages as jobs.",
        lifespan=lifespan,
        generate_unique_id_function=lambda route: route.name,  # operation IDs for generated clients
        redirect_slashes=False,
        docs_url=None,  # these pages load scripts from other hosts, which the security headers forbid
        redoc_url=None,
    )
    model_apis = (openai, responses, anthropic, unsupported)
    for part in (*model_apis, jobs, events, workers, enrolment, queues, health, metrics):
        app.include_router(part.router)
    direct_routes.install(app, (part.router for part in model_apis))
    middleware.install(app, config, options, read_key_origins, read_server_limit)
    request_metrics.install(app)
    openapi.describe(app)
    return app


class _Server(uvicorn.Server):
    """A uvicorn server that reports when it is ready and ends in order at SIGTERM and SIGINT alike."""

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
        grid.closing = True  # ends event streams, whose clients reconnect to another gateway
        worker_host: WorkerHost = self._app.state.worker_host
        worker_host.begin_stop()  # drains at the same time as the requests
        await super().shutdown(sockets)
        if self.force_exit:  # the lifespan would wait for hosted stages and for the Redis server
            os._exit(os.EX_OK)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop at the first signal, cut off what is open at the second.

        A timer ends the process even if the Redis server hangs: EXIT_GRACE_SECONDS after the drain
        at the first signal, SECOND_SIGNAL_GRACE_SECONDS after the second.
        """
        seconds = SECOND_SIGNAL_GRACE_SECONDS if self.should_exit else self._drain + EXIT_GRACE_SECONDS
        self.force_exit, self.should_exit = self.should_exit, True
        deadline = threading.Timer(seconds, _exit_now)
        deadline.daemon = True
        deadline.start()

    @property
    def url(self) -> str:
        """The URL that it listens on."""
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        scheme = "https" if self.config.is_ssl else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals while the server runs.

        uvicorn's own version raises the signal again at the end; the process would die of it.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _exit_now() -> None:
    log.error("open requests did not end in time; the gateway exits without them")
    os._exit(1)


def serve(config: Settings, options: GatewayOptions, *, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT. `ready` is called with the URL once the gateway listens.

    On the first signal the gateway stops listening and open requests may finish within GRIDQ_DRAIN
    seconds. It cuts off streams that do not; clients resume them at another gateway. A second signal
    cuts off everything.

    Raises before it listens: the errors of `check_server`; ConfigError if the certificate cannot be
    loaded; StartTimeout if the server cannot start, for example because the port is taken.
    """
    keep_heap_small()
    server = make_server(config, options, ready)
    server.run()
    if not server.started:
        raise StartTimeout("The gateway could not start", {"fix": "see the log for the cause"})


def make_server(config: Settings, options: GatewayOptions, ready: Callable[[str], None]) -> uvicorn.Server:
    """Build the server of `serve` without running it. Set its `should_exit` to end it."""
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
    """Check the certificate and the Redis server, so that the gateway fails at start rather than later."""
    check_certificate(options)
    url = config.get_broker_url()
    client = connect_to_submit(url, name="gridq-gateway")
    try:
        with translate_errors(url):
            check_server(client)
    finally:
        client.close()
