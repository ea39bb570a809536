"""How a command ends: one line for an error, and a code that a script can tell apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gridq.errors import BrokerError, GraphError, GridError, NoLiveSeat, WaitTimeout

JOB_FAILED = 1
WRONG_USE = 2
GRAPH_INVALID = 3
NO_LIVE_SEAT = 4
TIMED_OUT = 124
INTERRUPTED = 130

EXITS = (
    "Exit codes: 0 done; 1 the job failed; 2 the command, a setting, the input or the server is at fault; "
    "3 the graph is invalid; 4 no live seat serves what the graph needs; 124 the time to wait is over; "
    "130 Ctrl-C."
)

_DEBUG = "gridq.debug"


def code_of(exc: GridError) -> int:
    """The exit code of an error that stopped a command (the error that ended a job is always 1)."""
    if isinstance(exc, GraphError):
        return GRAPH_INVALID
    if isinstance(exc, NoLiveSeat):
        return NO_LIVE_SEAT
    return TIMED_OUT if isinstance(exc, WaitTimeout) else WRONG_USE


def one_line(text: str) -> str:
    """`text` without line breaks and control characters: it may come from another machine."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))


def complain(exc: GridError) -> None:
    """Print `error: …` on stderr."""
    typer.echo(f"error: {one_line(str(exc))}", err=True)


@contextmanager
def job_errors(tell: Callable[[GridError], None] | None = None) -> Iterator[None]:
    """Within it a job is waited for: the error that ended it is printed and exits with JOB_FAILED.

    `tell` gets it first. What only stopped the waiting (the server, the time) passes.
    """
    try:
        yield
    except (BrokerError, WaitTimeout):
        raise
    except GridError as exc:
        if tell is not None:
            tell(exc)
        complain(exc)
        raise typer.Exit(JOB_FAILED) from None


class Commands(TyperGroup):
    """The group of all commands: a GridError becomes one line (`--debug`: a traceback) and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except GridError as exc:
            if ctx.meta.get(_DEBUG):
                import traceback

                traceback.print_exception(exc)
            complain(exc)
            raise typer.Exit(code_of(exc)) from None


def _set_debug(ctx: typer.Context, wanted: bool) -> bool:
    if wanted:
        ctx.meta[_DEBUG] = True
    return wanted


Debug = Annotated[bool, typer.Option("--debug", callback=_set_debug, help="Show the traceback of an error.")]
"""The option `--debug`, which every command takes."""
