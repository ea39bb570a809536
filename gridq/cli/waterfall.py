"""Draw a job's stages on one time axis, in text: how long each waited and how long it ran."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gridq.cli.output import format_duration, label_stage

if TYPE_CHECKING:
    from gridq.views.jobs import JobView, StageView

WAIT, RUN, EMPTY = "░", "█", " "
MAX_STAGES = 60
"""The most stages in one drawing; the longest ones are chosen."""

MAX_NAME_COLUMNS = 28
MAX_COLUMNS = 120
"""The width of the drawing where the terminal is wider or has none."""


def draw_waterfall(view: JobView, width: int) -> list[str]:
    """Return the lines of the drawing, at most `width` columns wide; none if no stage has begun to wait."""
    timed = [stage for stage in view.stages if _get_start(stage, view.now) is not None]
    if not timed:
        return []
    shown = sorted(timed, key=_get_length, reverse=True)[:MAX_STAGES]
    shown.sort(key=lambda stage: (_get_start(stage, view.now) or 0.0, view.stages.index(stage)))
    begin = view.submitted or min(_get_start(stage, view.now) or 0.0 for stage in shown)
    end = max([view.ended or view.now, begin + 0.001])
    column = min(max(len(label_stage(stage.path, stage.stage)) for stage in shown), MAX_NAME_COLUMNS)
    cells = max(min(width, MAX_COLUMNS) - column - 12, 10)
    lines = []
    for stage in shown:
        ready = _get_start(stage, view.now) or begin
        bar = draw_bar(ready - begin, stage.wait_ms or 0.0, stage.run_ms or 0.0, end - begin, cells)
        total = (stage.wait_ms or 0.0) + (stage.run_ms or 0.0)
        name = label_stage(stage.path, stage.stage)
        name = name if len(name) <= column else name[: column - 1] + "…"
        lines.append(f"{name:{column}} {bar} {format_duration(total):>9}")
    hidden = len(timed) - len(shown)
    lines.append(f"{'':{column}} 0{format_duration((end - begin) * 1000):>{cells - 1}}")
    lines.append(f"{'':{column}} {WAIT} waits  {RUN} runs")
    if hidden:
        lines.append(f"and {hidden} shorter stages")
    return lines


def draw_bar(offset: float, wait_ms: float, run_ms: float, whole: float, cells: int) -> str:
    """Return one line of `cells` cells: empty, then waiting, then running.

    The stage began to wait `offset` seconds after the start of the axis, which is `whole` seconds long. What
    took any time at all gets a cell.
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
    return (EMPTY * first + WAIT * (run_at - first) + RUN * (last - run_at)).ljust(cells)[:cells]


def _get_start(stage: StageView, now: float) -> float | None:
    """Return when a stage became ready, or None if it did not."""
    wait = (stage.wait_ms or 0.0) / 1000
    if stage.started is not None:
        return stage.started - wait
    return now - wait if stage.wait_ms is not None and stage.run_ms is None else None


def _get_length(stage: StageView) -> float:
    return (stage.wait_ms or 0.0) + (stage.run_ms or 0.0)
