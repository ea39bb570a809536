"""A job's progress on stderr: drawn again in place on a terminal, line by line elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from gridq.cli.output import console
from gridq.cli.progress import JobView, Progress, StepView
from gridq.errors import BrokerError, WaitTimeout
from gridq.states import StageState

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from gridq.client import Client
    from gridq.protocol import Json, Row

TICK = 0.15
PLAIN_TICK = 0.5
LINES = 8
"""Stages shown at once."""


class Show(Protocol):
    """Takes the job as it stands now."""

    def __call__(self) -> None: ...


def wait(client: Client, job: str, timeout: float | None, show: Show, tick: float = TICK) -> Json:
    """`client.result`, with a look at the job each `tick` seconds."""
    until = None if timeout is None else time.monotonic() + timeout
    while True:
        left = tick if until is None else min(tick, until - time.monotonic())
        try:
            return client.result(job, max(left, 0))
        except WaitTimeout:
            if until is not None and time.monotonic() >= until:
                raise WaitTimeout(
                    f"The job {job} was not finished within {timeout:g} s",
                    {"fix": "wait longer (--timeout); the job goes on"},
                ) from None
        show()


@contextmanager
def drawn(client: Client, job: str, on: Console | None = None) -> Iterator[Show]:
    """Progress on a terminal; it is gone after the block."""
    from rich.live import Live

    on = on or console(err=True)
    progress = Progress(client, job)
    since = time.monotonic()
    with Live(console=on, auto_refresh=False, transient=True) as live:

        def show() -> None:
            live.update(picture(progress.read(), time.monotonic() - since, on.width), refresh=True)

        yield show


@contextmanager
def told(client: Client, job: str) -> Iterator[Show]:
    """Progress as one line on stderr for each stage that was recorded."""
    out = console(err=True)
    seen = 0

    def show() -> None:
        nonlocal seen
        rows = client.rows(job)
        for row in rows[seen:]:
            out.print(line_of(row), soft_wrap=True)
        seen = len(rows)

    try:
        yield show
    finally:
        with suppress(BrokerError):  # it would hide why the block ended
            show()


def line_of(row: Row) -> str:
    """`done  llm_chat  root.stages[2]  on cpu@machine  320 ms`, and which attempt, unless the first."""
    again = f"  attempt {row.attempt}" if row.attempt > 1 else ""
    return f"{row.state:6}  {row.stage}  {row.path}  on {row.worker}  {row.run_ms:.0f} ms{again}"


def picture(job: JobView, seconds: float, width: int) -> RenderableType:
    """The job in a few lines, none wider than `width`: the counts, what runs where, what waits for whom."""
    from rich.text import Text

    running, ready = job.having(StageState.RUNNING), job.having(StageState.READY)
    head = f"{job.done}/{job.of} stages" if job.of else str(job.state or "ended")
    lines = [Text(f"{_bar(job.done, job.of)}{head}  {seconds:.1f} s", style="bold")]
    for step in (running + ready)[:LINES]:
        runs = step.state is StageState.RUNNING
        where = f"on {step.seat}" if runs else f"waits for {step.queue}"
        lines.append(Text(f"  {'▶' if runs else '·'} {where_in(step)}  {where}", style="" if runs else "dim"))
    hidden = len(running) + len(ready) - LINES
    if hidden > 0:
        lines.append(Text(f"  and {hidden} more", style="dim"))
    if job.of and not running and not ready:
        lines.append(Text("  · between two stages", style="dim"))
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return Text("\n").join(lines)


def where_in(step: StepView) -> str:
    """`summary: text_template + llm_chat`."""
    names = list(step.stages)
    shown = " + ".join(names if len(names) < 4 else [*names[:2], "…", names[-1]])
    place = place_of(step.path)
    return f"{place}: {shown}" if place else shown


def place_of(path: str) -> str:
    """The name nearest to a stage: of the binding or branch it stands in, empty where there is none.

    >>> place_of("root.body.branches.summary.stages[1].stage")
    'summary'
    """
    found = ""
    parts = path.split(".")
    for before, name in pairwise(parts):
        if before in ("bindings", "branches"):
            found = name.partition("[")[0]
    return found


def _bar(done: int, of: int, cells: int = 20) -> str:
    if not of:
        return ""
    full = round(cells * done / of)
    return "━" * full + "─" * (cells - full) + "  "
