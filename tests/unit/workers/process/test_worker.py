"""A worker's start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gridq.app import app
from gridq.config.settings import settings
from gridq.seats import registry
from tests.conftest import GridEnv
from workers.machine.probing import probe_machine
from workers.machine.seats import Seat
from workers.process.worker import Worker
from workers.profiles.gpu import GpuProfile
from workers.profiles.gpu.capability import GpuCapability

STAGES = """
from gridq import stage

@stage(effects=["Process"], input="Any", output="Any")
def offered(value):
    return value
"""


def test_a_seats_stages_are_known_as_soon_as_it_is_live(
    grid_env: GridEnv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "offered_stages.py").write_text(STAGES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("GRIDQ_STAGES", "offered_stages")
    settings.cache_clear()
    config = settings()
    seat = probe_machine(config, {}).select(["local"])[0]
    worker = Worker(app, config, seat, ["gridq:local"], 1)
    scripts = worker.session.scripts
    register = scripts.register
    known: list[list[str]] = []

    def registered(*args: Any, **more: Any) -> str | None:
        other = register(*args, **more)
        known.append(
            [str(spec["name"]) for spec in registry.read_published_stages(scripts.client, scripts.keys)]
        )
        return other

    monkeypatch.setattr(scripts, "register", registered)
    worker.start()
    try:
        assert known == [["offered"]]
    finally:
        worker.stop()


def test_the_hourly_price_of_a_seat_reaches_the_server(grid_env: GridEnv) -> None:
    """The price is sent with the default timeout of a stage."""
    profile = GpuProfile()
    (offer,) = profile.probe({"gpus": False, "price_per_hour": 1.5}).found
    capability = GpuCapability.model_validate(offer.capability)
    queues = tuple(profile.queues(capability))
    config = settings().model_copy(update={"stage_timeout": 90.0})
    worker = Worker(app, config, Seat(offer, queues, profile, capability), list(queues), 1)
    scripts = worker.session.scripts
    worker.start()
    try:
        [seat] = registry.read_live_seats(scripts.client, scripts.keys)
        assert (seat.hourly, seat.rates.timeout_ms) == (1_500_000, 90_000)
    finally:
        worker.stop()
