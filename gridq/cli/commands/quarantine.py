"""`gridq quarantine`: stages that killed what ran them twice, and what an operator says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gridq.cli.completion import complete_job_ids
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
    short_help="Show stages in quarantine; release or drop one.",
    epilog=EPILOG,
)
app.add_typer(quarantine, name="quarantine")

Job = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="The job's id, or the beginning of it.",
        autocompletion=complete_job_ids,
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
def listing(ctx: typer.Context, grid: GridOption = None, json: JsonOption = False, debug: DebugOption = False) -> None:
    """Show the stages that killed the process that ran them twice. Nobody runs them until an operator
    releases or drops them; after GRIDQ_QUARANTINE seconds they are dropped. The rest of their jobs goes on.
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
    make_console().print(table_of(found))


def table_of(found: list[Quarantined]) -> Table:
    """One row for each stage in quarantine."""
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
    job: Job,
    stage: Stage,
    *,
    grid: GridOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Run a stage in quarantine again, as if it had killed nobody yet: once its cause is mended."""
    _act("release", job, stage, grid or _before(ctx, "grid"), json or bool(_before(ctx, "json")))


@quarantine.command(epilog=EPILOG, short_help="Give a stage up: its job fails.")
def drop(
    ctx: typer.Context,
    job: Job,
    stage: Stage,
    *,
    grid: GridOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Give a stage in quarantine up: its job fails at once, whatever Retry stands around the stage."""
    _act("drop", job, stage, grid or _before(ctx, "grid"), json or bool(_before(ctx, "json")))


def _before(ctx: typer.Context, option: str) -> Any:
    """What an option says that stands before the name of the command."""
    return None if ctx.parent is None else ctx.parent.params.get(option)


def _act(verb: Literal["release", "drop"], job: str, stage: str, grid: str | None, json: bool) -> None:
    with open_client(load_settings(grid)) as client:
        act = client.release if verb == "release" else client.drop
        job = client.find(job)
        now = act(job, stage, _who())
    outcome = "released" if verb == "release" else "dropped"
    if json:
        print_json({"job": job, "stage": stage, "outcome": outcome, "before": not now})
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
