"""Show a job's progress on stderr: redrawn in place on a terminal, line by line elsewhere.

Nothing is drawn while the process is in the terminal's background: the terminal belongs to others then.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from gridq.cli.output import format_count, format_span, make_console
from gridq.errors import BrokerError, BrokerUnreachable
from gridq.jobs.server_outage import OutageRetry
from gridq.jobs.waiting import build_timeout_error
from gridq.protocol.states import StageState
from gridq.telemetry.narration import enclosing_name

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from gridq.client import BaseClient
    from gridq.protocol.models import HistoryRow, Json
    from gridq.views.jobs import JobView, StageView

LIVE_INTERVAL_SECONDS = 0.15
LINES_INTERVAL_SECONDS = 0.5
BAR_COLUMNS = 20
MAX_STAGES = 8
"""The most stages shown at once."""

REPORT_AFTER_SECONDS = 3.0
"""The time without progress after which to say what the job waits for."""

UNASKED_REPORT_AFTER_SECONDS = 10.0
"""The same if the user did not ask for progress and no stage of the job runs."""

REPEAT_AFTER_SECONDS = 60.0
"""The time after which to say the same again."""


Refresh = Callable[[], None]
"""Reads the job and shows its progress."""


def wait_with_progress(
    client: BaseClient,
    job: str,
    timeout: float | None,
    refresh: Refresh,
    interval: float = LIVE_INTERVAL_SECONDS,
) -> Json:
    """Wait for a job and return its result, like `client.result`; call `refresh` every `interval` seconds."""
    deadline = None if timeout is None else time.monotonic() + timeout
    retry = OutageRetry(timeout)
    while True:
        left = interval if deadline is None else min(interval, deadline - time.monotonic())
        if retry.call(partial(client.wait, job), max(left, 0)):
            return client.result(job)
        if deadline is not None and time.monotonic() >= deadline:
            error = build_timeout_error(job, timeout or 0.0, client.waits_for(job))
            error.details["fix"] = "wait longer (--timeout): the job continues"
            raise error
        with suppress(BrokerUnreachable):  # go on waiting without the progress
            refresh()


class WaitReporter:
    """Says what a job waits for once it has made no progress for `delay` seconds, and again when that
    changes.

    `waits_for` is the current reason, or empty.
    """

    def __init__(self, client: BaseClient, job: str, delay: float = REPORT_AFTER_SECONDS) -> None:
        self._client = client
        self._job = job
        self._delay = delay
        self._idle_since = self._read_at = time.monotonic()
        self._reported_at = 0.0
        self._reported = ""
        self.waits_for = ""

    def update(self, progressed: bool) -> str:
        """Return a line to print now, or nothing if there is no news.

        `progressed` says whether the job made progress since the last call.
        """
        now = time.monotonic()
        if progressed:
            self._idle_since, self.waits_for = now, ""
            return ""
        if now - self._idle_since < self._delay or now - self._read_at < 1:
            return ""
        self._read_at = now
        self.waits_for = self._client.waits_for(self._job)
        reason = re.sub(r"\d+ s\b", "", self.waits_for)  # a changed duration is not news
        if not reason or (reason == self._reported and now - self._reported_at < REPEAT_AFTER_SECONDS):
            return ""
        self._reported, self._reported_at = reason, now
        return f"waits   {format_span(now - self._idle_since)} for {self.waits_for}"


@contextmanager
def show_live(client: BaseClient, job: str, console: Console | None = None) -> Iterator[Refresh]:
    """Provide a function that redraws a job's progress on the terminal; the drawing is erased after the
    block. In the background (`gridq run … &`) nothing is drawn.
    """
    from rich.control import Control
    from rich.segment import ControlType
    from rich.text import Text

    screen = console or make_console(err=True)
    reader = client.reader(job)
    reporter = WaitReporter(client, job)
    started = time.monotonic()
    last: object = None
    drawn = 0  # lines

    def draw(lines: list[Text]) -> None:
        """Draw the lines in place of those drawn before."""
        nonlocal drawn
        if not _is_in_foreground(screen):
            drawn = 0  # the cursor has moved since: erasing would hit what others wrote
            return
        erase = (ControlType.ERASE_IN_LINE, 2)
        with screen:  # one write
            if drawn:
                up = ((ControlType.CURSOR_UP, 1), erase)
                screen.control(Control(ControlType.CARRIAGE_RETURN, erase, *up * (drawn - 1)))
            screen.print(Text("\n").join(lines), end="")
        drawn = len(lines)

    def refresh() -> None:
        nonlocal last
        view = reader.read(rows=False)
        snapshot = _take_snapshot(view)
        reporter.update(last != snapshot or bool(view.find_stages(StageState.RUNNING)))
        last = snapshot
        seconds = time.monotonic() - started
        lines = render_progress(view, seconds, screen.width, reporter.waits_for).split()
        draw(list(lines)[: max(screen.height - 1, 1)])

    try:
        yield refresh
    finally:
        draw([])


def _is_in_foreground(screen: Console) -> bool:
    """Say whether this process may draw on the terminal now; `fg` and `bg` of a shell change that.

    A terminal that does not control the process has no background.
    """
    try:
        return os.tcgetpgrp(screen.file.fileno()) == os.getpgrp()
    except OSError:
        return True


@contextmanager
def show_lines(client: BaseClient, job: str, *, rows: bool = True) -> Iterator[Refresh]:
    """Provide a function that prints a job's progress as lines on stderr.

    It prints a line for each stage that was recorded (unless `rows` is False), and a line with the reason if
    the job waits for a long time.
    """
    console = make_console(err=True)
    reader = client.reader(job)
    reporter = WaitReporter(client, job, REPORT_AFTER_SECONDS if rows else UNASKED_REPORT_AFTER_SECONDS)
    printed = 0
    last: object = None

    def print_rows() -> None:
        nonlocal printed
        recorded = client.rows(job) if rows else []
        for row in recorded[printed:]:
            console.print(format_row(row), soft_wrap=True)
        printed = len(recorded)

    def refresh() -> None:
        nonlocal last
        print_rows()
        view = reader.read(rows=False)
        snapshot = _take_snapshot(view)
        line = reporter.update(last != snapshot or (not rows and bool(view.find_stages(StageState.RUNNING))))
        last = snapshot
        if line:
            console.print(line, soft_wrap=True)

    try:
        yield refresh
    finally:
        with suppress(BrokerError):  # it would hide why the block ended
            print_rows()


def _take_snapshot(view: JobView) -> object:
    """Return a value that changes whenever the job makes progress."""
    return view.state, view.done, [stage.path for stage in view.find_stages(StageState.RUNNING)]


def format_row(row: HistoryRow) -> str:
    """Format one recorded stage: `done  llm_chat  root.stages[2]  on cpu@machine  320 ms  attempt 2`."""
    again = f"  attempt {row.attempt}" if row.attempt > 1 else ""
    return f"{row.state:6}  {row.stage}  {row.path}  on {row.worker}  {row.run_ms:.0f} ms{again}"


def render_progress(job: JobView, seconds: float, width: int, waits_for: str = "") -> Text:
    """Return the job in a few lines of at most `width` columns: the counts, what runs where, and what waits.

    `waits_for` is the reason why the job makes no progress, or empty; it is wrapped.
    """
    import textwrap

    from rich.text import Text

    from gridq.views.jobs import group_by_step

    running = group_by_step(job.find_stages(StageState.RUNNING))
    ready = group_by_step(job.find_stages(StageState.READY))
    quarantined = group_by_step(job.find_stages(StageState.QUARANTINED))
    head = f"{job.done}/{format_count(job.of, 'step')}" if job.of else str(job.state or "ended")
    lines = [Text(f"{_draw_bar(job.done, job.of)}{head}  {seconds:.1f} s", style="bold")]
    steps = quarantined + running + ready
    lines += [_render_step(step) for step in steps[:MAX_STAGES]]
    hidden = len(steps) - MAX_STAGES
    if hidden > 0:
        lines.append(Text(f"  and {hidden} more", style="dim"))
    if job.stages and not steps:
        lines.append(Text("  · between two stages", style="dim"))
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    if waits_for:
        parts = textwrap.wrap(f"It waits for {waits_for}", max(width - 4, 20))
        lines += [Text(f"    {part}", style="yellow") for part in parts]
    return Text("\n").join(lines)


def _render_step(step: list[StageView]) -> Text:
    """Return one line for stages that run as one step: their state, and the seat or the queue."""
    from rich.text import Text

    where = format_step(step)
    match step[0].state:
        case StageState.QUARANTINED:
            return Text(f"  ! {where}  in quarantine, last on {step[0].seat}", style="red")
        case StageState.RUNNING:
            return Text(f"  ▶ {where}  on {step[0].seat}")
    return Text(f"  · {where}  waits for {step[0].queue}", style="dim")


def format_step(step: list[StageView]) -> str:
    """Format stages that run as one step: `summary: text_template + llm_chat`."""
    names = [stage.stage for stage in step]
    shown = " + ".join(names if len(names) < 4 else [*names[:2], "…", names[-1]])
    place = enclosing_name(step[0].path)
    return f"{place}: {shown}" if place else shown


def _draw_bar(done: int, of: int) -> str:
    if not of:
        return ""
    full = round(BAR_COLUMNS * done / of)
    return "━" * full + "─" * (BAR_COLUMNS - full) + "  "
