"""Turn errors into one line on stderr and an exit code that scripts can tell apart."""

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

EPILOG = (
    "Exit codes: 0 success; 1 the job failed, or an audit found a breach; 2 a wrong command, setting or "
    "input, or a problem with the server; 3 the graph is invalid; 4 no live seat has this name or serves "
    "what is needed; 5 no such job; 6 refused by a quota, a full queue, an unreachable deadline or a missing "
    "or invalid API key; 124 timed out; 130 interrupted by Ctrl-C. "
    'With --json, stdout holds one JSON document, for an error {"error": {…}}. The human-readable line '
    "goes to stderr either way."
)
"""The text below the help of every command."""

_OPTIONS = {
    "wait_for_seat": "--wait-for-seat",
    "queue_timeout": "--queue-timeout",
    "idempotency key": "--idempotency-key",
}
"""Job options that errors mention → their names on the command line."""


def get_exit_code(exc: GridError) -> int:
    """Return the exit code for an error that stopped a command.

    An error that ended a job always exits with 1.
    """
    if isinstance(exc, GraphError):
        return GRAPH_INVALID
    if isinstance(exc, NoLiveSeat):
        return NO_LIVE_SEAT
    if isinstance(exc, JobNotFound):
        return NO_SUCH_JOB
    if isinstance(exc, QuotaExceeded | QueueFull | DeadlineUnreachable | AuthError | KeyLimitReached):
        return REFUSED
    return TIMED_OUT if isinstance(exc, WaitTimeout) else WRONG_USE


def to_one_line(text: str) -> str:
    """Return `text` without line breaks and control characters, as it may come from another machine."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))


def print_error(exc: GridError) -> None:
    """Print `error: …` on stderr."""
    typer.echo(f"error: {to_one_line(str(use_option_names(exc)))}", err=True)


def use_option_names(exc: GridError) -> GridError:
    """Return `exc` with the names of job options in its fix replaced by those of the command line."""
    for name, option in _OPTIONS.items():
        if exc.fix and option not in exc.fix:
            exc.details["fix"] = exc.fix.replace(name, option)
    return exc


def print_json_error(exc: GridError, **more: object) -> None:
    """Print `{…, "error": …}` on stdout. `more` are further fields of the document."""
    from gridq.cli.output import print_json

    print_json({**more, "error": use_option_names(exc).to_record()})


@contextmanager
def exit_on_job_error(report: Callable[[GridError], None] | None = None) -> Iterator[None]:
    """Print the error that ends a job within the block, and exit with JOB_FAILED.

    `report` is called with the error first. Errors that only ended the waiting (the server, the API key, the
    timeout) propagate.
    """
    try:
        yield
    except (AuthError, BrokerError, KeyLimitReached, WaitTimeout):
        raise
    except GridError as exc:
        if report is not None:
            report(exc)
        print_error(exc)
        raise typer.Exit(JOB_FAILED) from None


class CommandGroup(TyperGroup):
    """The group of all commands. It turns a GridError into one line on stderr and an exit code.

    With `--debug` it also prints the traceback, with `--json` also an object on stdout.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _set_flag_defaults(self, ctx)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None:
            _set_flag_defaults(command, ctx)
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:
        # Not by callbacks of these options: typer would inspect each one, for each command, at every start.
        arguments = [*ctx._protected_args, *ctx.args]
        json, debug = "--json" in arguments, ctx.params.get("debug") or "--debug" in arguments
        try:
            return super().invoke(ctx)
        except UsageError as exc:
            if json:
                print_json_error(ConfigError(exc.format_message(), {"path": "command line"}))
            raise
        except (GridError, UnicodeEncodeError) as caught:
            # Bytes that are not UTF-8 can name a file, but the Redis client cannot encode them.
            error = caught if isinstance(caught, GridError) else ConfigError(
                "An argument is not UTF-8 text", {"path": "command line"}
            )  # fmt: skip
            if debug:
                import traceback

                traceback.print_exception(caught)
            if json:
                print_json_error(error)
            print_error(error)
            raise typer.Exit(get_exit_code(error)) from None


def _set_flag_defaults(command: Any, ctx: Any) -> None:
    """Make typer's own flags, such as `--help`, default to False.

    They default to None, for which typer builds a validator and imports pydantic: 0.1 s of a short command.
    """
    for param in command.get_params(ctx):
        if param.default is None and getattr(param, "is_bool_flag", False) and not param.expose_value:
            param.default = False


DebugOption = Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")]
"""The option `--debug` of every command."""

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
"""The option `--json` of every command that prints a result."""
