"""Seats that come while a deployment runs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gridq.config.settings import settings
from tests.fakes.engine_servers import FakeModel, FakeVllm
from tests.waiting import wait_for
from workers.machine.seats import Seat
from workers.profiles.gpu import profile as gpu_profile
from workers.profiles.gpu.running_engines import engine_offers
from workers.profiles.gpu.running_engines.engine_offers import SKIP_VARIABLE
from workers.profiles.gpu.running_engines.finding import NewEngines
from workers.supervisor import announced_seats
from workers.supervisor.announced_seats import AnnouncedSeats
from workers.supervisor.deployment import Deployment
from workers.supervisor.embedded_server import find_free_port


class Deployed:
    """What AnnouncedSeats uses of a deployment."""

    def __init__(self, home: Path) -> None:
        (home / "seats.toml").write_text("[gpu]\ncpu = false\ngpus = false\n")
        self.config = settings().model_copy(update={"home": home, "profiles": ("gpu",)})
        self.missing: list[str] = []
        self.reports: list[str] = []
        self.exit_callbacks: list[Any] = []
        self.seats: dict[str, Seat] = {}
        self.supervisor = SimpleNamespace(remove=self.seats.pop)
        self.report = self.reports.append

    def list_seats(self) -> dict[str, Seat]:
        return self.seats

    def replace_seat(self, seat: Seat) -> None:
        self.seats[seat.name] = seat

    def write_record(self) -> None:
        pass


def test_an_engine_that_starts_later_is_lent_and_stays_when_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = find_free_port()
    monkeypatch.setenv(SKIP_VARIABLE, "0")
    monkeypatch.setenv("GRIDQ_HOME", str(tmp_path))
    monkeypatch.setattr(engine_offers, "USUAL_PORTS", (port,))
    monkeypatch.setattr(gpu_profile, "NewEngines", lambda: NewEngines([port]))
    monkeypatch.setattr(announced_seats, "SEARCH_SECONDS", 0.05)
    deployed = Deployed(tmp_path)
    announced = AnnouncedSeats(cast("Deployment", deployed), ())
    announced.start()

    def update() -> list[str]:
        announced.update()
        return list(deployed.seats)

    try:
        assert update() == []
        with FakeVllm(FakeModel("org/m"), port=port):
            [name] = wait_for(update)
            assert name.startswith("vllm")
            assert [report for report in deployed.reports if "lend = false" in report]
        for callback in deployed.exit_callbacks:
            callback()
        announced._changed.set()
        assert update() == [name], "its worker finds it when it is back"
    finally:
        announced.stop()
