"""A job's stages on one time axis."""

from __future__ import annotations

import pytest

from gridq.cli import waterfall as module
from gridq.cli.waterfall import draw_bar, draw_waterfall
from gridq.protocol.states import JobState, StageState
from gridq.views.jobs import JobView, StageView


@pytest.mark.parametrize(
    ("offset", "wait_ms", "run_ms", "line"),
    [
        (0, 0, 10_000, "██████████"),
        (0, 5_000, 5_000, "░░░░░█████"),
        (2, 3_000, 1_000, "  ░░░█    "),
        (3, 0, 1, "   █      "),  # what took any time is seen
        (3, 1, 0, "   ░      "),
        (9.99, 0, 5, "         █"),
        (0, 10_000, 0, "░░░░░░░░░░"),
    ],
)
def test_bar_shows_wait_and_run_time(offset: float, wait_ms: float, run_ms: float, line: str) -> None:
    assert draw_bar(offset, wait_ms, run_ms, 10, 10) == line


def view(*stages: StageView) -> JobView:
    return JobView("j", JobState.DONE, submitted=100, ended=110, now=200, stages=list(stages))


def stage(name: str, started: float, run_ms: float, wait_ms: float = 0.0) -> StageView:
    return StageView("root", name, "q", StageState.DONE, started=started, run_ms=run_ms, wait_ms=wait_ms)


def test_stages_are_ordered_by_the_time_they_became_ready() -> None:
    lines = draw_waterfall(
        view(stage("late", 105, 5000), stage("early", 103, 2000, 2900), stage("first", 100, 9)), 60
    )
    assert [line.split()[0] for line in lines] == ["first", "early", "late", "0", "░"]
    assert lines[1].count("░") > lines[1].count("█") > 0
    assert lines[3].split() == ["0", "10.0", "s"]
    assert max(map(len, lines)) <= 60


def test_the_drawing_has_a_maximum_width() -> None:
    lines = draw_waterfall(view(stage("one", 100, 9000)), 10_000)
    assert module.MAX_COLUMNS - 2 <= max(map(len, lines)) <= module.MAX_COLUMNS


def test_a_waiting_stage_is_drawn_up_to_now() -> None:
    waiting = StageView("root", "waits", "q", StageState.READY, wait_ms=4000)
    running = JobView(
        "j", JobState.RUNNING, submitted=100, now=104,
        stages=[waiting, StageView("root", "later", "q")],
    )  # fmt: skip
    [line, *_] = draw_waterfall(running, 50)
    assert line.startswith("waits ░░░")
    assert not draw_waterfall(view(StageView("root", "later", "q")), 50)


def test_only_the_longest_stages_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_STAGES", 2)
    lines = draw_waterfall(view(*(stage(f"s{n}", 100 + n, 100 * (n + 1)) for n in range(5))), 60)
    assert [line.split()[0] for line in lines] == ["s3", "s4", "0", "░", "and"]
    assert lines[-1] == "and 3 shorter stages"
