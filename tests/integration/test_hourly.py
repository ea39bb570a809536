"""A GPU seat with an hourly price and a real model: slots reserve the expected time of their stages and are
settled by the real time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from gridq import stages
from gridq.config.settings import settings
from gridq.limits.ledger_verification import verify
from gridq.profiles.profile import StageContext
from gridq.protocol.meters import Meter
from gridq.protocol.models import Json, Limit, SeatTerms, StageCall
from gridq.seats.registry import LiveSeat, read_live_seats
from gridq.submission.admission import Admission
from tests.builders import stage
from tests.conftest import GridEnv
from tests.local_grid import LocalGrid
from tests.small_model import NEEDS_SMALL_MODEL
from tests.waiting import wait_for
from workers.profiles.gpu import GpuProfile
from workers.profiles.gpu.capability import GpuCapability

pytestmark = NEEDS_SMALL_MODEL

LONG = {"root": stage("llm_complete", prompt="Tell me a very long story.", max_tokens=1500)}
SHORT = {"root": stage("llm_complete", prompt="One word.", max_tokens=1)}


@dataclass(frozen=True)
class Desk:
    """A grid of one seat of four slots at $3.60 an hour, of which $1.30 a day may be used."""

    grid: LocalGrid

    @property
    def seat(self) -> LiveSeat:
        (seat,) = read_live_seats(self.grid.scripts.client, self.grid.scripts.keys)
        return seat

    @property
    def money(self) -> Meter:
        return self.seat.meters[0]

    def ask(self, graph: dict[str, Json], count: int) -> list[str]:
        return [self.grid.client.submit(graph, {}, agent="ann") for _ in range(count)]

    def cancel(self, jobs: list[str]) -> None:
        for job in jobs:
            self.grid.client.cancel(job)
        wait_for(lambda: not self.seat.busy)


@pytest.fixture
def desk(grid_env: GridEnv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setenv("GRIDQ_ENGINE", "xllamacpp")
    monkeypatch.setenv("GRIDQ_HOME", str(tmp_path))
    settings.cache_clear()
    profile = GpuProfile()
    (offer,) = profile.probe({"gpus": False, "concurrency": 4, "price_per_hour": 3.6}).found
    capability = GpuCapability.model_validate(offer.capability)
    profile.open(capability, offer.config)

    def run(call: StageCall, value: Json, context: StageContext) -> Json:
        if call.implementation.startswith("builtin:"):
            return stages.run_builtin(call, value, context)
        return profile.run(call, value, context)

    config = grid_env.settings.model_copy(update={"sweep_ms": 50, "profiles": ("gpu",)})
    seats = {"m.cpu": profile.queues(capability)}
    with closing(profile), LocalGrid(grid_env.client, config, seats, concurrency=4, runner=run) as grid:
        session = grid.sessions["m.cpu"]
        session.terms = SeatTerms(
            limits=(Limit(resource="money", window="day", amount=1_300_000),),
            hourly=profile.hourly_price(capability, offer.config),
        )
        session.register()
        grid.client._admission = Admission(grid.scripts, config, {"gpu": profile})
        yield Desk(grid)
        found = verify(grid.scripts.client, grid.scripts.keys)
        assert (found.differences, found.notes) == ((), ())
    settings.cache_clear()


def test_concurrent_stages_never_overdraw_the_budget(desk: Desk) -> None:
    jobs = desk.ask(LONG, 4)
    wait_for(lambda: desk.seat.busy == 2)  # sixty cents each: only their time-out is known
    (waits,) = [reason for job in jobs if "budget" in (reason := desk.grid.client.waits_for(job))][:1]
    assert "m.cpu has $0.10 left of $1.30 a day" in waits
    assert (desk.money.used, desk.money.reserved) == (0, 1_200_000)
    desk.cancel(jobs)
    for job in desk.ask(SHORT, 2):
        assert desk.grid.client.result(job, 30)
    wait_for(lambda: desk.seat.rates.stage_ms)
    assert desk.money.reserved == 0
    assert 0 < desk.money.used < 100_000
    jobs = desk.ask(LONG, 4)
    wait_for(lambda: desk.seat.busy == 4)  # as long as the two before them
    assert desk.money.reserved == 4 * -(-desk.seat.hourly * desk.seat.rates.stage_ms["llm:any"] // 3_600_000)
    desk.cancel(jobs)
