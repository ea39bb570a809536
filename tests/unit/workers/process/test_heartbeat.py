"""A seat's state in its heartbeat."""

from __future__ import annotations

import time

from gridq.errors import SeatDegraded
from gridq.execution.session import Session
from gridq.seats.registry import read_live_seats
from gridq.store.scripts import Scripts
from tests.conftest import GridEnv
from tests.local_grid import BenchRunner
from workers.process.heartbeat import Heartbeat


def test_a_state_has_start_reason_and_known_end(grid_env: GridEnv) -> None:
    scripts = Scripts(grid_env.client, grid_env.settings)
    session = Session(
        scripts,
        grid_env.settings,
        seat="m.a",
        host="h",
        concurrency=1,
        queues=["bench:any"],
        runner=BenchRunner(),
    )
    beat = Heartbeat(grid_env.client, grid_env.settings, session, machine="m", kind="bench", capability={})
    session.register()
    began = time.time()
    ready = beat.build_advertisement()
    assert (ready.state, ready.until) == ("ready", None)
    assert ready.since >= began
    session.report_seat_failure(SeatDegraded("the key was refused"))
    beat.beat()
    first, second = beat.build_advertisement(), beat.build_advertisement()
    assert (first.state, first.reason) == ("degraded", "the key was refused")
    assert ready.since <= first.since == second.since
    assert first.until is not None
    assert first.since < first.until <= time.time() + 60
    [seat] = read_live_seats(grid_env.client, scripts.keys)
    assert (seat.state, seat.reason, seat.until is None) == ("degraded", "the key was refused", False)
    session.drain()
    assert (beat.build_advertisement().state, beat.build_advertisement().until) == ("draining", None)
