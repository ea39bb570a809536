"""List stages in quarantine, and release or drop one: `gridq quarantine`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gridq.cli.completion import JobArgument
from gridq.cli.exit_codes import EPILOG, DebugOption, JsonOption, to_one_line
from gridq.cli.grid import GridOption, load_settings, open_client
from gridq.cli.output import format_local_time, make_console, make_table, print_json

if TYPE_CHECKING:
    from rich.table import Table

    from gridq.views.quarantine import Quarantined

app = typer.Typer()
quarantine = typer.Typer(
    invoke_without_command=True,
    rich_markup_mode=None,
    short_help="List stages in quarantine, release or drop one.",
    epilog=EPILOG,
)
app.add_typer(quarantine, name="quarantine")

Stage = Annotated[
    str,
    typer.Argument(
        metavar="STAGE", help="Path of the stage as shown, or the number of its step.", show_default=False
    ),
]


@quarantine.callback()
def list_quarantined(
    ctx: typer.Context, grid: GridOption = None, json: JsonOption = False, debug: DebugOption = False
) -> None:
    """List the stages in quarantine. Each one killed the process that ran it, twice.

    They do not run until you release or drop them. After GRIDQ_QUARANTINE seconds they are dropped. The rest
    of their jobs goes on.
    """
    if ctx.invoked_subcommand is not None:
        return
    with open_client(load_settings(grid)) as client:
        found = client.quarantined()
    if json:
        print_json([stage.to_json() for stage in found])
        return
    if not found:
        typer.echo("No stage is in quarantine.", err=True)
        return
    make_console().print(make_stages_table(found))


def make_stages_table(found: list[Quarantined]) -> Table:
    """Return a table with one row for each stage in quarantine."""
    columns = ("job", "name", "stage", "queue", "deaths", "last on", "until", "because")
    table = make_table(*columns, keep_first=True, gap=1)
    for stage in found:
        table.add_row(
            stage.job,
            stage.name,
            stage.path,
            stage.queue,
            str(stage.deaths),
            stage.worker,
            format_local_time(stage.until),
            to_one_line(stage.reason),
        )
    return table


@quarantine.command(epilog=EPILOG, short_help="Run a stage again.")
def release(
    ctx: typer.Context,
    job: JobArgument,
    stage: Stage,
    *,
    grid: GridOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Run a stage again, with its count of deaths reset. Do this once you have fixed the cause."""
    _apply(ctx, "release", job, stage, grid=grid, json=json)


@quarantine.command(epilog=EPILOG, short_help="Give up a stage: its job fails.")
def drop(
    ctx: typer.Context,
    job: JobArgument,
    stage: Stage,
    *,
    grid: GridOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Give up a stage in quarantine: its job fails at once, even if a Retry contains the stage."""
    _apply(ctx, "drop", job, stage, grid=grid, json=json)


def _get_parent_option(ctx: typer.Context, option: str) -> Any:
    """Return the value of an option that stands before the name of the subcommand."""
    return None if ctx.parent is None else ctx.parent.params.get(option)


def _apply(
    ctx: typer.Context,
    action: Literal["release", "drop"],
    job: str,
    stage: str,
    *,
    grid: str | None,
    json: bool,
) -> None:
    with open_client(load_settings(grid or _get_parent_option(ctx, "grid"))) as client:
        apply = client.release if action == "release" else client.drop
        job = client.find(job)
        changed = apply(job, stage, _get_operator())
    outcome = "released" if action == "release" else "dropped"
    if json or _get_parent_option(ctx, "json"):
        print_json({"job": job, "stage": stage, "outcome": outcome, "before": not changed})
    else:
        typer.echo(f"{job}  {stage}  {outcome}{'' if changed else ' before'}")


def _get_operator() -> str:
    """Return who runs the command, as `user@host`."""
    import getpass
    import socket

    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a container's user may have no name
        return f"an operator on {socket.gethostname()}"
