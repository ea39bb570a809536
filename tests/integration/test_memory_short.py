"""A seat whose device has no memory free for a model: the stage goes elsewhere, and nobody is blamed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gridq.errors import SeatMemoryShort
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json, StageCall
from tests.conftest import GridEnv
from tests.local_grid import DEFAULT_SEATS, BenchRunner, LocalGrid
from tests.unit.seats.live_seats import echo_graph
from tests.waiting import wait_for


class Full(BenchRunner):
    """The runner of a seat without free memory, until `free`."""

    def __init__(self) -> None:
        super().__init__()
        self.free = False
        self.refused = 0

    def __call__(self, stage: StageCall, value: Json, context: StageContext) -> Json:
        if stage.implementation.startswith("bench:"):
            context.use_model("large")
            if not self.free:
                self.refused += 1
                raise SeatMemoryShort("too little", {"model": "large", "retry_after": 0.2})
        return super().__call__(stage, value, context)


@pytest.fixture
def full() -> Full:
    return Full()


@pytest.fixture
def grid(grid_env: GridEnv, full: Full) -> Iterator[LocalGrid]:
    seats: dict[str, Any] = {**DEFAULT_SEATS, "m.full": ["bench:any", "bench:large"]}
    config = grid_env.settings.model_copy(update={"profiles": ("tests.fakes.bench_profile:BenchProfile",)})
    local = LocalGrid(grid_env.client, config, seats)
    local.sessions["m.full"].runner = full
    with local:
        yield local


def test_another_seat_runs_the_stage(grid: LocalGrid, full: Full) -> None:
    def run() -> int:
        """Return how often the full seat has refused a stage, once another has been answered."""
        job = grid.client.submit(echo_graph(), 5, prefer="m.full")
        assert grid.client.result(job, 30)["items"] == 5
        return full.refused

    wait_for(run, true=lambda refused: refused >= 3)
    session = grid.sessions["m.full"]
    assert session.unavailable is None
    assert session.list_model_cooldowns() == []


def test_without_another_seat_the_stage_waits_for_memory_and_spends_no_attempt(
    grid: LocalGrid, full: Full
) -> None:
    job = grid.client.submit(echo_graph("large"), 7)
    wait_for(lambda: full.refused > grid.config.max_attempts, 30)
    full.free = True
    assert grid.client.result(job, 30)["items"] == 7
    assert grid.sessions["m.full"].unavailable is None
