"""`gridq drain`: an operator takes a live seat out of work, and puts it back."""

from __future__ import annotations

import difflib
import time
from typing import TYPE_CHECKING, Annotated

import typer

from gridq.cli.completion import seat_names
from gridq.cli.exit_codes import EXITS, AsJson, Debug
from gridq.cli.grid import client_of
from gridq.cli.output import echo_json
from gridq.errors import NoLiveSeat, WaitTimeout

if TYPE_CHECKING:
    from gridq.client import BrokerClient

app = typer.Typer()

OBEYED = 10.0
"""Seconds within which a live seat obeys; its worker renews each second."""


@app.command(epilog=EXITS, short_help="Let a seat take nothing more, until --undo.")
def drain(
    seat: Annotated[
        str,
        typer.Argument(
            metavar="SEAT",
            help="The seat, as machine.name; its name alone where only one is called so.",
            autocompletion=seat_names,
            show_default=False,
        ),
    ],
    undo: Annotated[bool, typer.Option("--undo", help="Let it take work again.")] = False,
    json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Let a live seat take nothing more: what runs on it goes on, what waits goes to others. It holds though
    the worker is restarted, until --undo. A seat of this name that is not live is not drained.

    What only this seat could do waits, and is refused to new jobs.
    """
    from gridq.config.settings import settings

    with client_of(settings()) as client:
        live = [each.seat for each in client.workers()]
        name = seat if undo and _drained(client, seat) else resolve(live, seat)
        _tell(client, name, undo)
        busy = _obeyed(client, name)
    if json:
        echo_json({"seat": name, "drained": not undo, "busy": busy})
    elif undo:
        typer.echo(f"{name} takes work again")
    else:
        typer.echo(f"{name} takes nothing more until: gridq drain {name} --undo")
        if busy:
            typer.echo(f"{busy} stage{'' if busy == 1 else 's'} still run there", err=True)


def _drained(client: BrokerClient, seat: str) -> bool:
    from gridq.store.connection import translated

    with translated(client.url):
        return bool(client.redis.exists(client.keys("drain", seat)))


def _tell(client: BrokerClient, seat: str, undo: bool) -> None:
    from gridq.seats import registry
    from gridq.store.connection import translated

    with translated(client.url):
        if undo:
            registry.undrain(client.redis, client.keys, seat)
        else:
            registry.drain(client.redis, client.keys, seat)


def resolve(live: list[str], given: str) -> str:
    """The id of the one of the `live` seats that `given` means. NoLiveSeat: none, or several, are."""
    if given in live:
        return given
    called = [seat for seat in live if seat.partition(".")[2] == given]
    if len(called) == 1:
        return called[0]
    near = called or difflib.get_close_matches(given, live, 3, 0.6)
    few = f"{len(called)} live seats are called {given!r}" if called else f"No live seat is called {given!r}"
    raise NoLiveSeat(
        few,
        {
            "path": given,
            "expected": "one of " + ", ".join(live) if live else "a live seat, and there is none",
            "fix": "name it in full: " + " or ".join(near) if near else "look with: gridq seats",
        },
    )


def _obeyed(client: BrokerClient, name: str) -> int:
    """How many stages run on the seat, once it is seen to obey; it may have gone meanwhile."""
    until = time.monotonic() + OBEYED
    while True:
        seat = next((each for each in client.workers() if each.seat == name), None)
        if seat is None or seat.obeys:
            return 0 if seat is None else seat.busy
        if time.monotonic() > until:
            raise WaitTimeout(
                f"The seat {name} has not obeyed yet",
                {"reason": "its worker does not renew", "fix": "look at it with: gridq seats"},
            )
        time.sleep(0.1)
