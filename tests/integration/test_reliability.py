"""The reliability of a seat, from the outcomes of its attempts, as operators see it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from typer.testing import CliRunner

from gridq import cli
from gridq.client import Client
from gridq.errors import AttemptsExhausted, SeatUnavailable
from gridq.profiles.profile import StageContext
from gridq.protocol import queue_names
from gridq.protocol.models import Json, StageCall
from tests.builders import stage
from tests.conftest import GridEnv
from tests.fakes.bench_profile import BENCH
from tests.local_grid import BenchRunner, LocalGrid
from tests.waiting import wait_for

SEATS: dict[str, Sequence[str]] = {
    "m.router": [queue_names.PURE], "m.bad": ["bench:any", "bench:bad"], "m.good": ["bench:any"],
}  # fmt: skip


class Broken(BenchRunner):
    """A seat whose engine answers nothing."""

    def __call__(self, call: StageCall, value: Json, context: StageContext) -> Json:
        raise SeatUnavailable("The engine does not answer", {"retry_after": 0.01})


def _seat(client: Client, name: str) -> float:
    [found] = [seat for seat in client.workers() if seat.seat == name]
    return found.reliability


def _count_recorded(grid: LocalGrid, seat: str) -> int:
    """Return the number of recorded stages that the server knows of."""
    client: Any = grid.scripts.client
    return int(client.hget(grid.scripts.keys("seat", seat), "recorded_stages") or 0)


def test_failures_count_against_a_seat_and_records_for_it(grid_env: GridEnv) -> None:
    config = grid_env.settings.model_copy(update={"profiles": (BENCH,), "renew_ms": 50, "sweep_ms": 50})
    with LocalGrid(grid_env.client, config, SEATS) as grid:
        good = grid.sessions["m.good"]
        grid.sessions["m.bad"].runner = Broken()
        with pytest.raises(AttemptsExhausted):
            grid.client.run({"root": stage("bench_echo", slug="bad")}, 1, timeout=20)
        for number in range(10):
            assert grid.client.run({"root": stage("bench_echo")}, number, timeout=20) == number
        wait_for(lambda: _count_recorded(grid, "m.good") == good._recorded)
        assert good._recorded > 0
        assert _seat(grid.client, "m.good") == 1.0
        assert _seat(grid.client, "m.bad") <= 0.41
        shown = CliRunner().invoke(cli.app, ["seats"], env={"COLUMNS": "200"})
        assert "reliability 0." in shown.stdout
        listed = json.loads(CliRunner().invoke(cli.app, ["seats", "--json"]).stdout)
        assert {each["seat"]: each["reliability"] < 0.7 for each in listed} == {
            "m.router": False, "m.bad": True, "m.good": False,
        }  # fmt: skip
