"""Take a live seat out of work, and put it back: `gridq drain`."""

from __future__ import annotations

import difflib
import time
from typing import TYPE_CHECKING, Annotated

import typer

from gridq.cli.completion import complete_seat_names
from gridq.cli.exit_codes import EPILOG, DebugOption, JsonOption
from gridq.cli.grid import open_broker_client
from gridq.cli.output import format_count, print_json
from gridq.errors import NoLiveSeat, WaitTimeout

if TYPE_CHECKING:
    from gridq.client import BrokerClient

app = typer.Typer()

CONFIRM_TIMEOUT_SECONDS = 10.0
"""The time within which a live seat confirms the change; its worker renews its lease every second."""

SeatArgument = Annotated[
    str,
    typer.Argument(
        metavar="SEAT",
        help="Seat, as machine.name; the name alone if it is unique.",
        autocompletion=complete_seat_names,
        show_default=False,
    ),
]


@app.command(epilog=EPILOG, short_help="Stop a seat from taking work, until --undo.")
def drain(
    seat: SeatArgument,
    undo: Annotated[bool, typer.Option("--undo", help="Let the seat take work again.")] = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Stop a live seat from taking work. Running stages finish, waiting ones go to other seats.

    The seat stays drained, even across restarts of its worker, until you run the command with --undo. Stages
    that only this seat can run wait, and new jobs that need it are refused.
    """
    from gridq.config.settings import settings
    from gridq.seats import registry

    with open_broker_client(settings()) as client:
        live = [each.seat for each in client.workers()]
        is_drained = client.redis.exists(client.keys("drain", seat))
        name = seat if undo and is_drained else resolve_seat(live, seat)
        (registry.undrain if undo else registry.drain)(client.redis, client.keys, name)
        busy = _await_confirmation(client, name)
    if json:
        print_json({"seat": name, "drained": not undo, "busy": busy})
    elif undo:
        typer.echo(f"{name} takes work again")
    else:
        typer.echo(f"{name} takes no more work until: gridq drain {name} --undo")
        if busy:
            typer.echo(f"{format_count(busy, 'stage')} still running there", err=True)


def resolve_seat(live: list[str], name: str) -> str:
    """Return the id of the one of the `live` seats that has this id or name.

    Raises NoLiveSeat if no seat has it, or several have.
    """
    if name in live:
        return name
    matches = [seat for seat in live if seat.partition(".")[2] == name]
    if len(matches) == 1:
        return matches[0]
    similar = matches or difflib.get_close_matches(name, live, 3, 0.6)
    raise NoLiveSeat(
        f"{len(matches)} live seats are called {name!r}" if matches else f"No live seat is called {name!r}",
        {
            "path": name,
            "expected": "one of " + ", ".join(live) if live else "a live seat, but no seat is live",
            "fix": "use the full name: " + " or ".join(similar) if similar else "list the seats: gridq seats",
        },
    )


def _await_confirmation(client: BrokerClient, name: str) -> int:
    """Wait until the seat follows the change or is gone, and return how many stages still run on it.

    Raises WaitTimeout if neither happens within CONFIRM_TIMEOUT_SECONDS.
    """
    deadline = time.monotonic() + CONFIRM_TIMEOUT_SECONDS
    while True:
        seat = next((each for each in client.workers() if each.seat == name), None)
        if seat is None or seat.drain_acknowledged:
            return 0 if seat is None else seat.busy
        if time.monotonic() > deadline:
            raise WaitTimeout(
                f"The seat {name} has not confirmed the change yet",
                {"reason": "its worker does not renew its lease", "fix": "check its state: gridq seats"},
            )
        time.sleep(0.1)
