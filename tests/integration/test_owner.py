"""An owner's pause: running and waiting stages, submitters, and outages of the server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridq.config.settings import Settings
from gridq.errors import NoLiveSeat, SeatDegraded, StreamCut
from gridq.execution.session import Session
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json, Limit, SeatTerms, StageCall, Usage
from gridq.seats import registry
from gridq.store.connection import connect
from tests.conftest import GridEnv
from tests.fakes.bench_profile import BENCH
from tests.local_grid import BenchRunner, LocalGrid
from tests.waiting import wait_for
from workers.owner import switch
from workers.owner.rules import Switch
from workers.owner.watch import Watch
from workers.process.heartbeat import Heartbeat

pytestmark = pytest.mark.usefixtures("key_hygiene")

SLEEP = {"root": {"op": "Stage", "id": "bench_sleep", "config": {"ms": 60_000}}}
ECHO = {"root": {"op": "Stage", "id": "bench_echo"}}


class Paid(BenchRunner):
    """Reports some usage at once, and counts its runs."""

    def __init__(self) -> None:
        super().__init__()
        self.runs = 0
        self.deaf: threading.Event | None = None

    def __call__(self, stage: StageCall, value: Json, context: StageContext) -> Json:
        self.runs += 1
        context.report(Usage(micro_dollars=700))
        if self.deaf is not None:
            self.deaf.wait(60)
        return super().__call__(stage, value, context)


class Owned:
    """A grid of one seat, whose owner has a switch in `home`."""

    def __init__(self, grid: LocalGrid, runner: Paid, home: Path) -> None:
        self.grid = grid
        self.runner = runner
        self.home = home
        self.client = grid.client
        self.session: Session = grid.sessions["m.bench"]
        beat = Heartbeat(
            grid.scripts.client, grid.config, self.session, machine="m", kind="bench", capability={}
        )
        self.session.on_change = beat.beat
        beat.beat()
        self.watch = Watch(home, "bench", self.session, [Switch(home, "bench")])
        self.watch.prepare()
        self.watch.start()

    def seat(self) -> registry.LiveSeat:
        [seat] = [seat for seat in self.client.workers() if seat.seat == "m.bench"]
        return seat

    def start(self) -> str:
        job = self.client.submit(SLEEP, {})
        wait_for(lambda: self.runner.runs)
        return job


@pytest.fixture
def owned(grid_env: GridEnv, tmp_path: Path) -> Iterator[Owned]:
    config = Settings(
        broker_url=grid_env.url, prefix=grid_env.prefix, profiles=(BENCH,), renew_ms=100, lease_ms=2000
    )
    runner = Paid()
    with LocalGrid(connect(grid_env.url), config, {"m.bench": ["bench:any"]}, runner=runner) as grid:
        found = Owned(grid, runner, tmp_path)
        try:
            yield found
        finally:
            if runner.deaf is not None:
                runner.deaf.set()
            found.watch.stop()


def test_a_pause_hands_back_running_stages(owned: Owned) -> None:
    session = owned.session
    session.terms = SeatTerms(limits=(Limit(resource="money", window="month", amount=10_000),))
    session.register()
    job = owned.start()
    switch.pause(owned.home, None, reason="a talk")
    seat = wait_for(owned.seat, true=lambda seat: seat.state == "paused" and not seat.busy)
    assert (seat.reason, seat.until) == ("its owner paused it: a talk", None)
    [stage] = wait_for(lambda: owned.client.view(job).stages, true=lambda found: found[0].state == "ready")
    assert (stage.attempts, stage.failures, stage.losses) == (1, 0, 0)
    assert owned.seat().budget_left == 9_300
    assert "m.bench is paused: its owner paused it: a talk" in owned.client.waits_for(job)
    with pytest.raises(NoLiveSeat, match="serves it, but is paused: its owner paused it: a talk"):
        owned.client.submit(ECHO, 1, queue_timeout=0.1)
    runs = owned.runner.runs
    switch.resume(owned.home, None)
    wait_for(lambda: owned.runner.runs > runs)
    assert owned.seat().state == "ready"
    assert owned.client.run(ECHO, 3, timeout=20) == 3
    owned.client.cancel(job)


def test_a_pause_cuts_an_answer_whose_first_piece_was_sent(owned: Owned) -> None:
    """Either the stage stops by itself first, or it is handed back first."""
    talk = {"root": {"op": "Stage", "id": "bench_tokens", "config": {"n": 1_000, "ms": 20}}}
    for _ in range(5):
        job = owned.client.submit(talk, {}, stream=True)
        next(iter(owned.client.stream(job, timeout=20)))
        switch.pause(owned.home, None)
        with pytest.raises(StreamCut) as caught:
            owned.client.result(job, 20)
        assert (caught.value.path, caught.value.reason) == ("root", "the seat was taken back")
        switch.resume(owned.home, None)
        wait_for(lambda: owned.seat().state == "ready")


def test_another_seat_runs_the_stage(owned: Owned, grid_env: GridEnv) -> None:
    job = owned.client.submit(
        ECHO | {"root": {"op": "Stage", "id": "bench_sleep", "config": {"ms": 700}}}, {}
    )
    wait_for(lambda: owned.runner.runs)
    with LocalGrid(connect(grid_env.url), owned.grid.config, {"m.other": ["bench:any"]}):
        switch.pause(owned.home, "bench")
        assert owned.client.result(job, 20) is not None
        [row] = owned.client.rows(job)
        assert (row.worker, row.attempt, row.failures) == ("m.other", 2, 0)


def test_code_that_does_not_stop_holds_no_slot(owned: Owned) -> None:
    owned.runner.deaf = threading.Event()
    jobs = [owned.start(), owned.client.submit(SLEEP, {})]
    wait_for(lambda: owned.runner.runs == 2)
    switch.pause(owned.home, "bench")
    wait_for(lambda: not owned.session.busy)
    for job in jobs:
        owned.client.cancel(job)
    deaf, owned.runner.deaf = owned.runner.deaf, None
    switch.resume(owned.home, "bench")
    wait_for(lambda: owned.seat().state == "ready")
    assert owned.client.run(ECHO, 3, timeout=20) == 3
    deaf.set()


def test_a_paused_seat_starts_paused(owned: Owned) -> None:
    switch.pause(owned.home, "bench")
    wait_for(lambda: owned.seat().state == "paused")
    owned.watch.stop()
    session = owned.session
    again = Watch(owned.home, "bench", session, [Switch(owned.home, "bench")])
    session.paused = None
    again.prepare()
    session.register()
    assert owned.grid.scripts.client.hget(owned.grid.scripts.keys("concurrency"), "bench:any") is None
    with pytest.raises(NoLiveSeat):
        owned.client.submit(ECHO, 1, queue_timeout=0.1)
    assert owned.grid.scripts.claim(session.seat, session.incarnation, "x", "n") == "draining"
    switch.resume(owned.home, "bench")
    again.check()
    assert owned.client.run(ECHO, 3, timeout=20) == 3


def test_recovery_does_not_end_a_pause(owned: Owned) -> None:
    switch.pause(owned.home, "bench")
    wait_for(lambda: owned.seat().state == "paused")
    owned.session.report_seat_failure(SeatDegraded("the key was refused", {"retry_after": 0.05}))
    wait_for(lambda: owned.session.unavailable == owned.session.paused)
    owned.session.renew()
    assert owned.seat().state == "paused"
    owned.session.report_seat_failure(SeatDegraded("the key was refused"))
    switch.resume(owned.home, "bench")
    wait_for(lambda: owned.seat().state == "degraded")
    with pytest.raises(NoLiveSeat, match="the key was refused"):
        owned.client.submit(ECHO, 1, queue_timeout=0.1)


def test_a_pause_takes_effect_while_the_server_is_away(owned: Owned, monkeypatch: pytest.MonkeyPatch) -> None:
    """Running stages end although the server cannot be reached. It learns of the pause later."""
    job = owned.start()
    away = connect("redis://127.0.0.1:1/0", timeout=0.1, retry=False)
    there = owned.grid.scripts.client
    owned.session.scripts.client = away
    switch.pause(owned.home, "bench")
    wait_for(lambda: owned.session.paused)
    owned.session.scripts.client = there
    wait_for(owned.seat, true=lambda seat: seat.state == "paused" and not seat.busy)
    wait_for(lambda: owned.client.view(job).stages[0].state == "ready")
    owned.client.cancel(job)
