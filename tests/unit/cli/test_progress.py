"""A job's progress, as it is drawn."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from gridq.cli import progress
from gridq.cli.progress import render_progress, show_lines, show_live, wait_with_progress
from gridq.errors import WaitTimeout
from gridq.protocol.states import JobState, StageState
from gridq.views.jobs import JobReader, JobView, StageView
from tests.conftest import GridEnv
from tests.fakes.bench_profile import BENCH
from tests.local_grid import DEFAULT_SEATS, LocalGrid
from tests.waiting import wait_for


def stage(name: str, **config: Any) -> dict[str, Any]:
    node: dict[str, Any] = {"op": "Stage", "id": name}
    return {**node, "config": config} if config else node


def pipe(*stages: dict[str, Any]) -> dict[str, Any]:
    return {"root": {"op": "Sequential", "stages": list(stages)}}


@pytest.fixture
def grid(grid_env: GridEnv) -> Iterator[LocalGrid]:
    config = grid_env.settings.model_copy(update={"profiles": (BENCH,)})
    with LocalGrid(grid_env.client, config, DEFAULT_SEATS) as started:
        yield started


def test_a_stage_without_a_seat_waits_for_its_queue(grid: LocalGrid) -> None:
    job = grid.client.submit(pipe(stage("bench_echo", slug="rare")), 1, wait_for_seat=True)
    text = draw(JobReader(grid.client.redis, grid.client.keys, job).read(rows=False))
    assert "0/1 step" in text
    assert "bench_echo  waits for bench:rare" in text
    grid.client.cancel(job)


def test_waiting_returns_the_result_and_refreshes(grid: LocalGrid) -> None:
    refreshes = []
    job = grid.client.submit(pipe(stage("bench_sleep", ms=300)), {"ms": 300})
    assert wait_with_progress(grid.client, job, 20, lambda: refreshes.append(1), interval=0.02) == {"ms": 300}
    assert refreshes


def test_a_timeout_names_the_given_time(grid: LocalGrid) -> None:
    job = grid.client.submit(pipe(stage("bench_sleep", ms=60_000)), {})
    wait_for(lambda: grid.client.view(job), true=lambda view: view.find_stages(StageState.RUNNING))
    with pytest.raises(WaitTimeout, match=r"did not end within 0\.1 s") as caught:
        wait_with_progress(grid.client, job, 0.1, lambda: None)
    assert caught.value.reason == "it waits for bench_sleep, which runs on bench@m"
    grid.client.cancel(job)


def test_a_long_wait_is_explained_once(grid: LocalGrid, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "REPORT_AFTER_SECONDS", 0.0)
    job = grid.client.submit(pipe(stage("bench_echo", slug="rare")), 1, wait_for_seat=True)
    with pytest.raises(WaitTimeout), show_lines(grid.client, job) as show:
        wait_with_progress(grid.client, job, 4, show, interval=0.1)
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("waits   ")
    assert line.endswith("for a seat of bench:rare to run bench_echo: no live seat serves it; "
                         "the live seats of bench serve bench:any")  # fmt: skip
    grid.client.cancel(job)


def test_progress_without_a_terminal_is_a_line_per_stage(grid: LocalGrid, capsys: Any) -> None:
    job = grid.client.submit(pipe(stage("bench_echo"), stage("bench_echo")), 1)
    with show_lines(grid.client, job) as show:
        wait_with_progress(grid.client, job, 20, show)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[:5] for line in lines] == [
        ["done", "bench_echo", f"root.stages[{index}]", "on", "m.bench"] for index in (0, 1)
    ]


def test_progress_on_a_terminal_is_erased_afterwards(grid: LocalGrid) -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=60, markup=False)
    job = grid.client.submit(pipe(stage("bench_sleep", ms=300)), {})
    with show_live(grid.client, job, screen) as show:
        wait_with_progress(grid.client, job, 20, show, interval=0.05)
    written = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "bench_sleep  on bench@m" in written
    assert written.rstrip().endswith("\x1b[2K")  # the last thing written erases the lines


def test_progress_in_the_background_draws_nothing_until_it_is_in_front(
    grid: LocalGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The foreground's output is neither overwritten nor erased: `fg` and `bg` change who may draw."""
    in_front = False
    monkeypatch.setattr(progress, "_is_in_foreground", lambda _: in_front)
    screen = Console(file=io.StringIO(), force_terminal=True, width=60, markup=False)
    job = grid.client.submit(pipe(stage("bench_sleep", ms=60_000)), {})
    with show_live(grid.client, job, screen) as show:
        show()
        assert screen.file.getvalue() == ""  # type: ignore[attr-defined]
        in_front = True
        show()
        drawn = screen.file.getvalue()  # type: ignore[attr-defined]
        assert "0/1" in drawn
        in_front = False
        show()
    assert screen.file.getvalue() == drawn  # type: ignore[attr-defined]
    grid.client.cancel(job)


def draw(view: JobView, width: int = 80) -> str:
    screen = Console(file=io.StringIO(), width=width)
    screen.print(render_progress(view, 1.25, width))
    return screen.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_progress_fits_the_width_and_the_maximum_of_stages() -> None:
    stages = [
        StageView(f"root.branches.b{i}", name * 30, "llm:x", StageState.RUNNING, "cpu@m", step=i)
        for i in range(20)
        for name in "ab"
    ]
    lines = draw(JobView("j", JobState.RUNNING, done=5, of=40, stages=stages), 40).splitlines()
    assert max(map(len, lines)) <= 40
    assert len(lines) == 10
    assert lines[-1] == "  and 12 more"


def test_progress_shows_quarantined_stages_first() -> None:
    stages = [StageView(f"root.{i}", f"s{i}", "llm:x", StageState.RUNNING, "cpu@m", step=i) for i in range(9)]
    stages.append(StageView("root.9", "bad", "llm:x", StageState.QUARANTINED, "gpu0@m", step=9))
    lines = draw(JobView("j", JobState.RUNNING, of=10, stages=stages), 60).splitlines()
    assert lines[1] == "  ! bad  in quarantine, last on gpu0@m"
    assert len(lines) == 10
    assert lines[-1] == "  and 2 more"


def test_progress_says_why_nothing_runs() -> None:
    view = JobView("j", JobState.RUNNING, of=1, stages=[StageView("root", "a", "llm:x", StageState.READY)])
    screen = Console(file=io.StringIO(), width=40)
    screen.print(render_progress(view, 9, 40, "a seat of llm:x to run a: no live seat serves it"))
    lines = screen.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert (
        " ".join(" ".join(lines[2:]).split())
        == "It waits for a seat of llm:x to run a: no live seat serves it"
    )
    assert max(map(len, lines)) <= 40
