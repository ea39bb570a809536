"""Run a grid of model seats in this process, behind gateway processes."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gridq.config.settings import Settings
from tests.fakes.openai_server import OpenAIServer
from tests.gateways import GatewayProcess
from tests.integration.gateway import conftest
from tests.local_grid import LocalGrid
from tests.seat_runners import LlmRunner
from workers.supervisor.embedded_server import EmbeddedServer


class Grid:
    """The grid, its server, and gateways on request."""

    def __init__(self, server: EmbeddedServer, local: LocalGrid, config: Settings) -> None:
        self.server = server
        self.local = local
        self.config = config

    @contextmanager
    def gateway(self, drain: float = 20) -> Iterator[tuple[subprocess.Popen[str], str]]:
        """Run a gateway process; yield it and its URL."""
        gateway = GatewayProcess(self.config, drain)
        try:
            yield gateway.process, gateway.ready()
        finally:
            gateway.kill()
            gateway.end()


@contextmanager
def llm_grid(folder: Path, **given: Any) -> Iterator[Grid]:
    """Run a grid with its own server, whose data is in `folder`. `given`: settings."""
    (folder / "home").mkdir()
    with EmbeddedServer(folder / "data", appendonly=True) as server, OpenAIServer() as api:
        config = Settings(
            broker_url=server.url, prefix=f"r{secrets.token_hex(3)}:", home=folder / "home", **given
        )  # fmt: skip
        with conftest.llm_grid(config, {"m.api": LlmRunner(api.url)}, concurrency=8) as local:
            yield Grid(server, local, config)
