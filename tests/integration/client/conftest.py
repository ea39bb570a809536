"""A grid, and a client of it of each kind."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from gridq.client import (
    AsyncBrokerClient,
    AsyncClient,
    AsyncGatewayClient,
    BrokerClient,
    Client,
    GatewayClient,
)
from gridq.config.settings import Settings
from gridq.errors import ChildDied
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json, StageCall
from gridq.store.connection import connect
from tests.fakes.bench_profile import BENCH
from tests.gateways import GatewayProcess, serving
from tests.local_grid import DEFAULT_SEATS, BenchRunner, LocalGrid
from workers.supervisor.embedded_server import EmbeddedServer


class Deadly(BenchRunner):
    """Fails `bench_die` as if its child had died."""

    def __call__(self, stage: StageCall, value: Json, context: StageContext) -> Json:
        if stage.implementation == "bench:die":
            raise ChildDied("The stage's child process ended with 3", {"path": stage.path})
        return super().__call__(stage, value, context)


@dataclass
class Place:
    """A grid in this process, behind a gateway."""

    grid: LocalGrid
    url: str
    config: Settings


@pytest.fixture(scope="module")
def place(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    config = Settings(
        broker_url=server.url,
        prefix=f"c{secrets.token_hex(4)}:",
        home=tmp_path_factory.mktemp("home"),
        profiles=(BENCH,),
        inline_value=1000,
        url=None,
        key=None,
    )
    with (
        connect(server.url, name="tests") as client,
        LocalGrid(client, config, DEFAULT_SEATS, concurrency=4, runner=Deadly()) as grid,
        serving(config, keep_alive=0.5) as gateway,
    ):
        yield Place(grid, gateway.url, config)
    for key in client.scan_iter(f"{config.prefix}*", count=1000):
        client.unlink(key)


class OnLoop:
    """An AsyncClient with the methods of a Client: each runs on an event loop until it is done."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client
        self._runner = asyncio.Runner()

    def stream(self, job: str, timeout: float | None = None) -> Iterator[Any]:
        pieces = self.client.stream(job, timeout)
        try:
            while True:
                yield self._runner.run(anext(pieces))  # type: ignore[arg-type]
        except StopAsyncIteration:
            return
        finally:
            self._runner.run(pieces.aclose())  # type: ignore[attr-defined]

    def close(self) -> None:
        self._runner.run(self.client.close())
        self._runner.close()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.client, name)
        return lambda *args, **kwargs: self._runner.run(method(*args, **kwargs))


WAYS = {
    "server": lambda place: BrokerClient(config=place.config),
    "server, asyncio": lambda place: OnLoop(AsyncBrokerClient(config=place.config)),
    "gateway": lambda place: GatewayClient(place.url, config=place.config),
    "gateway, asyncio": lambda place: OnLoop(AsyncGatewayClient(place.url, config=place.config)),
}


@pytest.fixture(params=WAYS)
def client(request: pytest.FixtureRequest, place: Place) -> Iterator[Client]:
    """A client of each kind."""
    made = WAYS[request.param](place)
    yield made  # type: ignore[misc]
    made.close()


@pytest.fixture(params=[name for name in WAYS if name.startswith("gateway")])
def reach(request: pytest.FixtureRequest, place: Place) -> Iterator[Callable[..., Client]]:
    """Makes synchronous and asyncio clients of the gateways at a URL."""
    with ExitStack() as stack:

        def made(url: str, key: str | None = None) -> Any:
            if "asyncio" in request.param:
                client: Any = OnLoop(AsyncGatewayClient(url, key, config=place.config))
            else:
                client = GatewayClient(url, key, config=place.config)
            stack.callback(client.close)
            return client

        yield made


@pytest.fixture
def gateways(place: Place) -> Iterator[Callable[[int], list[GatewayProcess]]]:
    """Starts several gateways of the grid."""
    with ExitStack() as stack:

        def started(number: int) -> list[GatewayProcess]:
            found = [GatewayProcess(place.config, drain=1) for _ in range(number)]
            for each in found:
                stack.callback(each.end)
            for each in found:
                each.ready()
            return found

        yield started
