"""How a command ends: one line for an error, and a code that a script can tell apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer._click.exceptions import UsageError
from typer.core import TyperGroup

from gridq.errors import (
    AuthError,
    BrokerError,
    ConfigError,
    DeadlineUnreachable,
    GraphError,
    GridError,
    JobNotFound,
    KeyLimitReached,
    NoLiveSeat,
    QueueFull,
    QuotaExceeded,
    WaitTimeout,
)

JOB_FAILED = 1
BREACH = 1
WRONG_USE = 2
GRAPH_INVALID = 3
NO_LIVE_SEAT = 4
NO_SUCH_JOB = 5
REFUSED = 6
TIMED_OUT = 124
INTERRUPTED = 130

EXITS = (
    "Exit codes: 0 done; 1 the job failed, or an audit found a breach; 2 the command, a setting, the input "
    "or the server is at fault; 3 the graph is invalid; 4 no live seat serves what is needed, or is called "
    "so; 5 there is no such job; 6 refused by a quota, a full queue, a deadline out of reach or for want of "
    "a good API key; 124 the time to wait is over; 130 Ctrl-C. "
    'With --json stdout holds one JSON document, of an error {"error": {…}}; the line for '
    "people is on stderr all the same."
)

_OPTIONS = {
    "wait_for_seat": "--wait-for-seat",
    "queue_timeout": "--queue-timeout",
    "idempotency key": "--idempotency-key",
}
"""Options of a job whose name errors mention, and what the command line calls them."""


def code_of(exc: GridError) -> int:
    """The exit code of an error that stopped a command (the error that ended a job is always 1)."""
    if isinstance(exc, GraphError):
        return GRAPH_INVALID
    if isinstance(exc, NoLiveSeat):
        return NO_LIVE_SEAT
    if isinstance(exc, JobNotFound):
        return NO_SUCH_JOB
    if isinstance(exc, QuotaExceeded | QueueFull | DeadlineUnreachable | AuthError | KeyLimitReached):
        return REFUSED
    return TIMED_OUT if isinstance(exc, WaitTimeout) else WRONG_USE


def one_line(text: str) -> str:
    """`text` without line breaks and control characters: it may come from another machine."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))


def complain(exc: GridError) -> None:
    """Print `error: …` on stderr."""
    typer.echo(f"error: {one_line(str(in_our_words(exc)))}", err=True)


def in_our_words(exc: GridError) -> GridError:
    """`exc`, naming the command line's options where it names a job's."""
    for name, option in _OPTIONS.items():
        if exc.fix and option not in exc.fix:
            exc.details["fix"] = exc.fix.replace(name, option)
    return exc


def tell_json(exc: GridError, **more: object) -> None:
    """Print `{…, "error": …}` on stdout."""
    from gridq.cli.output import echo_json

    echo_json({**more, "error": in_our_words(exc).to_record()})


@contextmanager
def job_errors(tell: Callable[[GridError], None] | None = None) -> Iterator[None]:
    """Within it a job is waited for: the error that ended it is printed and exits with JOB_FAILED.

    `tell` gets it first. What only stopped the waiting (the server, the key, the time) passes.
    """
    try:
        yield
    except (AuthError, BrokerError, KeyLimitReached, WaitTimeout):
        raise
    except GridError as exc:
        if tell is not None:
            tell(exc)
        complain(exc)
        raise typer.Exit(JOB_FAILED) from None


class Commands(TyperGroup):
    """The group of all commands: a GridError becomes one line (`--debug`: a traceback), with `--json` also an
    object on stdout, and an exit code.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _plain_flags(self, ctx)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None:
            _plain_flags(command, ctx)
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:
        # Not by callbacks of the options: typer would inspect each callback of each command at every start.
        given = [*ctx._protected_args, *ctx.args]
        json, debug = "--json" in given, ctx.params.get("debug") or "--debug" in given
        try:
            return super().invoke(ctx)
        except UsageError as exc:
            if json:
                tell_json(ConfigError(exc.format_message(), {"path": "command line"}))
            raise
        except (GridError, UnicodeEncodeError) as caught:
            # Bytes that are no text may name a file, but no job, seat or key: the server's client stumbles.
            error = caught if isinstance(caught, GridError) else ConfigError(
                "An argument is not UTF-8 text", {"path": "command line"}
            )  # fmt: skip
            if debug:
                import traceback

                traceback.print_exception(caught)
            if json:
                tell_json(error)
            complain(error)
            raise typer.Exit(code_of(error)) from None


def _plain_flags(command: Any, ctx: Any) -> None:
    """Let typer's own flags, such as `--help`, be False where they are not given.

    They would be None, for which typer makes a validator and imports pydantic: 0.1 s of a short command.
    """
    for param in command.get_params(ctx):
        if param.default is None and getattr(param, "is_bool_flag", False) and not param.expose_value:
            param.default = False


Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
"""The option `--debug`, which every command takes."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
"""The option `--json`, which every command takes that prints something for programs."""
