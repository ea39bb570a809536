"""Grids with one seat of each kind behind a gateway, and what its endpoint got."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from gridq.config.settings import Settings, settings
from gridq.limits import api_keys
from gridq.limits.api_keys import KeyLimits
from gridq.limits.quotas_file import parse
from gridq.limits.quotas_loader import put_in_force
from gridq.store.connection import connect
from gridq.store.keys import Keys
from tests import small_model
from tests.compatibility.endpoints import anthropic, google, openai, openai_rules
from tests.compatibility.endpoints.model import Request
from tests.compatibility.endpoints.server import BREAKING, KEY, LIMITED, LONG, PICKY, StrictServer
from tests.compatibility.results import SEATS
from tests.gateways import serving
from tests.seat_runners import CpuRunner, LlmRunner, SeatRunner, llm_grid
from workers.supervisor.embedded_server import EmbeddedServer

LOCAL_MODEL = "smollm2-135m-instruct"


@dataclass(frozen=True)
class Kind:
    """A kind of seat: its endpoint, and the names of its models for each use.

    `table` has further fields of the seat's table.
    """

    start: Callable[[], StrictServer]
    model: str
    thinker: str
    listener: str
    embedder: str
    table: dict[str, Any] = field(default_factory=dict)


OWN = {"provider": "openai"}
KINDS = {
    "openai": Kind(
        openai.OpenAIServer, openai.MODEL, openai_rules.THINKER, openai.LISTENER, openai.EMBEDDER,
        {**OWN, "responses": False},
    ),
    "engine": Kind(
        lambda: openai.OpenAIServer(is_strict=False), "qwen3-8b", openai.ENGINE_THINKER, "qwen3-8b", "bge-m3",
        {"responses": False},
    ),
    "responses": Kind(
        lambda: openai.OpenAIServer(responses=True), openai.MODEL, openai_rules.THINKER, openai.LISTENER,
        openai.EMBEDDER, {**OWN, "responses": True},
    ),
    "anthropic": Kind(
        anthropic.AnthropicServer, anthropic.MODEL, anthropic.MODEL, anthropic.MODEL, anthropic.MODEL,
        {"api": "anthropic"},
    ),
    "google": Kind(
        google.GoogleServer, google.MODEL, google.MODEL, google.MODEL, google.EMBEDDER, {"api": "google"}
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Seat:
    """A grid with one seat. `url` is its gateway's, `key` an API key of the grid.

    `limited_key` allows one request a minute. `model`, `thinker`, `listener` and `embedder` are the models to
    ask for. `server` is None for the local model.
    """

    kind: str
    url: str
    key: str
    limited_key: str
    model: str
    thinker: str
    listener: str
    embedder: str
    server: StrictServer | None
    http: httpx.Client

    @property
    def is_local(self) -> bool:
        return self.server is None

    @property
    def sent(self) -> Request:
        """The last request for an answer that the endpoint got, in the one form of all API formats."""
        assert self.server is not None
        return self.server.parsed[-1]

    @property
    def requests(self) -> list[dict[str, Any]]:
        """All requests that the endpoint got: `path`, `headers` and `body`."""
        return [] if self.server is None else self.server.requests


def run_seat(kind: str, server: EmbeddedServer, home: Path, quotas: str = "") -> Iterator[Seat]:
    """Run the grid of one kind of seat, a key of SEATS. Skips if the local model is not installed.

    `quotas` is the text of the grid's quotas file; in it, `{model}` stands for the name of the seat's model.
    """
    config = Settings(broker_url=server.url, prefix=f"m{secrets.token_hex(4)}:", home=home, retry_backoff=0.0)
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        endpoint: StrictServer | None = None
        if kind == "local":
            if not small_model.is_runnable():
                pytest.skip(small_model.WHY_SKIPPED)
            patch.setenv("GRIDQ_ENGINE", "xllamacpp")
            patch.setenv("GRIDQ_HOME", str(home))
            settings.cache_clear()
            stack.callback(settings.cache_clear)
            models = (LOCAL_MODEL,) * 4
            runner: SeatRunner = CpuRunner()
        else:
            patch.setenv("SEAT_KEY", KEY)
            found = KINDS[kind]
            endpoint = stack.enter_context(found.start())
            models = (found.model, found.thinker, found.listener, found.embedder)
            declared: list[dict[str, Any]] = [
                {"name": name, **({"embeddings": True} if name == found.embedder != found.model else {})}
                for name in dict.fromkeys([*models, LIMITED, PICKY, BREAKING, LONG])
            ]
            runner = LlmRunner(endpoint.url, declared, key_env="SEAT_KEY", **found.table)
        grid = stack.enter_context(llm_grid(config, {"m.api": runner}, concurrency=4))
        if quotas:
            put_in_force(grid.scripts, parse(quotas.replace("{model}", models[0]), "quotas.toml"), "a test")
        client = stack.enter_context(connect(server.url, name="tests"))
        keys = Keys(config.prefix)
        _, key = api_keys.create(client, keys, "ann")
        _, limited = api_keys.create(client, keys, "bob", limits=KeyLimits(rpm=1))
        gateway = stack.enter_context(serving(config, keep_alive=5, admission_wait=0.5))
        gateway.http.headers["authorization"] = f"Bearer {key}"
        yield Seat(kind, gateway.url, key, limited, *models, endpoint, gateway.http)


@pytest.fixture(scope="module", params=list(SEATS))
def seat(
    request: pytest.FixtureRequest, server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Seat]:
    """Each kind of seat in turn."""
    yield from run_seat(request.param, server, tmp_path_factory.mktemp("home"))
