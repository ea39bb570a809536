"""The grid that the tutorial runs on."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridq.client import Client
from gridq.config.settings import Settings
from tests.fakes.bench_profile import BENCH
from tests.grid_environment import use_grid
from workers.supervisor.embedded_server import EmbeddedServer
from workers.supervisor.grid_processes import GridProcesses

SEATS = """
[local]
concurrency = 2

[[bench]]
name = "bench"
concurrency = 2

[weather]
city = "Oslo"
"""

QUOTAS = """
[agents.intern]
monthly_jobs = 2
"""


@pytest.fixture(scope="package")
def grid(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Start the grid and return a client of it. In the tests, the functions of `gridq` use the same grid."""
    folder = tmp_path_factory.mktemp("fundamentals")
    home = folder / "home"
    home.mkdir(mode=0o700)
    (home / "seats.toml").write_text(SEATS)
    quotas = folder / "quotas.toml"
    quotas.write_text(QUOTAS)
    config = Settings(
        broker_url=server.url,
        prefix=f"f{secrets.token_hex(3)}:",
        home=home,
        profiles=(BENCH, "tests.fundamentals.weather_profile:WeatherProfile"),
    )
    variables = {
        "GRIDQ_STAGES": "tests.fundamentals.own_stages",
        "GRIDQ_QUOTAS": str(quotas),
        "GRIDQ_RETRY_BACKOFF": "0.1",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    seats = ["local", "bench", "weather"]
    with (
        use_grid(config) as client,
        GridProcesses(config, seats, folder=folder / "logs", env=variables),
    ):
        yield client
