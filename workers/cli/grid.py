"""`gridq up`, `gridq down`, `gridq status`: a whole grid on this machine."""

from __future__ import annotations

import os
import time
from typing import Annotated, Any

import typer

from gridq.cli.exit_codes import EPILOG, DebugOption, JsonOption
from gridq.cli.output import print_json

NOTHING_RUNS = 3
"""The exit code of `gridq status` where nothing of this home runs."""

STATUS_EXITS = (
    "Exit codes: 0 gridq up or gridq worker runs in this home; 2 a setting is at fault; 3 neither runs (what "
    "is known of the server is shown all the same)."
)

app = typer.Typer()


def _narrate(wanted: bool) -> bool:
    if wanted:
        os.environ["GRIDQ_NARRATE"] = "1"  # for this process's settings and those of all that it starts
    return wanted


Narrate = Annotated[
    bool,
    typer.Option(
        "--narrate", callback=_narrate, help="Tell in the logs, in sentences, what happens to jobs and seats."
    ),
]
"""The option `--narrate` of commands that start programs of the grid."""


@app.command(epilog=EPILOG, short_help="Start a whole grid on this machine, and keep it running.")
def up(
    *,
    seat: Annotated[
        list[str] | None,
        typer.Option(
            "--seat", metavar="NAME", help="Serve only this seat; repeat for more.", show_default=False
        ),
    ] = None,
    routers: Annotated[int, typer.Option("--routers", min=1, max=32, help="How many routers.")] = 1,
    flower: Annotated[bool, typer.Option(help="Start Flower too.")] = True,
    gateway: Annotated[bool, typer.Option(help="Start a gateway too: the grid over HTTP.")] = True,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return once the grid is up; gridq down ends it.")
    ] = False,
    narrate: Narrate = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Start a server, routers, a worker for each seat of this machine, a gateway and Flower, until Ctrl-C or
    SIGTERM.

    Every other shell of this user finds the grid without a setting. What crashes is started again. The server
    listens on this machine alone and keeps its data in the home folder; where GRIDQ_BROKER_URL or config.toml
    there names a server, that one is used instead.
    """
    from gridq.config.settings import settings
    from workers.supervisor import up as grid

    began = time.monotonic()
    wanted = grid.UpOptions(tuple(seat or ()), routers, flower, gateway)

    def ready(state: dict[str, Any]) -> None:
        from workers.supervisor.status import format_started

        show(state, json, format_started(state, time.monotonic() - began, here=not detach))

    if detach:
        ready(grid.start_detached(settings(), wanted))
        return
    grid.run(settings(), wanted, report=report, on_ready=ready)
    report("Stopped, nothing is left running")


@app.command(epilog=EPILOG, short_help="End the grid that gridq up started.")
def down(
    *,
    now: Annotated[bool, typer.Option("--now", help="Do not wait for what runs: it is handed back.")] = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """End the `gridq up` of this home, in order, and wait until nothing of it is left. Its data stay.

    Where none runs, that is said, and is no error.
    """
    from gridq.config.home import get_home_folder
    from workers.supervisor.down import stop_grid

    home = get_home_folder()
    done = stop_grid(home, now=now)
    if json:
        print_json(done)
        return
    for name in done["killed"]:
        typer.echo(f"killed: {name}")
    if done["pid"] is None:
        typer.echo(f"No gridq up runs in {home}")
    else:
        typer.echo(f"Stopped process {done['pid']} with {', '.join(done['parts'])}; nothing is left running")


@app.command(epilog=STATUS_EXITS, short_help="Show what of the grid runs on this machine.")
def status(json: JsonOption = False, debug: DebugOption = False) -> None:
    """Show the parts that run here, the server, the live seats of the grid and how many jobs there are."""
    from gridq.config.home import GRID, WORKER, get_home_folder, read_running_record
    from workers.supervisor.control_socket import query

    home = get_home_folder()
    states = [state for name in (GRID, WORKER) if (state := query(home, name) or read_running_record(home, name))]
    told = next((state for state in states if "grid" in state), None)
    found, url = (told["grid"], told["server"]) if told else _elsewhere()
    if json:
        private = ("grid", "broker_url")
        parts = [{name: value for name, value in s.items() if name not in private} for s in states]
        print_json({"running": parts, "url": url, "grid": found})
    else:
        from workers.supervisor import status as texts

        if not states:
            typer.echo(f"Nothing runs in {home}. To start a grid: gridq up; to serve in one: gridq worker\n")
        for state in states:
            typer.echo(texts.format_program(state))
        typer.echo(texts.format_grid(found, url))
    if not states:
        raise typer.Exit(NOTHING_RUNS)


def report(line: str) -> None:
    """One line on stderr with the time; where the terminal has gone, that is no reason to stop."""
    try:
        typer.echo(f"{time.strftime('%H:%M:%S')} {line}", err=True)
    except OSError:
        return


def show(state: dict[str, Any], json: bool, text: str) -> None:
    """What runs, on stdout."""
    try:
        if json:
            print_json(state)
        else:
            typer.echo(f"\n{text}\n")
    except OSError:
        return


def _elsewhere() -> tuple[dict[str, Any], str]:
    """The grid on the server that the settings name, and its address."""
    from gridq.config.settings import settings
    from gridq.store.connection import connect, safe_url
    from gridq.store.keys import Keys
    from workers.supervisor.status import read_grid

    config = settings()
    url = config.broker_url.get_secret_value()
    with connect(url, name="gridq-status", timeout=2.0, retry=False) as client:
        return read_grid(client, Keys(config.prefix), url), safe_url(url)
