"""`gridq quarantine`: stages that killed what ran them twice, and what an operator says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gridq.cli.completion import job_ids
from gridq.cli.exit_codes import EXITS, AsJson, Debug, one_line
from gridq.cli.grid import GridUrl, grid_of, settings_for
from gridq.cli.output import clock, console, echo_json, plain_table

if TYPE_CHECKING:
    from rich.table import Table

    from gridq.views.quarantine import Quarantined

app = typer.Typer()
quarantine = typer.Typer(
    invoke_without_command=True,
    rich_markup_mode=None,
    short_help="Show stages in quarantine; release or drop one.",
    epilog=EXITS,
)
app.add_typer(quarantine, name="quarantine")

Job = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="The job's id, or the beginning of it.",
        autocompletion=job_ids,
        show_default=False,
    ),
]
Stage = Annotated[
    str,
    typer.Argument(
        metavar="STAGE", help="The stage's path as shown, or its step's number.", show_default=False
    ),
]


@quarantine.callback()
def listing(ctx: typer.Context, grid: GridUrl = None, json: AsJson = False, debug: Debug = False) -> None:
    """Show the stages that killed the process that ran them twice. Nobody runs them until an operator
    releases or drops them; after GRIDQ_QUARANTINE seconds they are dropped. The rest of their jobs goes on.
    """
    if ctx.invoked_subcommand is not None:
        return
    with grid_of(settings_for(grid)) as client:
        found = client.quarantined()
    if json:
        echo_json([stage.to_json() for stage in found])
        return
    if not found:
        typer.echo("No stage is in quarantine.", err=True)
        return
    console().print(table_of(found))


def table_of(found: list[Quarantined]) -> Table:
    """One row for each stage in quarantine."""
    columns = ("job", "name", "stage", "queue", "deaths", "last on", "until", "because")
    table = plain_table(*columns, named=True, gap=1)
    for stage in found:
        table.add_row(
            stage.job,
            stage.name,
            stage.path,
            stage.queue,
            str(stage.deaths),
            stage.worker,
            clock(stage.until),
            one_line(stage.reason),
        )
    return table


@quarantine.command(epilog=EXITS, short_help="Run a stage again.")
def release(
    ctx: typer.Context,
    job: Job,
    stage: Stage,
    *,
    grid: GridUrl = None,
    json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Run a stage in quarantine again, as if it had killed nobody yet: once its cause is mended."""
    _act("release", job, stage, grid or _before(ctx, "grid"), json or bool(_before(ctx, "json")))


@quarantine.command(epilog=EXITS, short_help="Give a stage up: its job fails.")
def drop(
    ctx: typer.Context,
    job: Job,
    stage: Stage,
    *,
    grid: GridUrl = None,
    json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Give a stage in quarantine up: its job fails at once, whatever Retry stands around the stage."""
    _act("drop", job, stage, grid or _before(ctx, "grid"), json or bool(_before(ctx, "json")))


def _before(ctx: typer.Context, option: str) -> Any:
    """What an option says that stands before the name of the command."""
    return None if ctx.parent is None else ctx.parent.params.get(option)


def _act(verb: Literal["release", "drop"], job: str, stage: str, grid: str | None, json: bool) -> None:
    with grid_of(settings_for(grid)) as client:
        act = client.release if verb == "release" else client.drop
        job = client.find(job)
        now = act(job, stage, _who())
    outcome = "released" if verb == "release" else "dropped"
    if json:
        echo_json({"job": job, "stage": stage, "outcome": outcome, "before": not now})
    else:
        typer.echo(f"{job}  {stage}  {outcome}{'' if now else ' before'}")


def _who() -> str:
    """Who gives the word, as `user@host`."""
    import getpass
    import socket

    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a container's user may have no name
        return f"an operator on {socket.gethostname()}"
