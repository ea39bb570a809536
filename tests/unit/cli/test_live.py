"""A job's progress, as it is read and as it is drawn."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from gridq.cli import progress as progress_module
from gridq.cli.live import drawn, picture, place_of, told, wait
from gridq.cli.progress import JobView, Progress, StepView
from gridq.errors import WaitTimeout
from gridq.states import JobState, StageState
from tests.conftest import GridEnv
from tests.local_grid import DEFAULT_SEATS, LocalGrid


def stage(name: str, **config: Any) -> dict[str, Any]:
    node: dict[str, Any] = {"op": "Stage", "id": name}
    return {**node, "config": config} if config else node


def pipe(*stages: dict[str, Any]) -> dict[str, Any]:
    return {"root": {"op": "Sequential", "stages": list(stages)}}


@pytest.fixture
def grid(grid_env: GridEnv) -> Iterator[LocalGrid]:
    config = grid_env.settings.model_copy(update={"profiles": ("bench",)})
    with LocalGrid(grid_env.client, config, DEFAULT_SEATS) as started:
        yield started


def until(look: Any, true: Any) -> Any:
    end = time.monotonic() + 20
    while not true(found := look()):
        assert time.monotonic() < end, found
        time.sleep(0.01)
    return found


def test_a_running_job_shows_who_runs_what_and_what_waits(grid: LocalGrid) -> None:
    graph = pipe(stage("format_json"), stage("bench_sleep", ms=60_000), stage("bench_echo", slug="rare"))
    job = grid.client.submit(graph, {"a": 1}, wait_for_seat=True)
    view = until(Progress(grid.client, job).read, lambda view: view.done and view.having(StageState.RUNNING))
    assert view.state is JobState.RUNNING
    assert (view.done, view.of) == (1, 3)
    [step] = view.having(StageState.RUNNING)
    assert (step.path, step.stages, step.seat) == ("root.stages[1]", ("bench_sleep",), "bench@m")
    [last] = view.having(StageState.WAITING)
    assert last.queue == "bench:rare"
    grid.client.cancel(job)


def test_a_stage_without_a_seat_is_shown_as_waiting_for_its_queue(grid: LocalGrid) -> None:
    job = grid.client.submit(pipe(stage("bench_echo", slug="rare")), 1, wait_for_seat=True)
    view = Progress(grid.client, job).read()
    assert [step.queue for step in view.having(StageState.READY)] == ["bench:rare"]
    text = drawing(view)
    assert "0/1 stages" in text
    assert "bench_echo  waits for bench:rare" in text
    grid.client.cancel(job)


def test_the_arm_that_is_not_taken_does_not_count(grid: LocalGrid) -> None:
    branch = {
        "op": "Branch",
        "predicate": stage("equals", to=1),
        "if_true": stage("bench_sleep", ms=60_000),
        "if_false": pipe(stage("bench_echo"), stage("bench_echo"))["root"],
    }
    job = grid.client.submit({"root": branch}, 1)
    view = until(Progress(grid.client, job).read, lambda view: view.done and view.having(StageState.RUNNING))
    assert (view.done, view.of) == (1, 2)
    assert len(view.having(StageState.SKIPPED)) == 2
    grid.client.cancel(job)


def test_an_ended_and_an_unknown_job_have_no_steps(grid: LocalGrid) -> None:
    job = grid.client.submit(pipe(stage("bench_echo")), 1)
    assert grid.client.result(job, 20) == 1
    assert Progress(grid.client, job).read() == JobView(JobState.DONE)
    assert Progress(grid.client, "none").read() == JobView(None)


def test_of_a_large_plan_only_the_counts_are_read(grid: LocalGrid, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "MAX_STEPS", 1)
    job = grid.client.submit(pipe(stage("bench_echo"), stage("bench_sleep", ms=60_000)), {})
    view = until(Progress(grid.client, job).read, lambda view: view.done)
    assert view == JobView(JobState.RUNNING, 1, 2)
    grid.client.cancel(job)


def test_waiting_gives_the_answer_and_looks_meanwhile(grid: LocalGrid) -> None:
    looks = []
    job = grid.client.submit(pipe(stage("bench_sleep", ms=300)), {"ms": 300})
    assert wait(grid.client, job, 20, lambda: looks.append(1), tick=0.02) == {"ms": 300}
    assert looks


def test_waiting_too_long_names_the_time_that_was_given(grid: LocalGrid) -> None:
    job = grid.client.submit(pipe(stage("bench_sleep", ms=60_000)), {})
    with pytest.raises(WaitTimeout, match=r"not finished within 0\.1 s"):
        wait(grid.client, job, 0.1, lambda: None)
    grid.client.cancel(job)


def test_progress_elsewhere_is_a_line_for_each_stage(grid: LocalGrid, capsys: Any) -> None:
    job = grid.client.submit(pipe(stage("bench_echo"), stage("bench_echo")), 1)
    with told(grid.client, job) as show:
        wait(grid.client, job, 20, show)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[:5] for line in lines] == [
        ["done", "bench_echo", f"root.stages[{index}]", "on", "m.bench"] for index in (0, 1)
    ]


def test_progress_on_a_terminal_is_gone_afterwards(grid: LocalGrid) -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=60, markup=False)
    job = grid.client.submit(pipe(stage("bench_sleep", ms=300)), {})
    with drawn(grid.client, job, screen) as show:
        wait(grid.client, job, 20, show, tick=0.05)
    written = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "bench_sleep  on bench@m" in written
    assert written.rstrip().endswith("\x1b[2K")  # the last thing written erases the lines


def drawing(view: JobView, width: int = 80) -> str:
    screen = Console(file=io.StringIO(), width=width)
    screen.print(picture(view, 1.25, width))
    return screen.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_a_picture_fits_the_width_and_names_no_more_than_it_can() -> None:
    steps = [
        StepView(f"root.branches.b{i}", ("a" * 30, "b" * 30), "llm:x", StageState.RUNNING, "cpu@m")
        for i in range(20)
    ]
    lines = drawing(JobView(JobState.RUNNING, 5, 40, steps), 40).splitlines()
    assert max(map(len, lines)) <= 40
    assert len(lines) == 10
    assert lines[-1] == "  and 12 more"


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("root", ""),
        ("root.stages[2].target", ""),
        ("root.bindings.a.stages[0]", "a"),
        ("root.body.branches.summary.stages[1].stage", "summary"),
        ("root.bindings.a.branches.b", "b"),
    ],
)
def test_a_stages_place_is_the_nearest_name(path: str, place: str) -> None:
    assert place_of(path) == place
