"""`gridq up`, `gridq down`, `gridq status`: run a whole grid on this machine."""

from __future__ import annotations

import os
import time
from typing import Annotated, Any

import typer

from gridq.cli.exit_codes import EPILOG, DebugOption, JsonOption
from gridq.cli.output import print_json

NOT_RUNNING = 3
"""The exit code of `gridq status` where nothing of this home runs."""

STATUS_EPILOG = (
    "Exit codes: 0 gridq up or gridq worker runs in this home; 2 a setting is invalid; 3 neither runs (the "
    "server's state is shown all the same)."
)

app = typer.Typer()


def _narrate(enabled: bool) -> bool:
    if enabled:
        os.environ["GRIDQ_NARRATE"] = "1"  # for this process and all that it starts
    return enabled


NarrateOption = Annotated[
    bool,
    typer.Option("--narrate", callback=_narrate, help="Log in sentences what happens to jobs and seats."),
]
"""The option `--narrate` of commands that start programs of the grid."""


@app.command(epilog=EPILOG, short_help="Run a whole grid on this machine.")
def up(
    *,
    seat: Annotated[
        list[str] | None,
        typer.Option(
            "--seat", metavar="NAME", help="Serve only this seat. Can be repeated.", show_default=False
        ),
    ] = None,
    routers: Annotated[int, typer.Option("--routers", min=1, max=32, help="Number of routers.")] = 1,
    flower: Annotated[bool, typer.Option(help="Start Flower.")] = True,
    gateway: Annotated[bool, typer.Option(help="Start a gateway, the grid's HTTP API.")] = True,
    detach: Annotated[
        bool, typer.Option("--detach", help="Run in the background; gridq down stops it.")
    ] = False,
    narrate: NarrateOption = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Run a server, routers, a worker for each seat of this machine, a gateway and Flower until Ctrl-C or
    SIGTERM.

    In every other shell of this user, gridq finds the grid without configuration. Programs that crash are
    restarted. The server listens only on this machine and keeps its data in the home folder. If
    GRIDQ_BROKER_URL or config.toml names a server, that one is used instead.
    """
    from gridq.config.settings import settings
    from workers.supervisor import up as grid

    began = time.monotonic()
    options = grid.UpOptions(tuple(seat or ()), routers, flower, gateway)

    def ready(state: dict[str, Any]) -> None:
        from workers.supervisor.status import format_started

        print_status(state, json, format_started(state, time.monotonic() - began, here=not detach))

    if detach:
        ready(grid.start_detached(settings(), options))
        return
    grid.run(settings(), options, report=report, on_ready=ready)
    report("Stopped, nothing is left running")


@app.command(epilog=EPILOG, short_help="Stop the grid that gridq up runs.")
def down(
    *,
    now: Annotated[bool, typer.Option("--now", help="Hand running stages back instead of waiting.")] = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Stop the `gridq up` of this home folder, and wait until all its programs have ended. Its data is kept.

    It is not an error if none is running. A `gridq worker` is not stopped, but named.
    """
    from gridq.config.home import get_home_folder
    from workers.supervisor.down import stop_grid

    home = get_home_folder()
    done = stop_grid(home, now=now)
    if json:
        print_json(done)
        return
    for name in done["killed"]:
        typer.echo(f"Killed {name}")
    if done["pid"] is None:
        typer.echo(f"gridq up does not run in {home}")
    else:
        typer.echo(f"Stopped process {done['pid']} with {', '.join(done['parts'])}")
    if done["left"] is not None:
        typer.echo(f"gridq worker goes on, as process {done['left']}. To stop it: kill {done['left']}")


@app.command(epilog=STATUS_EPILOG, short_help="Show what runs on this machine, and the grid.")
def status(json: JsonOption = False, debug: DebugOption = False) -> None:
    """Show the programs that run on this machine, the server, the grid's live seats and the number
    of jobs.
    """
    from gridq.config.home import GRID_RECORD, WORKER_RECORD, get_home_folder, read_running_record
    from workers.supervisor.control_socket import query

    home = get_home_folder()
    records = (query(home, name) or read_running_record(home, name) for name in (GRID_RECORD, WORKER_RECORD))
    states = [record for record in records if record]
    answer = next((state for state in states if "grid" in state), None)
    found, url = (answer["grid"], answer["server"]) if answer else _read_configured_grid()
    if json:
        private = ("grid", "broker_url")
        parts = [{name: value for name, value in s.items() if name not in private} for s in states]
        print_json({"running": parts, "url": url, "grid": found})
    else:
        from workers.supervisor import status as texts

        if not states:
            typer.echo(f"Nothing runs in {home}. To start a grid: gridq up. To serve seats: gridq worker\n")
        for state in states:
            typer.echo(texts.format_program(state))
        typer.echo(texts.format_grid(found, url))
    if not states:
        raise typer.Exit(NOT_RUNNING)


def report(line: str) -> None:
    """Print one line with the time on stderr. A terminal that has gone is no reason to stop."""
    try:
        typer.echo(f"{time.strftime('%H:%M:%S')} {line}", err=True)
    except OSError:
        return


def print_status(state: dict[str, Any], json: bool, text: str) -> None:
    """Print on stdout what runs, as JSON or as `text`."""
    try:
        if json:
            print_json(state)
        else:
            typer.echo(f"\n{text}\n")
    except OSError:
        return


def _read_configured_grid() -> tuple[dict[str, Any], str]:
    """Return the state of the grid on the configured server, and the server's address."""
    from gridq.config.settings import settings
    from gridq.store.connection import connect, redact_url
    from gridq.store.keys import Keys
    from workers.supervisor.status import read_grid

    config = settings()
    url = config.get_broker_url()
    with connect(url, name="gridq-status", timeout=2.0, retry=False) as client:
        return read_grid(client, Keys(config.prefix), url), redact_url(url)
