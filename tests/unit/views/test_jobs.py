"""A job as it is seen from outside, on a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TypeVar

import pytest

from gridq.errors import AttemptsExhausted, ConfigError, GridError, JobNotFound
from gridq.protocol.states import JobState, StageState
from gridq.submission.inbox import Inbox
from gridq.views import job_list, jobs
from gridq.views.jobs import JobView, StageView, group_by_step
from tests.builders import branch, parallel, seq, stage
from tests.conftest import GridEnv
from tests.fakes.bench_profile import BENCH
from tests.local_grid import DEFAULT_SEATS, LocalGrid
from tests.waiting import wait_for

T = TypeVar("T")
LONG = 60_000


@pytest.fixture
def grid(grid_env: GridEnv) -> Iterator[LocalGrid]:
    config = grid_env.settings.model_copy(update={"profiles": (BENCH,)})
    with LocalGrid(grid_env.client, config, DEFAULT_SEATS) as started:
        yield started


def one(view: JobView, state: StageState) -> StageView:
    [found] = view.find_stages(state)
    return found


def counts_in_the_list(grid: LocalGrid, job: str) -> tuple[int, int]:
    """Return the steps of the job that have ended, and all of them, as the list of jobs has them."""
    [summary] = [each for each in grid.client.jobs() if each.job == job]
    return summary.steps - summary.left, summary.steps


def test_a_running_job_shows_its_running_and_waiting_stages(grid: LocalGrid) -> None:
    root = seq(stage("format_json"), stage("bench_sleep", ms=LONG), stage("bench_echo", slug="rare"))
    job = grid.client.submit({"root": root}, {"a": 1}, wait_for_seat=True)
    view = wait_for(
        lambda: grid.client.view(job), true=lambda view: view.done and view.find_stages(StageState.RUNNING)
    )
    assert (view.state, view.done, view.of, view.agent) == (JobState.RUNNING, 1, 3, "default")
    assert view.submitted <= view.now < (view.deadline or 0)
    running = one(view, StageState.RUNNING)
    assert (running.path, running.stage, running.seat) == ("root.stages[1]", "bench_sleep", "bench@m")
    assert one(view, StageState.WAITING).queue == "bench:rare"
    assert one(view, StageState.DONE).run_ms is not None
    assert json.loads(json.dumps(view.to_json()))["stages"][1]["state"] == "running"
    grid.client.cancel(job)


def test_adjacent_pure_stages_are_one_step(grid: LocalGrid) -> None:
    root = seq(stage("format_json"), stage("parse_json"), stage("bench_echo", slug="rare"))
    job = grid.client.submit({"root": root}, {"a": 1}, wait_for_seat=True)
    view = grid.client.view(job)
    assert [[stage.stage for stage in step] for step in group_by_step(view.stages)] == [
        ["format_json", "parse_json"],
        ["bench_echo"],
    ]
    grid.client.cancel(job)


def test_a_skipped_arm_has_ended(grid: LocalGrid) -> None:
    root = branch(
        stage("equals", to=1), stage("bench_sleep", ms=LONG), seq(stage("bench_echo"), stage("bench_echo"))
    )
    job = grid.client.submit({"root": root}, 1)
    view = wait_for(
        lambda: grid.client.view(job), true=lambda view: view.done and view.find_stages(StageState.RUNNING)
    )
    assert (view.done, view.of) == (3, 5)
    assert len(view.find_stages(StageState.SKIPPED)) == 2
    assert counts_in_the_list(grid, job) == (3, 5)
    grid.client.cancel(job)


def test_a_done_job_shows_usage_and_times(grid: LocalGrid) -> None:
    root = parallel(a=stage("bench_spend", tokens_in=3, tokens_out=2, micro_dollars=5), b=stage("bench_echo"))
    job = grid.client.submit({"root": root}, {}, name="a name")
    grid.client.result(job, 20)
    view = grid.client.view(job)
    assert (view.state, view.name, view.done, view.of, view.error) == (JobState.DONE, "a name", 3, 3, None)
    assert counts_in_the_list(grid, job) == (3, 3)  # two stages, and the step that joins them
    spent = next(stage for stage in view.stages if stage.stage == "bench_spend")
    assert (spent.seat, spent.tokens_in, spent.tokens_out, spent.micro_dollars) == ("m.bench", 3, 2, 5)
    assert spent.started is not None
    assert view.submitted <= spent.started <= (view.ended or 0)


def test_a_failed_job_keeps_its_error_and_finished_stages(grid: LocalGrid) -> None:
    root = seq(stage("bench_echo"), stage("bench_fail"), stage("bench_echo"))
    job = grid.client.submit({"root": root}, {"message": "out of milk"})
    with pytest.raises(GridError):
        grid.client.result(job, 20)
    view = grid.client.view(job)
    assert [stage.state for stage in view.stages] == [StageState.DONE, StageState.FAILED]
    assert view.error is not None
    assert view.error["message"] == "out of milk"
    assert (view.done, view.of) == counts_in_the_list(grid, job) == (1, 3)


def test_a_failed_job_still_shows_how_its_attempts_ended(grid: LocalGrid) -> None:
    job = grid.client.submit({"root": seq(stage("bench_echo"), stage("bench_seat_fail"))}, {"times": 9})
    with pytest.raises(AttemptsExhausted) as caught:
        grid.client.result(job, 20)
    counted = {name: caught.value.details.get(name) for name in ("attempts", "failures", "losses")}
    assert counted == {"attempts": 3, "failures": 3, "losses": None}
    view = grid.client.view(job)
    failed = one(view, StageState.FAILED)
    assert (failed.attempts, failed.failures, failed.losses, failed.deaths) == (3, 3, 0, 0)
    assert [row.failures for row in view.rows if row.state == "failed"] == [0, 1, 2]


def test_a_job_in_the_inbox_is_queued(grid: LocalGrid) -> None:
    Inbox(grid.scripts, grid.config).enqueue("waits", {"root": stage("bench_echo")}, 1, priority="batch")
    view = grid.client.view("waits")
    assert (view.state, view.priority, view.stages) == (JobState.QUEUED, "batch", [])
    [summary] = grid.client.jobs()
    assert (summary.job, summary.state, summary.priority) == ("waits", JobState.QUEUED, "batch")


def test_an_unknown_job_is_not_found(grid: LocalGrid) -> None:
    with pytest.raises(JobNotFound):
        grid.client.view("none")


def test_a_large_plan_shows_only_counts(grid: LocalGrid, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MAX_STEPS", 1)
    job = grid.client.submit({"root": seq(stage("bench_echo"), stage("bench_sleep", ms=LONG))}, {})
    view = wait_for(lambda: grid.client.view(job), true=lambda view: view.done)
    assert (view.state, view.done, view.of, view.stages) == (JobState.RUNNING, 1, 2, [])
    grid.client.cancel(job)


def test_jobs_are_listed_the_latest_first_and_by_state(
    grid: LocalGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_list, "PAGE_SIZE", 2)
    first, second = (grid.client.submit({"root": stage("bench_echo")}, n, name=f"n{n}") for n in (1, 2))
    for job in (first, second):
        grid.client.result(job, 20)
    third = grid.client.submit({"root": stage("bench_echo", slug="rare")}, 3, wait_for_seat=True)
    found = grid.client.jobs()
    assert {summary.job for summary in found} == {first, second, third}
    assert [s.submitted for s in found] == sorted((s.submitted for s in found), reverse=True)
    assert [s.name for s in grid.client.jobs(state="done") if s.job == first] == ["n1"]
    [running] = grid.client.jobs(state=JobState.RUNNING)
    assert (running.job, running.name, running.steps, running.left) == (third, "bench_echo", 1, 1)
    assert len(grid.client.jobs(1)) == 1
    with pytest.raises(ConfigError, match="no state 'runing'"):
        grid.client.jobs(state="runing")
    grid.client.cancel(third)
