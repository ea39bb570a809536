"""Run a grid of model seats in this process, behind gateway processes."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gridq.config.settings import Settings
from gridq.protocol import queue_names
from gridq.store.connection import connect
from tests.acceptance.homes import GRIDQ
from tests.fakes.openai_server import OpenAIServer
from tests.integration.gateway.conftest import LlmRunner
from tests.local_grid import LocalGrid
from workers.supervisor.embedded_server import EmbeddedServer


class Grid:
    """The grid, its server, and gateways on request."""

    def __init__(self, server: EmbeddedServer, local: LocalGrid, config: Settings) -> None:
        self.server = server
        self.local = local
        self.config = config

    @contextmanager
    def gateway(self, drain: float = 20) -> Iterator[tuple[subprocess.Popen[str], str]]:
        quiet = {name: value for name, value in os.environ.items() if not name.startswith("GRIDQ_")}
        variables = {
            "GRIDQ_BROKER_URL": self.server.url, "GRIDQ_PREFIX": self.config.prefix,
            "GRIDQ_HOME": str(self.config.home), "GRIDQ_DRAIN": str(drain),
        }  # fmt: skip
        program = subprocess.Popen(
            [*GRIDQ, "gateway", "--port", "0"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=quiet | variables,
        )  # fmt: skip
        assert program.stdout is not None
        try:
            yield program, program.stdout.readline().split()[1]
        finally:
            program.kill()
            program.wait()
            program.stdout.close()


@contextmanager
def llm_grid(folder: Path, **given: Any) -> Iterator[Grid]:
    """Run a grid with its own server, whose data is in `folder`. `given`: settings."""
    (folder / "home").mkdir()
    with EmbeddedServer(Path(folder / "data"), appendonly=True) as server, OpenAIServer() as api:
        config = Settings(
            broker_url=server.url, prefix=f"r{secrets.token_hex(3)}:", home=folder / "home", **given
        )  # fmt: skip
        client = connect(server.url, name="tests")
        runner = LlmRunner(api.url)
        seats = {"m.api": runner.profile.queues(runner.capability), "m.router": [queue_names.PURE]}
        with LocalGrid(client, config, seats, concurrency=8, runner=runner) as local:  # type: ignore[arg-type]
            yield Grid(server, local, config)
        runner.profile.close()
        client.close()
