"""Quarantine of stages that kill their child process: its effect on jobs, release and drop."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import pytest
from typer.testing import CliRunner

from gridq import cli
from gridq.errors import ChildDied, JobNotFound, NotQuarantined, StageQuarantined
from gridq.profiles.profile import StageContext
from gridq.protocol import queue_names
from gridq.protocol.models import Json, StageCall
from gridq.protocol.states import JobState, StageState
from gridq.views import jobs as history
from gridq.views.quarantine import Quarantined
from gridq.views.wait_reasons import explain_wait
from tests.builders import parallel, retry, seq, stage
from tests.conftest import GridEnv
from tests.fakes.bench_profile import BENCH
from tests.local_grid import BenchRunner, LocalGrid
from tests.waiting import wait_for

T = TypeVar("T")

POISON = parallel(bad=stage("bench_die"), good=stage("bench_echo"))
SEATS: dict[str, Sequence[str]] = {
    "m.router": [queue_names.PURE], "m.a": ["bench:any"], "m.b": ["bench:any"], "m.c": ["bench:any"],
}  # fmt: skip


class Deadly(BenchRunner):
    """Fails the first `deaths` runs of `bench_die` as if its child had died."""

    def __init__(self) -> None:
        super().__init__()
        self.deaths = 1_000_000
        self.died: list[str] = []

    def __call__(self, call: StageCall, value: Json, context: StageContext) -> Json:
        if call.implementation != "bench:die":
            return super().__call__(call, value, context)
        if len(self.died) < self.deaths:
            self.died.append(call.path)
            raise ChildDied("The stage's child process ended with 3", {"path": call.path})
        return "alive"


@pytest.fixture
def runner() -> Deadly:
    return Deadly()


@pytest.fixture
def grid(grid_env: GridEnv, runner: Deadly) -> Iterator[LocalGrid]:
    config = grid_env.settings.model_copy(update={"profiles": (BENCH,), "sweep_ms": 50})
    with LocalGrid(grid_env.client, config, SEATS, runner=runner) as started:
        yield started


def quarantined(grid: LocalGrid) -> Quarantined:
    [found] = wait_for(grid.client.quarantined)
    return found


def run_json(*arguments: str) -> Any:
    done = CliRunner().invoke(cli.app, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_deadly_stage_is_quarantined_after_two_deaths(grid: LocalGrid, runner: Deadly) -> None:
    job = grid.client.submit({"root": POISON}, 1, name="briefing")
    found = quarantined(grid)
    assert (found.job, found.name, found.path, found.stage) == (
        job,
        "briefing",
        "root.branches.bad",
        "bench_die",
    )
    assert (found.queue, found.attempts, found.deaths) == ("bench:any", 2, 2)
    assert re.fullmatch(r"[abc]@m|m\.[abc]", found.worker)
    assert "ended with 3" in found.reason
    view = wait_for(lambda: grid.client.view(job), true=lambda view: view.done == 1)
    assert view.state is JobState.RUNNING
    [aside] = view.find_stages(StageState.QUARANTINED)
    assert (aside.path, aside.attempts, aside.deaths, aside.losses) == ("root.branches.bad", 2, 2, 0)
    assert aside.until == pytest.approx(found.until)
    words = explain_wait(grid.client.redis, grid.client.keys, view)
    assert re.match(
        rf"an operator: stage bench_die killed the process that ran it twice, most recently on worker "
        rf"{re.escape(found.worker)}; release or drop it before \d\d:\d\d", words,
    )  # fmt: skip
    assert len(runner.died) == 2
    assert grid.client.cancel(job)
    assert grid.client.quarantined() == []


def test_deadly_stages_of_one_agent_put_no_seat_into_cooldown(grid: LocalGrid) -> None:
    for number in range(1, 7):
        grid.client.submit({"root": stage("bench_die")}, 1)
        wait_for(lambda number=number: len(grid.client.quarantined()) == number)
    assert all(not session.breaker.opened for session in grid.sessions.values())


def test_a_released_stage_runs_again(grid: LocalGrid, runner: Deadly) -> None:
    job = grid.client.submit({"root": POISON}, 1)
    quarantined(grid)
    runner.deaths = 2
    assert grid.client.release(job, "root.branches.bad", "ann")
    assert grid.client.result(job, 20) == {"bad": "alive", "good": 1}
    row = next(
        row for row in grid.client.rows(job) if row.path == "root.branches.bad" and row.state == "done"
    )
    assert (row.attempt, row.deaths) == (3, 0)
    with pytest.raises(NotQuarantined, match="the job is done"):
        grid.client.release(job, "root.branches.bad")


def test_a_dropped_stage_fails_its_job(grid: LocalGrid, runner: Deadly) -> None:
    job = grid.client.submit({"root": retry(POISON, 5)}, 1)
    found = quarantined(grid)
    assert grid.client.drop(job, found.step, "ann@desk")
    with pytest.raises(StageQuarantined) as caught:
        grid.client.result(job, 20)
    details = caught.value.details
    counted = {name: details.get(name) for name in ("attempts", "deaths", "losses", "failures")}
    assert counted == {"attempts": 2, "deaths": 2, "losses": None, "failures": None}
    assert (details["path"], details["dropped_by"]) == ("root.stage.branches.bad", "ann@desk")
    assert details["worker"] == found.worker
    assert len(runner.died) == 2
    [failed] = grid.client.view(job).find_stages(StageState.FAILED)
    assert (failed.attempts, failed.deaths) == (2, 2)
    assert not grid.client.drop(job, found.step)
    assert not grid.client.drop(job, found.path)
    with pytest.raises(NotQuarantined, match="the job is failed"):
        grid.client.drop(job, found.step + 1)


def test_only_quarantined_stages_can_be_released(grid: LocalGrid) -> None:
    with pytest.raises(JobNotFound):
        grid.client.release("nope", 0)
    waits = grid.client.submit({"root": stage("bench_echo", slug="rare")}, 1, wait_for_seat=True)
    with pytest.raises(NotQuarantined, match="it is ready"):
        grid.client.drop(waits, "root")
    with pytest.raises(NotQuarantined, match="no such stage"):
        grid.client.release(waits, "root.else")
    bad = grid.client.submit({"root": POISON}, 1)
    quarantined(grid)
    with pytest.raises(NotQuarantined) as caught:
        grid.client.release(bad, "root.branches.good")
    assert caught.value.expected == "one of root.branches.bad"
    for job in (waits, bad):
        grid.client.cancel(job)


def test_a_stage_of_a_plan_too_large_to_read_can_be_released(
    grid: LocalGrid, runner: Deadly, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MAX_STEPS", 1)
    job = grid.client.submit({"root": POISON}, 1)
    quarantined(grid)
    with pytest.raises(NotQuarantined, match="no such stage, or is too large"):
        grid.client.release(job, "root.branches.good")
    runner.deaths = 2
    assert grid.client.release(job, "root.branches.bad")
    assert grid.client.result(job, 20) == {"bad": "alive", "good": 1}


def test_a_quarantined_stage_fails_when_its_time_is_over(grid_env: GridEnv, runner: Deadly) -> None:
    update = {"profiles": (BENCH,), "sweep_ms": 50, "quarantine": 0.2}
    config = grid_env.settings.model_copy(update=update)
    seats = LocalGrid(grid_env.client, config, SEATS, runner=runner)
    with seats as grid, pytest.raises(StageQuarantined, match="twice"):
        grid.client.run({"root": retry(POISON, 5)}, 1, timeout=20)
    assert len(runner.died) == 2


def test_later_stages_run_after_a_release(grid: LocalGrid, runner: Deadly) -> None:
    runner.deaths = 2
    job = grid.client.submit({"root": seq(stage("bench_die"), stage("bench_echo"))}, 1)
    quarantined(grid)
    assert grid.client.release(job, 0)
    assert grid.client.result(job, 20) == "alive"


def test_the_command_shows_releases_and_drops(grid: LocalGrid, runner: Deadly) -> None:
    assert run_json("quarantine") == []
    jobs = [grid.client.submit({"root": POISON}, n) for n in range(2)]
    wait_for(grid.client.quarantined, true=lambda found: len(found) == 2)
    shown = CliRunner().invoke(cli.app, ["quarantine"], env={"COLUMNS": "300"})
    assert all(job in shown.stdout for job in jobs)
    assert "root.branches.bad" in shown.stdout
    assert {each["job"] for each in run_json("quarantine")} == set(jobs)
    assert "quarantined" in CliRunner().invoke(cli.app, ["job", jobs[0]], env={"COLUMNS": "300"}).stdout
    runner.deaths = 0
    one = {"job": jobs[0], "stage": "root.branches.bad"}
    beginning = [jobs[0][:8], "root.branches.bad"]
    before = CliRunner().invoke(cli.app, ["quarantine", "--json", "release", *beginning])
    assert json.loads(before.stdout) == {**one, "outcome": "released", "before": False}
    assert grid.client.result(jobs[0], 20)
    other = {"job": jobs[1], "stage": "root.branches.bad", "outcome": "dropped"}
    assert run_json("quarantine", "drop", jobs[1], "root.branches.bad") == {**other, "before": False}
    assert run_json("quarantine", "drop", jobs[1], "root.branches.bad") == {**other, "before": True}
    shown = CliRunner().invoke(cli.app, ["job", jobs[1]], env={"COLUMNS": "300"})
    assert "2 (2 died)" in shown.stdout
    assert "after     2 attempts, 2 deaths" in shown.stdout
    for arguments, code in ((("release", "nope", "0"), 5), (("release", jobs[1], "root.branches.bad"), 2)):
        done = CliRunner().invoke(cli.app, ["quarantine", *arguments, "--json"])
        assert done.exit_code == code
        assert json.loads(done.stdout)["error"]["code"] in ("job.not_found", "stage.not_quarantined")
