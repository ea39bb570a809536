"""Time limits that pass: of the job, or of the stage, before or after its result."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from redis.exceptions import ConnectionError

from gridq.errors import SeatUnavailable
from gridq.execution.attempt import Attempt
from gridq.execution.session import Session
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json, StageCall
from gridq.protocol.states import JobState
from gridq.store.replies import Claim
from tests.builders import stage
from tests.conftest import GridEnv
from tests.fakes.bench_profile import BENCH
from tests.local_grid import BenchRunner, LocalGrid
from tests.waiting import wait_for

ECHO: Json = {"root": stage("bench_echo")}


class Doing(BenchRunner):
    """Runs `act` instead of every stage."""

    act: Callable[[StageContext], Json]

    def __call__(self, stage: StageCall, value: Json, context: StageContext) -> Json:
        return self.act(context)


@pytest.fixture
def grid(grid_env: GridEnv) -> LocalGrid:
    """A grid that only the test sweeps and renews."""
    config = grid_env.settings.model_copy(update={"profiles": (BENCH,)})
    made = LocalGrid(grid_env.client, config, {"m.a": ["bench:any"]}, concurrency=1, runner=Doing())
    made.sessions["m.a"].register()
    return made


def running(session: Session) -> Attempt:
    (attempt,) = session._running.values()
    return attempt


def run_out_of_time(session: Session) -> None:
    """End the time of the running attempt, and its grace period."""
    attempt = running(session)
    attempt.deadline = time.monotonic() - 1
    session.check_running()
    if attempt._cancelled_at is not None:
        attempt._cancelled_at = 0
    session.check_running()


def test_the_next_sweep_expires_a_job_past_its_deadline(grid: LocalGrid) -> None:
    session = grid.sessions["m.a"]

    def act(context: StageContext) -> Json:
        running(session).deadline = time.monotonic() - 1
        session.check_running()
        assert context.cancelled.wait(10)
        context.check()
        return None

    session.runner.act = act  # type: ignore[attr-defined]
    job = grid.client.submit(ECHO, 1, deadline=0.3)
    session.work()
    assert grid.client.status(job) is JobState.RUNNING, "the stage did not fail"
    wait_for(lambda: grid.sweeper.sweep() and grid.client.status(job) is JobState.EXPIRED)


def test_a_result_made_in_time_counts_when_recorded_late(
    grid: LocalGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = grid.sessions["m.a"]
    session.runner.act = lambda context: "made"  # type: ignore[attr-defined]
    complete = session.scripts.complete
    calls = []

    def away(*args: object, **more: object) -> tuple[int, str, Claim | str]:
        calls.append(args)
        if len(calls) == 1:
            run_out_of_time(session)
            raise ConnectionError("away")
        return complete(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(session.scripts, "complete", away)
    job = grid.client.submit(ECHO, 1)
    session.work()
    assert grid.client.result(job, 1) == "made"


def test_a_stage_knows_its_attempt(grid: LocalGrid) -> None:
    session = grid.sessions["m.a"]

    def act(context: StageContext) -> Json:
        if context.attempt == 1:
            raise SeatUnavailable("not now", {"retry_after": 0})
        return context.attempt

    session.runner.act = act  # type: ignore[attr-defined]
    job = grid.client.submit(ECHO, 1)

    def ended() -> bool:
        session.work()
        grid.sweeper.sweep()
        return grid.client.status(job) is JobState.DONE

    wait_for(ended)
    assert grid.client.result(job, 1) == 2


def test_a_stream_that_flows_ends_with_its_job(grid: LocalGrid) -> None:
    session = grid.sessions["m.a"]
    session.config = session.config.model_copy(update={"stage_timeout": 60.0})

    def act(context: StageContext) -> Json:
        context.emit("so")
        assert context.deadline is not None
        assert context.deadline < time.monotonic() + 5
        return None

    session.runner.act = act  # type: ignore[attr-defined]
    job = grid.client.submit(ECHO, 1, stream=True, deadline=2.0)
    session.work()
    assert grid.client.status(job) is JobState.DONE
