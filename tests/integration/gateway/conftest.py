"""A grid behind a gateway in this process: a real server, an llm seat at a fake endpoint, and HTTP."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from gridq.config.settings import Settings
from tests.fakes.openai_server import OpenAIServer
from tests.gateways import Gateway, serving
from tests.local_grid import LocalGrid
from tests.seat_runners import LlmRunner, llm_grid
from workers.supervisor.embedded_server import EmbeddedServer


@dataclass
class Served:
    """A grid behind a gateway: the gateway, the endpoint of its seat, its settings."""

    gateway: Gateway
    api: OpenAIServer
    config: Settings
    grid: LocalGrid

    @property
    def url(self) -> str:
        """The gateway's URL."""
        return self.gateway.url

    def count_requests(self) -> int:
        """Return the number of requests that the endpoint has received."""
        return len(self.api.requests)


@pytest.fixture(scope="module")
def served(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    config = Settings(
        broker_url=server.url,
        prefix=f"g{secrets.token_hex(4)}:",
        home=Path(tmp_path_factory.mktemp("home")),
        retry_backoff=0.0,
    )
    with (
        OpenAIServer() as api,
        llm_grid(config, {"m.api": LlmRunner(api.url)}, concurrency=8) as grid,
        serving(config, keep_alive=0.5, admission_wait=0.5) as gateway,
    ):
        yield Served(gateway, api, config, grid)


@pytest.fixture
def http(served: Served) -> httpx.Client:
    return served.gateway.http
