"""One grid, and each way into it that a client can take."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import subprocess
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
from tests.acceptance.homes import GRIDQ
from tests.fakes.bench_profile import BENCH
from tests.gateways import serving
from tests.grid_environment import environment
from tests.local_grid import DEFAULT_SEATS, BenchRunner, LocalGrid
from workers.supervisor.embedded_server import EmbeddedServer


class Deadly(BenchRunner):
    """`bench_die` kills its child, as it were."""

    def __call__(self, stage: StageCall, value: Json, context: StageContext) -> Json:
        if stage.implementation == "bench:die":
            raise ChildDied("The stage's child process ended with 3", {"path": stage.path})
        return super().__call__(stage, value, context)


@dataclass
class Place:
    """A grid in this process with a gateway before it."""

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
    """An AsyncClient's methods as those of a Client: each runs on a loop until it is done."""

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
    """A client by each of the ways."""
    made = WAYS[request.param](place)
    yield made  # type: ignore[misc]
    made.close()


@pytest.fixture(params=[name for name in WAYS if name.startswith("gateway")])
def reach(request: pytest.FixtureRequest, place: Place) -> Iterator[Callable[..., Client]]:
    """Makes a client of the gateways at a URL, on threads or for asyncio."""
    with ExitStack() as stack:

        def made(url: str, key: str | None = None) -> Any:
            if "asyncio" in request.param:
                client: Any = OnLoop(AsyncGatewayClient(url, key, config=place.config))
            else:
                client = GatewayClient(url, key, config=place.config)
            stack.callback(client.close)
            return client

        yield made


class GatewayProcess:
    """A gateway as a process of its own, which can be killed."""

    def __init__(self, config: Settings) -> None:
        quiet = {name: value for name, value in os.environ.items() if not name.startswith("GRIDQ_")}
        self.process = subprocess.Popen(
            [*GRIDQ, "gateway", "--port", "0", "--json"],
            stdout=subprocess.PIPE,
            text=True,
            env={**quiet, **environment(config), "GRIDQ_DRAIN": "1"},
        )
        self.url = ""

    def ready(self) -> str:
        """Its URL, once it listens."""
        assert self.process.stdout is not None
        text = ""
        while not text.endswith("}\n"):
            line = self.process.stdout.readline()
            assert line, "the gateway did not start"
            text += line
        about: Json = json.loads(text)
        self.url = str(about["url"])
        return self.url

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        """End it, in order where it lives."""
        self.process.terminate()
        self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def gateways(place: Place) -> Iterator[Callable[[int], list[GatewayProcess]]]:
    """Starts gateways of the grid, side by side."""
    with ExitStack() as stack:

        def started(number: int) -> list[GatewayProcess]:
            found = [GatewayProcess(place.config) for _ in range(number)]
            for each in found:
                stack.callback(each.end)
            for each in found:
                each.ready()
            return found

        yield started
