"""`gridq worker` and `gridq join`: serve this machine's seats in a grid."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gridq.cli.exit_codes import EPILOG, DebugOption, JsonOption
from gridq.cli.output import print_json
from workers.cli.grid import NarrateOption, print_status, report

if TYPE_CHECKING:
    from workers.machine.seats import ProbeResult

app = typer.Typer()

SeatsOption = Annotated[
    list[str] | None,
    typer.Option("--seat", metavar="NAME", help="Serve only this seat. Can be repeated.", show_default=False),
]


@app.command(epilog=EPILOG, short_help="Serve this machine's seats.")
def worker(
    *,
    seat: SeatsOption = None,
    narrate: NarrateOption = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Probe this machine, then run a worker for each seat until Ctrl-C or SIGTERM.

    A worker that crashes is restarted. SIGTERM lets stages finish, for GRIDQ_DRAIN seconds. SIGHUP reloads
    the settings and seats.toml, and restarts only the workers that this affects.
    """
    run_worker(seat, json)


@app.command(epilog=EPILOG, short_help="Make this machine part of a grid.")
def join(
    url: Annotated[
        str,
        typer.Argument(metavar="URL", help="The grid's server: redis://HOST:PORT/0.", show_default=False),
    ],
    *,
    token: Annotated[
        str,
        typer.Option(
            "--token",
            metavar="TOKEN|@FILE|-",
            help="The token from gridq token create. @FILE or - (stdin) keeps it out of the process list.",
            show_default=False,
        ),
    ],
    start: Annotated[bool, typer.Option(help="Then start gridq worker.")] = True,
    seat: SeatsOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Check that this machine can join the grid at URL, write its configuration, and serve its seats.

    The checks cover the server, the token, the clock, the versions, the home folder and the machine's id. If
    one fails, nothing is written and the token can be used again.
    """
    from gridq.config.home import get_home_folder
    from gridq.config.settings import settings
    from workers.machine.join_tokens import JoinToken
    from workers.machine.joining import join as join_grid

    home = get_home_folder()
    done = join_grid(url, JoinToken.decode(_read_token(token)), home, warn=_print_warning)
    settings.cache_clear()
    if json and not start:
        print_json(
            {"server": done.server, "machine": done.machine, "config": str(done.config), "skew_s": done.skew}
        )
    elif not json:
        typer.echo(f"Joined {done.server} as machine {done.machine}. Configuration: {done.config}")
    if start:
        run_worker(seat, json)
    elif not json:
        typer.echo("To serve its seats: gridq worker")


def run_worker(names: list[str] | None, json: bool) -> None:
    from gridq.config.settings import settings
    from workers.supervisor import worker as seats_worker
    from workers.supervisor.status import format_started

    began = time.monotonic()

    def found(seats: ProbeResult) -> None:
        if json:
            return
        for each in seats.seats:
            note = f": {each.offer.note}" if each.offer.note else ""
            report(f"Found {each.name}, {each.offer.concurrency} slots{note}")
            if each.offer.notice:
                report(each.offer.notice)
        for why in seats.missing:
            report(f"Not found: {why}")

    def ready(state: dict[str, Any]) -> None:
        print_status(state, json, format_started(state, time.monotonic() - began))

    seats_worker.run(settings(), names or (), report=report, on_found=found, on_ready=ready)
    report("Stopped, nothing is left running")


def _read_token(token: str) -> str:
    """Return the token itself, the content of `@FILE`, or stdin for `-`."""
    from gridq.cli.inputs import read_bytes

    if token == "-":  # noqa: S105 stands for stdin
        return sys.stdin.read()
    if token.startswith("@"):
        return read_bytes(token[1:], "The token").decode("utf-8", "replace")
    return token


def _print_warning(line: str) -> None:
    typer.echo(f"warning: {line}", err=True)
