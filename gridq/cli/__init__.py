"""Run the command line `gridq`.

It starts fast because it imports only the module of the command that is named. Other packages add commands by
the entry-point group `gridq.commands`: a function that takes the typer app and registers commands with
CommandTree.

In: arguments, settings, files, stdin.
Out: an answer, a table or JSON on stdout; one line for an error; an exit code.
Imported by: workers.supervisor, workers.demo, workers.cli.
"""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from typing import Annotated

import typer

from gridq.cli.command_tree import CommandTree
from gridq.cli.exit_codes import EPILOG, INTERRUPTED, WRONG_USE, DebugOption
from gridq.cli.interrupts import install_signal_handlers, was_interrupted

__all__ = ["command_tree", "commands", "exit_codes", "grid", "inputs", "interrupts", "output", "progress"]

ENTRY_POINT_GROUP = "gridq.commands"

app = typer.Typer(
    name="gridq",
    cls=CommandTree,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EPILOG,
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
    ("queues", "queues"),
    ("workers", "workers", "seats"),
    ("drain", "drain"),
    ("load", "load", "unload"),
    ("health", "health"),
    ("audit", "audit"),
):
    CommandTree.register(f"gridq.cli.commands.{module}", *commands)


def _print_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        typer.echo(f"gridq {version('gridq')}")
        raise typer.Exit


@app.callback()
def gridq(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: DebugOption = False,
) -> None:
    """Submit graphs to the grid, and see and operate what runs in it.

    GRIDQ_BROKER_URL names the Redis server of the grid; GRIDQ_URL names a gateway instead.
    """


def load_commands() -> None:
    """Add the commands of other packages.

    A package that cannot be loaded is skipped with a warning on stderr.
    """
    for point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: point.name):
        try:
            point.load()(app)
        except Exception as exc:  # a broken plug-in must not disable the other commands
            if was_interrupted():
                raise KeyboardInterrupt from None
            reason = f"{type(exc).__name__}: {exc}"
            typer.echo(f"warning: cannot load the commands of {point.value}: {reason}", err=True)


def main() -> None:
    """Run the program `gridq`."""
    install_signal_handlers()
    try:
        load_commands()
        sys.exit(app(prog_name="gridq"))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as exc:
        if "--debug" in sys.argv:
            raise
        if was_interrupted():
            sys.exit(INTERRUPTED)
        if not isinstance(exc, OSError):
            raise
        # For example, stdout is a file on a full disk.
        typer.echo(f"error: {exc.strerror or exc}", err=True)
        sys.exit(WRONG_USE)
