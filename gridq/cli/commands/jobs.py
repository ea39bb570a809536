"""List, show and cancel jobs: `gridq jobs`, `gridq job`, `gridq cancel`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gridq.cli.completion import JobArgument, complete_job_ids, complete_states
from gridq.cli.exit_codes import EPILOG, DebugOption, JsonOption, get_exit_code, print_error, to_one_line
from gridq.cli.grid import GridOption, describe_grid, load_settings, open_client
from gridq.cli.output import (
    format_count,
    format_duration,
    format_local_time,
    format_money,
    format_span,
    label_stage,
    make_console,
    make_table,
    print_json,
)
from gridq.protocol import queue_names
from gridq.protocol.money import sum_costs

if TYPE_CHECKING:
    from rich.table import Table

    from gridq.views.jobs import JobSummary, JobView, StageView

app = typer.Typer()

MAX_STAGES = 200
"""The most stages in the table of one job; `--json` has all."""


@app.command(epilog=EPILOG, short_help="List jobs, newest first.")
def jobs(
    *,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help="Only jobs in this state: queued, running, done, failed, cancelled or expired.",
            autocompletion=complete_states,
            show_default=False,
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of jobs.")] = 20,
    grid: GridOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """List jobs, newest first: those that wait or run, and those whose result has not expired yet."""
    config = load_settings(grid)
    with open_client(config) as client:
        found = client.jobs(limit, state)
    if json:
        print_json([summary.to_json() for summary in found])
        return
    if not found:
        which = f" {state}" if state else ""
        typer.echo(f"No{which} jobs at {describe_grid(config)}", err=True)
        return
    make_console().print(make_jobs_table(found))


def make_jobs_table(found: list[JobSummary]) -> Table:
    """Return a table with one row for each job. The agent has a column only if one is not the default."""
    has_agents = any(summary.agent != "default" or summary.priority != "interactive" for summary in found)
    columns = ("job", "name", "state", "steps", *(("agent",) if has_agents else ()), "ago", "took")
    table = make_table(*columns, numbers=("steps", "ago", "took"), keep_first=True, gap=1)
    now = time.time()
    for summary in found:
        steps = f"{summary.steps - summary.left}/{summary.steps}" if summary.steps else "-"
        agent = (
            summary.agent if summary.priority == "interactive" else f"{summary.agent} ({summary.priority})"
        )
        table.add_row(
            summary.job,
            summary.name,
            str(summary.state),
            steps,
            *((agent,) if has_agents else ()),
            format_span(now - summary.submitted),
            format_duration(max((summary.ended or now) - summary.submitted, 0) * 1000),
        )
    return table


@app.command(epilog=EPILOG, short_help="Show one job: its stages and where the time went.")
def job(
    id: JobArgument,
    grid: GridOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show one job: its state, its error, and its stages with their seats, waits and run times.

    The times are also drawn on one axis.
    """
    from gridq.cli.waterfall import draw_waterfall
    from gridq.views.jobs import MAX_STEPS

    with open_client(load_settings(grid)) as client:
        id = client.find(id)
        view = client.view(id)
        if len(view.rows) >= MAX_STEPS:  # there may be more, which cost something too
            view.rows = client.rows(id)
        waits_for = client.waits_for(id)
    if json:
        print_json({**view.to_json(), "waits_for": waits_for})
        return
    out = make_console()
    for line in format_header(view):
        typer.echo(line)
    if waits_for:
        typer.echo(f"waits for {to_one_line(waits_for)}")
    if view.stages:
        typer.echo()
        out.print(make_stages_table(view))
    if view.of > MAX_STEPS:
        typer.echo(f"Not all stages are shown, as there are more than {MAX_STEPS} steps; --json has all rows")
    elif len(view.stages) > MAX_STAGES:
        typer.echo(f"and {len(view.stages) - MAX_STAGES} more; --json shows all")
    drawing = draw_waterfall(view, out.width)
    if drawing:
        typer.echo()
        for line in drawing:
            typer.echo(line)
    if view.error is not None:
        typer.echo()
        for line in format_error(view.error):
            typer.echo(line)
        trace = find_traceback(view)
        if trace:
            typer.echo(f"\n{trace}")


def format_header(view: JobView) -> list[str]:
    """Return the lines about a job as a whole: its name, agent, state, times and cost."""
    lines = [
        f"job       {view.job}",
        f"name      {to_one_line(view.name) or '-'}",
        f"agent     {view.agent or '-'}, {view.priority}",
        f"state     {view.state}, {view.done} of {format_count(view.of, 'step')}",
    ]
    if view.submitted:
        took = format_duration(max((view.ended or view.now) - view.submitted, 0) * 1000)
        ended = f"ended {format_local_time(view.ended)}, {took} in all" if view.ended else f"{took} so far"
        lines.append(f"submitted {format_local_time(view.submitted)}, {ended}")
    if view.deadline and not view.ended:
        left = format_span(view.deadline - view.now)
        lines.append(f"deadline  {format_local_time(view.deadline)}, in {left}")
    tokens_in, tokens_out = (sum(getattr(row, n) for row in view.rows) for n in ("tokens_in", "tokens_out"))
    spent = sum_costs(row.micro_dollars for row in view.rows)
    gpu_seconds = sum(row.gpu_seconds for row in view.rows)
    if tokens_in or tokens_out or spent or gpu_seconds:
        cost = "price unknown" if spent is None else format_money(spent)
        gpu = f", {gpu_seconds:.1f} GPU seconds" if gpu_seconds else ""
        lines.append(f"used      {tokens_in} tokens in, {tokens_out} out, {cost}{gpu}")
    dropped = dict.fromkeys(place for row in view.rows for place in row.dropped_fields)
    if dropped:
        lines.append(f"dropped   {to_one_line(', '.join(dropped))}")
    return lines


def make_stages_table(view: JobView) -> Table:
    """Return a table with one row for each stage: its state, its seat or queue, its times, its attempts."""
    table = make_table(
        "#",
        "stage",
        "state",
        "queue or seat",
        "wait",
        "run",
        "tokens",
        "attempts",
        numbers=("#", "wait", "run", "tokens"),
        gap=1,
    )
    for number, stage in enumerate(view.stages[:MAX_STAGES]):
        table.add_row(
            str(number),
            label_stage(stage.path, stage.stage),
            str(stage.state),
            stage.seat or format_queue(stage),
            format_duration(stage.wait_ms) if stage.wait_ms is not None else "",
            format_duration(stage.run_ms) if stage.run_ms is not None else "",
            f"{stage.tokens_in}+{stage.tokens_out}" if stage.tokens_in or stage.tokens_out else "",
            format_attempts(stage),
        )
    return table


def format_queue(stage: StageView) -> str:
    """Format the queue that a stage waits in: `llm:opus (of 3)` if it has fallbacks."""
    queue = queue_names.format_queue(stage.queue)
    return f"{queue} (of {len(stage.links)})" if stage.links else queue


def format_attempts(stage: StageView) -> str:
    """Format the attempts, `4 (1 failed, 1 lost, 1 died)`; empty for one attempt that did not fail."""
    counts = ((stage.failures, "failed"), (stage.losses, "lost"), (stage.deaths, "died"))
    unsuccessful = ", ".join(f"{count} {outcome}" for count, outcome in counts if count)
    if not unsuccessful:
        return str(stage.attempts) if stage.attempts > 1 else ""
    return f"{stage.attempts} ({unsuccessful})"


_COUNTS = {"attempts": "attempt", "failures": "failure", "losses": "loss", "deaths": "death"}
"""Counts in the details of an error → their singular."""


def format_error(record: dict[str, Any]) -> list[str]:
    """Return the lines about an error's record: what happened, where, why, and how to fix it."""
    details = record.get("details") or {}
    lines = [f"error     {record.get('code')}: {to_one_line(str(record.get('message', '')))}"]
    for key, label in (
        ("path", "at"),
        ("worker", "on"),
        ("reason", "because"),
        ("expected", "expected"),
        ("dropped_by", "by"),
        ("fix", "fix"),
    ):
        if details.get(key):
            lines.append(f"{label:9} {to_one_line(str(details[key]))}")
    numbers = {name: details[name] for name in _COUNTS if isinstance(details.get(name), int)}
    counts = [f"{count} {_COUNTS[name] if count == 1 else name}" for name, count in numbers.items()]
    if counts:
        lines.append(f"{'after':9} {', '.join(counts)}")
    return lines


def find_traceback(view: JobView) -> str:
    """Return the traceback of the stage whose code ended the job, without control characters; else empty."""
    path = ((view.error or {}).get("details") or {}).get("path")
    found = next((row.traceback for row in reversed(view.rows) if row.path == path), "")
    return "".join(c if c.isprintable() or c == "\n" else " " for c in found)


@app.command(epilog=EPILOG, short_help="Cancel jobs, queued or running.")
def cancel(
    ids: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB…",
            help="Job ids, or the beginnings of them.",
            autocompletion=complete_job_ids,
            show_default=False,
        ),
    ],
    grid: GridOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Cancel jobs: running stages are stopped, waiting ones are dropped. Ended jobs stay as they are.

    All ids are processed, even if one is wrong. The exit code is then 5 for an unknown id, or 2 for an id
    that several jobs begin with.
    """
    from gridq.errors import AmbiguousJob, JobNotFound

    outcomes: dict[str, str] = {}
    errors: list[JobNotFound | AmbiguousJob] = []
    with open_client(load_settings(grid)) as client:
        for prefix in ids:
            id = prefix
            try:
                id = client.find(prefix)
                outcomes[id] = "cancelled" if client.cancel(id) else "ended before"
            except (JobNotFound, AmbiguousJob) as exc:
                outcomes[id] = "unknown" if isinstance(exc, JobNotFound) else "ambiguous"
                errors.append(exc)
            if outcomes[id] == "ended before":
                outcomes[id] = f"ended before: {client.status(id) or 'gone'}"
    if json:
        print_json([{"job": id, "outcome": outcome} for id, outcome in outcomes.items()])
    else:
        for id, outcome in outcomes.items():
            typer.echo(f"{id}  {outcome}")
    for error in errors:
        print_error(error)
    if errors:
        raise typer.Exit(max(map(get_exit_code, errors)))
