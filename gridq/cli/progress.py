"""A job's progress on stderr: drawn again in place on a terminal, line by line elsewhere."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol

from gridq.cli.output import console, span
from gridq.errors import BrokerError, BrokerUnreachable, WaitTimeout
from gridq.jobs.server_outage import Absence
from gridq.protocol.states import StageState
from gridq.telemetry.narration import place_of

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from gridq.client import Client
    from gridq.protocol.models import Json, Row
    from gridq.views.jobs import JobView, StageView

TICK = 0.15
PLAIN_TICK = 0.5
LINES = 8
"""Stages shown at once."""

PATIENCE = 3.0
"""Seconds without progress after which it is told what the job waits for."""

UNASKED = 10.0
"""The same where nobody asked for progress, and nothing of the job runs."""

REMIND = 60.0
"""Seconds after which it is told again."""


class Show(Protocol):
    """Takes the job as it stands now."""

    def __call__(self) -> None: ...


def wait(client: Client, job: str, timeout: float | None, show: Show, tick: float = TICK) -> Json:
    """`client.result`, with a look at the job each `tick` seconds."""
    until = None if timeout is None else time.monotonic() + timeout
    away = Absence(timeout)
    while True:
        left = tick if until is None else min(tick, until - time.monotonic())
        if away.ask(partial(client.wait, job), max(left, 0)):
            return client.result(job)
        if until is not None and time.monotonic() >= until:
            details = {"job": job, "fix": "wait longer (--timeout); the job goes on"}
            reason = client.waits_for(job)
            if reason:
                details |= {"reason": f"it waits for {reason}", "waits_for": reason}
            raise WaitTimeout(f"The job {job} was not finished within {timeout:g} s", details)
        with suppress(BrokerUnreachable):  # the job is waited for all the same
            show()


class Waiting:
    """Says what a job waits for, once it has waited for some time, and again when that changes.

    On a terminal the sentence is kept for the picture, elsewhere it becomes a line on stderr.
    """

    def __init__(self, client: Client, job: str, patience: float = PATIENCE) -> None:
        self._client = client
        self._job = job
        self._patience = patience
        self._since = self._asked = time.monotonic()
        self._told_at = 0.0
        self._last = ""
        self.sentence = ""

    def look(self, moves: bool) -> str:
        """What is to be told now, empty where there is nothing new. `moves`: the job got on since the last
        look.
        """
        now = time.monotonic()
        if moves:
            self._since, self.sentence = now, ""
            return ""
        if now - self._since < self._patience or now - self._asked < 1:
            return ""
        self._asked = now
        self.sentence = self._client.waits_for(self._job)
        without_times = re.sub(r"\d+ s\b", "", self.sentence)
        if not self.sentence or (without_times == self._last and now - self._told_at < REMIND):
            return ""
        self._last, self._told_at = without_times, now
        return f"waits   {span(now - self._since)} for {self.sentence}"


@contextmanager
def drawn(client: Client, job: str, on: Console | None = None) -> Iterator[Show]:
    """Progress on a terminal; it is gone after the block."""
    from rich.live import Live

    on = on or console(err=True)
    reader = client.reader(job)
    waiting = Waiting(client, job)
    since = time.monotonic()
    before: object = None
    with Live(console=on, auto_refresh=False, transient=True) as live:

        def show() -> None:
            nonlocal before
            view = reader.read(rows=False)
            now = _progress(view)
            waiting.look(before != now or bool(view.having(StageState.RUNNING)))
            before = now
            live.update(picture(view, time.monotonic() - since, on.width, waiting.sentence), refresh=True)

        yield show


@contextmanager
def told(client: Client, job: str, *, rows: bool = True) -> Iterator[Show]:
    """Progress as lines on stderr: one for each stage that was recorded (unless not `rows`), and one when the
    job waits for long, with what it waits for.
    """
    out = console(err=True)
    reader = client.reader(job)
    waiting = Waiting(client, job, PATIENCE if rows else UNASKED)
    seen = 0
    before: object = None

    def recorded() -> None:
        nonlocal seen
        found = client.rows(job) if rows else []
        for row in found[seen:]:
            out.print(line_of(row), soft_wrap=True)
        seen = len(found)

    def show() -> None:
        nonlocal before
        recorded()
        view = reader.read(rows=False)
        now = _progress(view)
        line = waiting.look(before != now or (not rows and bool(view.having(StageState.RUNNING))))
        before = now
        if line:
            out.print(line, soft_wrap=True)

    try:
        yield show
    finally:
        with suppress(BrokerError):  # it would hide why the block ended
            recorded()


def _progress(view: JobView) -> object:
    """What changes whenever the job gets on."""
    return view.state, view.done, [stage.path for stage in view.having(StageState.RUNNING)]


def line_of(row: Row) -> str:
    """`done  llm_chat  root.stages[2]  on cpu@machine  320 ms`, and which attempt, unless the first."""
    again = f"  attempt {row.attempt}" if row.attempt > 1 else ""
    return f"{row.state:6}  {row.stage}  {row.path}  on {row.worker}  {row.run_ms:.0f} ms{again}"


def picture(job: JobView, seconds: float, width: int, waits_for: str = "") -> RenderableType:
    """The job in a few lines, none wider than `width`: the counts, what runs where, what waits for whom, and
    `waits_for`, the reason, wrapped.
    """
    import textwrap

    from rich.text import Text

    from gridq.views.jobs import by_step

    running, ready = by_step(job.having(StageState.RUNNING)), by_step(job.having(StageState.READY))
    isolated = by_step(job.having(StageState.QUARANTINED))
    head = f"{job.done}/{job.of} stages" if job.of else str(job.state or "ended")
    lines = [Text(f"{_bar(job.done, job.of)}{head}  {seconds:.1f} s", style="bold")]
    every = isolated + running + ready
    lines += [_line(step) for step in every[:LINES]]
    hidden = len(every) - LINES
    if hidden > 0:
        lines.append(Text(f"  and {hidden} more", style="dim"))
    if job.stages and not every:
        lines.append(Text("  · between two stages", style="dim"))
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    if waits_for:
        parts = textwrap.wrap(f"It waits for {waits_for}", max(width - 4, 20))
        lines += [Text(f"    {part}", style="yellow") for part in parts]
    return Text("\n").join(lines)


def _line(step: list[StageView]) -> Text:
    """Where the stages that are claimed as one stand, and who has them or is waited for."""
    from rich.text import Text

    where = where_in(step)
    match step[0].state:
        case StageState.QUARANTINED:
            return Text(f"  ! {where}  in quarantine, last on {step[0].seat}", style="red")
        case StageState.RUNNING:
            return Text(f"  ▶ {where}  on {step[0].seat}")
    return Text(f"  · {where}  waits for {step[0].queue}", style="dim")


def where_in(step: list[StageView]) -> str:
    """`summary: text_template + llm_chat` of stages that are claimed as one."""
    names = [stage.stage for stage in step]
    shown = " + ".join(names if len(names) < 4 else [*names[:2], "…", names[-1]])
    place = place_of(step[0].path)
    return f"{place}: {shown}" if place else shown


def _bar(done: int, of: int, cells: int = 20) -> str:
    if not of:
        return ""
    full = round(cells * done / of)
    return "━" * full + "─" * (cells - full) + "  "
