"""A grid behind a gateway in this process: a real server, an llm seat at a fake endpoint, and HTTP."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from gridq import stages
from gridq.config.settings import Settings
from gridq.profiles.profile import StageContext
from gridq.protocol import queue_names
from gridq.protocol.models import Advertisement, Json, StageCall
from gridq.seats import registry
from gridq.store.connection import connect
from tests.fakes.openai_server import OpenAIServer
from tests.gateways import Gateway, serving
from tests.local_grid import LocalGrid
from workers.profiles.llm import LlmProfile
from workers.supervisor.embedded_server import EmbeddedServer

MODELS = (
    "paced", "pausing", "held", "vast", "slow", "silent", "cut", "cut-first", "malformed", "error-event",
    "error-late", "ragged", "whole", "tools", "status-400", "status-404", "status-422", "org/Big Model",
)  # fmt: skip


class LlmRunner:
    """Runs stages like an llm seat. `models`: those of the seat; default: all of OpenAIServer; None: those
    that its endpoint lists.
    """

    def __init__(self, url: str, models: Sequence[dict[str, Json]] | None = (), **table: Json) -> None:
        self.profile = LlmProfile()
        usual: list[dict[str, Json]] = [
            {"name": "echo", "families": ["small"]},
            {"name": "embed", "embeddings": True},
            *({"name": name} for name in MODELS),
        ]
        declared = [] if models is None else list(models) or usual
        seat = {"name": "api", "url": url, "allow_loopback": True, "models": declared, **table}
        offer = self.profile.probe([seat]).found[0]
        self.capability = self.profile.Capability.model_validate(offer.capability)
        self.profile.open(self.capability, offer.config)

    def __call__(self, stage: StageCall, value: Json, context: StageContext) -> Json:
        if stage.implementation.startswith(("builtin:", "python:")):
            return stages.run_builtin(stage, value, context)
        return self.profile.run(stage, value, context)


@contextmanager
def llm_grid(config: Settings, runners: Mapping[str, LlmRunner], *, concurrency: int) -> Iterator[LocalGrid]:
    """Run a grid of advertised llm seats and a router; delete its keys afterwards."""
    with ExitStack() as stack:
        serves = {name: runner.profile.queues(runner.capability) for name, runner in runners.items()}
        client = stack.enter_context(connect(config.broker_url.get_secret_value(), name="tests"))
        stack.callback(lambda: [client.unlink(key) for key in client.scan_iter(f"{config.prefix}*")])
        grid = LocalGrid(client, config, {**serves, "m.router": [queue_names.PURE]}, concurrency=concurrency)
        for name, runner in runners.items():
            grid.sessions[name].runner = runner
            stack.callback(runner.profile.close)
        stack.enter_context(grid)
        for name, runner in runners.items():
            advertisement = Advertisement(
                seat=name, machine="m", worker=f"{name.removeprefix('m.')}@m", incarnation="i", kind="llm",
                concurrency=concurrency, queues=serves[name], started_at=1.0,
                capability=runner.capability.model_dump(mode="json"),
            )  # fmt: skip
            registry.advertise(client, grid.scripts.keys, advertisement, 600.0)
        yield grid


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
