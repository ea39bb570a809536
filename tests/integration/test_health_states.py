"""Seats with an open circuit breaker: state, cooldown and recovery."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from gridq.config.settings import Settings
from gridq.errors import NoLiveSeat, SeatDegraded, SeatError
from gridq.execution.session import Session
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json, StageCall
from gridq.protocol.seat_states import UNHEALTHY
from gridq.seats.registry import LiveSeat
from gridq.store.connection import connect
from gridq.store.scripts import Scripts
from tests.conftest import GridEnv
from tests.fakes.bench_profile import BENCH
from tests.local_grid import BenchRunner, LocalGrid
from tests.waiting import wait_for
from workers.process.heartbeat import Heartbeat

pytestmark = pytest.mark.usefixtures("key_hygiene")

ECHO = {"root": {"op": "Stage", "id": "bench_echo"}}


class FailureReporter:
    """A seat whose failures a test reports, and its heartbeat."""

    def __init__(self, env: GridEnv) -> None:
        scripts = Scripts(env.client, env.settings)
        self.session = Session(
            scripts,
            env.settings,
            seat="m.a",
            host="h",
            concurrency=4,
            queues=["bench:any"],
            runner=BenchRunner(),
        )
        self.beat = Heartbeat(
            env.client, env.settings, self.session, machine="m", kind="bench", capability={}
        )
        self.session.register()

    def report(self, error: SeatError) -> tuple[str, float] | None:
        """Report a failure; return the state after it and its cooldown in seconds, rounded to ten."""
        before = time.time()
        self.session.report_seat_failure(error)
        ad = self.beat.build_advertisement()
        return None if ad.until is None else (ad.state, round(ad.until - before, -1))


@pytest.fixture
def reporter(grid_env: GridEnv) -> FailureReporter:
    return FailureReporter(grid_env)


def refused(state: str = "", **details: Json) -> SeatDegraded:
    return SeatDegraded("It was refused", {"state": state, **details} if state else details)


@pytest.mark.parametrize(
    ("cause", "state"),
    [
        ("logged out", "logged_out"),
        ("login expired", "login_expired"),
        ("key refused", "key_refused"),
        ("no credit", "no_credit"),
        ("rate limited", "rate_limited"),
        ("broken install", "broken_install"),
        ("overloaded", "overloaded"),
        ("", "degraded"),
        ("of its own kind", "degraded"),
    ],
)
def test_each_cause_is_a_state_of_its_own(reporter: FailureReporter, cause: str, state: str) -> None:
    before = time.time()
    assert reporter.report(refused(cause)) == (state, 60)
    ad = reporter.beat.build_advertisement()
    assert (ad.reason, before <= ad.since <= time.time()) == ("It was refused", True)


def test_a_stated_retry_after_is_the_cooldown(reporter: FailureReporter) -> None:
    assert reporter.report(refused("rate limited", retry_after=600)) == ("rate_limited", 600)


class Login:
    """Fails until it is logged in, and counts running stages."""

    def __init__(self) -> None:
        self.logged_in = False
        self.go_on = threading.Event()
        self.running = 0
        self.calls = 0
        self._lock = threading.Lock()

    def __call__(self, stage: StageCall, value: Json, context: StageContext) -> Json:
        with self._lock:
            self.calls += 1
            self.running += 1
        try:
            if not self.logged_in:
                raise refused("logged out", retry_after=0.3)
            self.go_on.wait(30)
            return value
        finally:
            with self._lock:
                self.running -= 1


class LoggedOutGrid:
    """A grid of one seat of three slots, whose login has expired."""

    def __init__(self, grid: LocalGrid, login: Login) -> None:
        self.client = grid.client
        self.login = login
        session = grid.sessions["m.bench"]
        beat = Heartbeat(grid.scripts.client, grid.config, session, machine="m", kind="bench", capability={})
        session.on_change = beat.beat
        beat.beat()

    def seat(self) -> LiveSeat:
        [seat] = [seat for seat in self.client.workers() if seat.seat == "m.bench"]
        return seat


@pytest.fixture
def grid(grid_env: GridEnv) -> Iterator[LoggedOutGrid]:
    config = Settings(
        broker_url=grid_env.url, prefix=grid_env.prefix, profiles=(BENCH,), retry_backoff=0.05,
        renew_ms=100, max_attempts=100,
    )  # fmt: skip
    login = Login()
    seats: dict[str, Sequence[str]] = {"m.bench": ["bench:any"]}
    with LocalGrid(connect(grid_env.url), config, seats, concurrency=3, runner=login) as local_grid:
        try:
            yield LoggedOutGrid(local_grid, login)
        finally:
            login.go_on.set()


def test_a_half_open_seat_runs_one_stage_at_a_time(grid: LoggedOutGrid) -> None:
    jobs = [grid.client.submit(ECHO, number, wait_for_seat=True) for number in range(6)]
    wait_for(grid.seat, true=lambda seat: seat.state == "logged_out")
    with pytest.raises(NoLiveSeat, match="is logged_out: It was refused"):
        grid.client.submit(ECHO, 9, queue_timeout=0.1)
    grid.login.logged_in = True
    wait_for(lambda: grid.login.running)
    seat = grid.seat()
    assert (seat.state, seat.concurrency) == ("ready", 1)
    assert seat.reason == "recovering, one stage at a time, after: It was refused"
    assert not grid.client.wait(jobs[5], 0.7)  # several renewals, and each slot has polled
    assert grid.login.running == 1
    grid.login.go_on.set()
    assert sorted(grid.client.result(job, 20) for job in jobs) == [0, 1, 2, 3, 4, 5]
    wait_for(grid.seat, true=lambda seat: (seat.state, seat.concurrency, seat.reason) == ("ready", 3, ""))


def test_a_failing_seat_is_called_once_a_cooldown(grid: LoggedOutGrid) -> None:
    """Three slots fail at once; then each trial is one call, although many stages wait."""
    jobs = [grid.client.submit(ECHO, number, wait_for_seat=True) for number in range(12)]
    falls = grid.login
    wait_for(lambda: falls.calls >= 5)
    began, before = time.monotonic(), falls.calls
    grid.client.wait(jobs[0], 1.0)
    assert falls.calls - before <= (time.monotonic() - began) / 0.3 + 1
    assert UNHEALTHY[0] == "logged_out"
    for job in jobs:
        grid.client.cancel(job)
