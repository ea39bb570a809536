"""A whole grid of real processes: server, router, workers, each its own `celery` process."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gridq.client import Client
from gridq.settings import Settings
from tests.pointed import pointed_at
from workers.embedded import EmbeddedServer
from workers.home import Home

STAGES = '''
import os
from gridq import stage

@stage(effects=["Process"], input="Any", output="Any")
def pid(value):
    """The process that runs it."""
    return os.getpid()

@stage(effects=["Process"], input="Any", output="Any")
def boom(value):
    raise RuntimeError("it went boom")
'''


@dataclass
class WholeGrid:
    """A grid that runs: its settings, a client, its children by name."""

    config: Settings
    client: Client
    home: Home


@pytest.fixture(scope="module")
def whole_grid(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeGrid]:
    """Router, `local` (with a module of stages) and `bench` (4 lanes), and this process's app and client
    pointed at them.
    """
    folder: Path = tmp_path_factory.mktemp("grid")
    (folder / "own_stages.py").write_text(STAGES)
    (folder / "home").mkdir()
    (folder / "home" / "seats.toml").write_text("[bench]\nlanes = 4\n")
    config = Settings(
        broker_url=server.url,
        prefix=f"w{secrets.token_hex(3)}:",
        home=folder / "home",
        profiles=("bench",),
        retry_backoff=0.2,
    )
    env = {
        "GRIDQ_STAGES": "own_stages",
        "PYTHONPATH": str(folder),
        "GRIDQ_RETRY_BACKOFF": "0.2",
        "GRIDQ_DRAIN": "2",
    }
    with (
        pointed_at(config) as client,
        Home(config, ["local", "bench"], folder=folder / "logs", env=env) as home,
    ):
        yield WholeGrid(config, client, home)
