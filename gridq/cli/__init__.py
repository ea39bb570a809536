"""The command line `gridq`. Starting it imports little: the module of the command that is named, and what
that needs when it runs.

Other packages add commands by the entry-point group `gridq.commands`: a function that takes the typer app. It
adds them to that, or offers them to the `Tree`, so that their modules too are imported when they are named.
"""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from typing import Annotated

import typer

from gridq.cli.command_tree import Tree
from gridq.cli.exit_codes import EXITS, INTERRUPTED, WRONG_USE, Debug
from gridq.cli.interrupts import heed_signals, interrupted

__all__ = ["app", "main"]

GROUP = "gridq.commands"

app = typer.Typer(
    name="gridq",
    cls=Tree,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXITS,
)
for module, *commands in (
    ("run", "run"),
    ("keys", "keys"),
    ("quota", "quota"),
    ("ledger", "ledger"),
    ("report", "report"),
    ("flower", "flower"),
    ("gateway", "gateway"),
    ("validate", "validate"),
    ("explain", "explain"),
    ("jobs", "jobs", "job", "cancel"),
    ("quarantine", "quarantine"),
    ("queues", "queues", "models"),
    ("workers", "workers", "seats"),
    ("drain", "drain"),
    ("health", "health"),
    ("audit", "audit"),
):
    Tree.offer(f"gridq.cli.commands.{module}", *commands)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"gridq {version('gridq')}")
        raise typer.Exit


@app.callback()
def gridq(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Send graphs of stages to the grid, and see who is in it.

    The server is the one that GRIDQ_BROKER_URL names.
    """


def load_commands() -> None:
    """Add the commands of other packages. One that cannot be loaded is told on stderr and left out."""
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            point.load()(app)
        except Exception as exc:  # a broken plug-in must not take the other commands with it
            if interrupted():
                raise KeyboardInterrupt from None
            why = f"{type(exc).__name__}: {exc}"
            typer.echo(f"warning: the commands of {point.value} are missing: {why}", err=True)


def main() -> None:
    """The program `gridq`."""
    heed_signals()
    try:
        load_commands()
        sys.exit(app(prog_name="gridq"))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as exc:
        if "--debug" in sys.argv:
            raise
        if interrupted():
            sys.exit(INTERRUPTED)
        if not isinstance(exc, OSError):
            raise
        # a full disk behind stdout, which no command has a name for
        typer.echo(f"error: {exc.strerror or exc}", err=True)
        sys.exit(WRONG_USE)
