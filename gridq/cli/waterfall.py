"""A job's stages on one time axis, drawn in text: how long each waited, how long it ran."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gridq.cli.output import took

if TYPE_CHECKING:
    from gridq.views.jobs import JobView, StageView

WAIT, RUN, NOTHING = "░", "█", " "
BARS = 60
"""Stages drawn at most: the longest ones."""

NAMES = 28
"""Columns for the names at most."""

WIDTH = 120
"""Columns of the whole drawing at most: a pipe has no width."""


def waterfall(view: JobView, width: int) -> list[str]:
    """The lines of the drawing, none wider than `width` or WIDTH; none where no stage's time is known."""
    from gridq.cli.commands.jobs import named

    timed = [stage for stage in view.stages if _begin(stage, view.now) is not None]
    if not timed:
        return []
    shown = sorted(timed, key=_length, reverse=True)[:BARS]
    shown.sort(key=lambda stage: (_begin(stage, view.now) or 0.0, view.stages.index(stage)))
    begin = view.submitted or min(_begin(stage, view.now) or 0.0 for stage in shown)
    end = max([view.ended or view.now, begin + 0.001])
    column = min(max(len(named(stage)) for stage in shown), NAMES)
    cells = max(min(width, WIDTH) - column - 12, 10)
    lines = []
    for stage in shown:
        ready = _begin(stage, view.now) or begin
        bar = bars(ready - begin, stage.wait_ms or 0.0, stage.run_ms or 0.0, end - begin, cells)
        total = (stage.wait_ms or 0.0) + (stage.run_ms or 0.0)
        name = named(stage)
        name = name if len(name) <= column else name[: column - 1] + "…"
        lines.append(f"{name:{column}} {bar} {took(total):>9}")
    hidden = len(timed) - len(shown)
    lines.append(f"{'':{column}} 0{took((end - begin) * 1000):>{cells - 1}}")
    lines.append(f"{'':{column}} {WAIT} waits  {RUN} runs")
    if hidden:
        lines.append(f"and {hidden} shorter ones")
    return lines


def bars(offset: float, wait_ms: float, run_ms: float, whole: float, cells: int) -> str:
    """One line of `cells` cells: where it began to wait (`offset` s of `whole`), how long it waited and ran.
    What took any time at all gets a cell.
    """
    scale = cells / whole if whole > 0 else 0.0
    first = min(round(offset * scale), cells - 1)
    run_at = min(max(round((offset + wait_ms / 1000) * scale), first), cells - 1)
    last = max(round((offset + (wait_ms + run_ms) / 1000) * scale), run_at)
    if run_ms > 0:
        last = max(last, run_at + 1)
    elif wait_ms > 0:
        run_at = last = max(round((offset + wait_ms / 1000) * scale), first + 1)
    last = min(last, cells)
    return (NOTHING * first + WAIT * (run_at - first) + RUN * (last - run_at)).ljust(cells)[:cells]


def _begin(stage: StageView, now: float) -> float | None:
    """When a stage became ready."""
    wait = (stage.wait_ms or 0.0) / 1000
    if stage.started is not None:
        return stage.started - wait
    return now - wait if stage.wait_ms is not None and stage.run_ms is None else None


def _length(stage: StageView) -> float:
    return (stage.wait_ms or 0.0) + (stage.run_ms or 0.0)
