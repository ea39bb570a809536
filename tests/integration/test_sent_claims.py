"""Claims that are sent as soon as a wake-up comes: whatever happens before the slot reads the reply."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from gridq.config.settings import Settings
from gridq.execution.session import Session
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json, StageCall
from gridq.protocol.states import JobState
from gridq.store.connection import connect
from tests.builders import stage
from tests.conftest import GridEnv
from tests.fakes.bench_profile import BENCH
from tests.local_grid import LocalGrid
from tests.waiting import wait_for

GRAPH = {"root": stage("bench_echo", slug="other")}


class Counting:
    """Echoes, and counts the runs of each value."""

    def __init__(self) -> None:
        self.runs: list[Json] = []

    def __call__(self, stage: StageCall, value: Json, context: StageContext) -> Json:
        assert isinstance(value, dict)
        self.runs.append(value["items"])
        return value["items"]


class Bench:
    """A grid whose seats do nothing, and sessions of its own that serve `bench:other`."""

    def __init__(self, grid: LocalGrid) -> None:
        self.grid = grid
        self.runner = Counting()
        self.opened: list[Session] = []

    def open(self, seat: str, concurrency: int = 1) -> Session:
        session = Session(
            self.grid.scripts, self.grid.config, seat=seat, host="here", concurrency=concurrency,
            queues=["bench:other"], runner=self.runner,
        )  # fmt: skip
        session.start()
        self.opened.append(session)
        return session

    def count_leases(self) -> int:
        return int(self.grid.scripts.client.zcard(self.grid.scripts.keys("leases")))


@pytest.fixture
def bench(grid_env: GridEnv) -> Iterator[Bench]:
    config = Settings(
        broker_url=grid_env.url, prefix=grid_env.prefix, profiles=(BENCH,), lease_ms=600, renew_ms=100,
        sweep_ms=100, retry_backoff=0.05,
    )  # fmt: skip
    with LocalGrid(connect(grid_env.url), config, {"m.idle": ["bench:any"]}) as grid:
        bench = Bench(grid)
        yield bench
        for session in bench.opened:
            session.stop(0)


def send(bench: Bench, session: Session, value: Json) -> tuple[str, Callable[[], None]]:
    """Submit a job and have the session send a claim for it. Return the job and the rest."""
    job = bench.grid.client.submit(GRAPH, value)
    rest = session.begin_work()
    wait_for(lambda: bench.count_leases() == 1)
    return job, rest


def get_rows(bench: Bench, job: str) -> list[tuple[str, int, int]]:
    return [(row.worker, row.attempt, row.losses) for row in bench.grid.client.rows(job)]


def test_a_reply_that_is_lost_with_its_connection_is_asked_for_again(bench: Bench) -> None:
    session = bench.open("m.a")
    job, rest = send(bench, session, "x")
    for connection in list(bench.grid.scripts.client.connection_pool._in_use_connections):
        connection.disconnect()
    rest()
    assert bench.grid.client.result(job, timeout=10) == "x"
    assert bench.runner.runs == ["x"]
    assert get_rows(bench, job) == [("m.a", 1, 0)]


def test_a_claim_that_nobody_works_on_comes_back_and_is_not_run_late(bench: Bench) -> None:
    first = bench.open("m.a")
    job, rest = send(bench, first, "x")
    second = bench.open("m.b")
    wait_for(lambda: bench.count_leases() == 0, 10)
    wait_for(lambda: second.work() or bench.grid.client.status(job) is JobState.DONE, 10)
    rest()  # far too late
    assert bench.runner.runs == ["x"]
    assert get_rows(bench, job) == [("m.b", 2, 1)]
    assert not first._slots_at_work
    assert len(first._free_slots) == 1


def test_a_slot_that_begins_late_works_on_what_it_holds_still(bench: Bench) -> None:
    session = bench.open("m.a")
    job, rest = send(bench, session, "x")
    time.sleep(0.4)
    rest()
    assert bench.grid.client.result(job, timeout=10) == "x"
    assert bench.runner.runs == ["x"]
    assert get_rows(bench, job) == [("m.a", 1, 0)]


def test_a_seat_that_leaves_gives_back_what_nobody_worked_on(bench: Bench) -> None:
    first = bench.open("m.a")
    job, _ = send(bench, first, "x")
    first.stop(0)
    second = bench.open("m.b")
    wait_for(lambda: second.work() or bench.grid.client.status(job) is JobState.DONE, 10)
    assert bench.runner.runs == ["x"]
    [(worker, _, losses)] = get_rows(bench, job)
    assert (worker, losses) == ("m.b", 1), "no failure is counted"


def test_many_wake_ups_at_once_claim_no_more_than_there_are_slots(bench: Bench) -> None:
    session = bench.open("m.a", concurrency=3)
    jobs = [bench.grid.client.submit(GRAPH, number) for number in range(20)]
    rests = [session.begin_work() for _ in range(30)]
    wait_for(lambda: bench.count_leases() == 3)
    threads = [threading.Thread(target=rest) for rest in rests]
    for thread in threads:
        thread.start()
    for job in jobs:
        bench.grid.client.result(job, timeout=20)
    for thread in threads:
        thread.join(20)
    assert sorted(bench.runner.runs) == list(range(20))
    assert bench.count_leases() == 0
    assert len(session._free_slots) == 3


def test_a_seat_that_takes_no_work_sends_no_claim(bench: Bench) -> None:
    session = bench.open("m.a")
    session.drain()
    bench.grid.scripts.client.hdel(bench.grid.scripts.keys("seat", "m.a"), "draining")
    assert bench.open("m.b")
    bench.grid.client.submit(GRAPH, "x")
    rest = session.begin_work()
    time.sleep(0.2)
    assert bench.count_leases() == 0
    rest()
    assert len(session._free_slots) == 1


def test_a_server_that_is_away_when_a_wake_up_comes_loses_no_slot(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = bench.open("m.a")
    job = bench.grid.client.submit(GRAPH, "x")
    with monkeypatch.context() as patch:
        patch.setattr(session, "_send_claim", lambda *_: 1 / 0)  # of this seat alone
        rest = session.begin_work()
    rest()
    assert bench.grid.client.result(job, timeout=10) == "x"
    assert len(session._free_slots) == 1
