"""`gridq jobs`, `gridq job` and `gridq cancel`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gridq.cli.completion import complete_job_ids, complete_states
from gridq.cli.exit_codes import EPILOG, DebugOption, JsonOption, get_exit_code, print_error, to_one_line
from gridq.cli.grid import GridOption, describe_grid, load_settings, open_client
from gridq.cli.output import (
    format_duration,
    format_local_time,
    format_money,
    format_span,
    make_console,
    make_table,
    print_json,
)
from gridq.protocol.money import total

if TYPE_CHECKING:
    from rich.table import Table

    from gridq.views.jobs import JobSummary, JobView, StageView

app = typer.Typer()

TABLE = 200
"""Stages of one job shown at most; `--json` has all."""


@app.command(epilog=EPILOG, short_help="List the jobs that are known.")
def jobs(
    *,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help="Only those in it: queued, running, done, failed, cancelled or expired.",
            autocompletion=complete_states,
            show_default=False,
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many at most.")] = 20,
    grid: GridOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """List the jobs, the latest first: those that wait or run, and those whose result is still kept."""
    config = load_settings(grid)
    with open_client(config) as client:
        found = client.jobs(limit, state)
    if json:
        print_json([summary.to_json() for summary in found])
        return
    if not found:
        which = f" {state}" if state else ""
        typer.echo(f"No{which} job is known at {describe_grid(config)}", err=True)
        return
    make_console().print(jobs_table(found))


def jobs_table(found: list[JobSummary]) -> Table:
    """One row for each job; its agent only where one of them has another than the default."""
    agents = any(one.agent != "default" or one.priority != "interactive" for one in found)
    columns = ("job", "name", "state", "steps", *(("agent",) if agents else ()), "ago", "took")
    table = make_table(*columns, numbers=("steps", "ago", "took"), keep_first=True, gap=1)
    now = time.time()
    for one in found:
        steps = f"{one.steps - one.left}/{one.steps}" if one.steps else "-"
        taken = format_duration(max((one.ended or now) - one.submitted, 0) * 1000)
        agent = one.agent if one.priority == "interactive" else f"{one.agent} ({one.priority})"
        who = (agent,) if agents else ()
        table.add_row(one.job, one.name, str(one.state), steps, *who, format_span(now - one.submitted), taken)
    return table


@app.command(epilog=EPILOG, short_help="Show one job: its stages and where their time went.")
def job(
    id: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="The job's id, or the beginning of it.",
            autocompletion=complete_job_ids,
            show_default=False,
        ),
    ],
    grid: GridOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show one job: when it came and how it stands, its stages with who ran them and how long they waited and
    ran, the same drawn on one time axis, and the error where it ended with one.
    """
    from gridq.cli.waterfall import waterfall

    with open_client(load_settings(grid)) as client:
        id = client.find(id)
        view = client.view(id)
        waits_for = client.waits_for(id)
    if json:
        print_json({**view.to_json(), "waits_for": waits_for})
        return
    out = make_console()
    for line in header(view):
        typer.echo(line)
    if waits_for:
        typer.echo(f"waits for {to_one_line(waits_for)}")
    if view.stages:
        typer.echo()
        out.print(stages_table(view))
        if len(view.stages) > TABLE:
            typer.echo(f"and {len(view.stages) - TABLE} more; --json has all")
    drawing = waterfall(view, out.width)
    if drawing:
        typer.echo()
        for line in drawing:
            typer.echo(line)
    if view.error is not None:
        typer.echo()
        for line in error_lines(view.error):
            typer.echo(line)


def header(view: JobView) -> list[str]:
    """What is to be said of a job as a whole, in lines."""
    counted = "stages" if view.ended is None or view.state == "done" else "steps"
    end = view.ended or view.now
    ended = f", ended {format_local_time(view.ended)}" if view.ended else ""
    lines = [
        f"job       {view.job}",
        f"name      {to_one_line(view.name) or '-'}",
        f"agent     {view.agent or '-'}, {view.priority}",
        f"state     {view.state}, {view.done} of {view.of} {counted}",
    ]
    if view.submitted:
        after = format_duration(max(end - view.submitted, 0) * 1000)
        lines.append(
            f"submitted {format_local_time(view.submitted)}{ended}, {after} {'in all' if view.ended else 'so far'}"
        )
    if view.deadline and not view.ended:
        lines.append(f"deadline  {format_local_time(view.deadline)}, in {format_span(view.deadline - view.now)}")
    tokens_in, tokens_out = (sum(getattr(row, n) for row in view.rows) for n in ("tokens_in", "tokens_out"))
    spent = total(row.micro_dollars for row in view.rows)
    if tokens_in or tokens_out or spent:
        cost = "no price known" if spent is None else format_money(spent)
        lines.append(f"used      {tokens_in} tokens in, {tokens_out} out, {cost}")
    return lines


def stages_table(view: JobView) -> Table:
    """One row for each stage: where it stands, who has it, how long it waited and ran, how often it was
    tried.
    """
    table = make_table(
        "#",
        "stage",
        "state",
        "queue or seat",
        "wait",
        "run",
        "tokens",
        "tries",
        numbers=("#", *_NUMBERS),
        gap=1,
    )
    for number, stage in enumerate(view.stages[:TABLE], 1):
        table.add_row(
            str(number),
            named(stage),
            str(stage.state),
            stage.seat or place(stage),
            format_duration(stage.wait_ms) if stage.wait_ms is not None else "",
            format_duration(stage.run_ms) if stage.run_ms is not None else "",
            f"{stage.tokens_in}+{stage.tokens_out}" if stage.tokens_in or stage.tokens_out else "",
            tries(stage),
        )
    return table


def place(stage: StageView) -> str:
    """The queue of a stage, and of how many."""
    return f"{stage.queue} (of {len(stage.links)})" if stage.links else stage.queue


def tries(stage: StageView) -> str:
    """`4 (1 failed, 1 lost, 1 died)`: the attempts, where there were several, and those that went wrong."""
    counts = ((stage.failures, "failed"), (stage.losses, "lost"), (stage.deaths, "died"))
    wrong = ", ".join(f"{count} {what}" for count, what in counts if count)
    if not wrong:
        return str(stage.attempts) if stage.attempts > 1 else ""
    return f"{stage.attempts} ({wrong})"


COUNTED = {"attempts": "attempt", "failures": "failure", "losses": "loss", "deaths": "death"}
"""What an error says of the attempts of its stage, and one of each."""

_NUMBERS = ("wait", "run", "tokens")


def named(stage: StageView) -> str:
    """A stage's name after the branch or binding it stands in: `summary/llm_chat`."""
    from gridq.telemetry.narration import enclosing_name

    place = enclosing_name(stage.path)
    return f"{place}/{stage.stage}" if place else stage.stage


def error_lines(record: dict[str, Any]) -> list[str]:
    """An error's record in lines: what, where, why, and what helps."""
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
    known = {name: details[name] for name in COUNTED if isinstance(details.get(name), int)}
    counts = [f"{count} {COUNTED[name] if count == 1 else name}" for name, count in known.items()]
    if counts:
        lines.append(f"{'after':9} {', '.join(counts)}")
    return lines


@app.command(epilog=EPILOG, short_help="Cancel jobs, wherever they stand.")
def cancel(
    ids: Annotated[
        list[str],
        typer.Argument(
            metavar="ID…",
            help="The jobs' ids, or the beginnings of them.",
            autocompletion=complete_job_ids,
            show_default=False,
        ),
    ],
    grid: GridOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Cancel jobs: what runs of them is stopped, what waits is dropped. One that has ended stays as it is.

    Every id is tried; exit code 5 where one of them is not known, 2 where one is the beginning of several.
    """
    from gridq.errors import AmbiguousJob, JobNotFound

    told: dict[str, str] = {}
    unknown: list[JobNotFound | AmbiguousJob] = []
    with open_client(load_settings(grid)) as client:
        for given in ids:
            id = given
            try:
                id = client.find(given)
                told[id] = "cancelled" if client.cancel(id) else "ended before"
            except (JobNotFound, AmbiguousJob) as exc:
                told[id] = "unknown" if isinstance(exc, JobNotFound) else "ambiguous"
                unknown.append(exc)
            if told[id] == "ended before":
                told[id] = f"ended before: {client.status(id) or 'gone'}"
    if json:
        print_json([{"job": id, "outcome": outcome} for id, outcome in told.items()])
    else:
        for id, outcome in told.items():
            typer.echo(f"{id}  {outcome}")
    for error in unknown:
        print_error(error)
    if unknown:
        raise typer.Exit(max(map(get_exit_code, unknown)))
