"""`gridq workers`: the live seats."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import typer

from gridq.cli.exits import EXITS, Debug
from gridq.cli.inputs import AsJson
from gridq.cli.output import console, echo_json, plain_table
from gridq.cli.server import client_of

if TYPE_CHECKING:
    from rich.table import Table

    from gridq.client import Client
    from gridq.protocol import Advertisement

app = typer.Typer()


@app.command(epilog=EXITS, short_help="Show the live seats.")
def workers(json: AsJson = False, debug: Debug = False) -> None:
    """Show who is in the grid: every live seat, its lanes, its queues, how it is."""
    from gridq.settings import settings
    from gridq.store.connection import safe_url

    config = settings()
    with client_of(config) as client:
        seats = client.workers()
        busy = busy_lanes(client, seats)
    if json:
        echo_json([{**seat.model_dump(), "busy": busy[seat.seat]} for seat in seats])
        return
    if not seats:
        url = safe_url(config.broker_url.get_secret_value())
        typer.echo(f"No seat is live at {url}. To serve one: celery -A workers worker --seat local", err=True)
        return
    console().print(seats_table(seats, busy))


def busy_lanes(client: Client, seats: list[Advertisement]) -> dict[str, int]:
    """How many lanes of each seat hold a stage now; what it advertises is as old as its last heartbeat."""
    from gridq.store.connection import translated

    with translated(client.url):
        look = client.redis.pipeline(transaction=False)
        for seat in seats:
            look.hlen(client.keys("held", seat.seat))
        return dict(zip((seat.seat for seat in seats), look.execute(), strict=True))


def seats_table(seats: list[Advertisement], busy: Mapping[str, int]) -> Table:
    """One row for each seat; `busy` is how many of its lanes are."""
    table = plain_table("seat", "kind", "lanes", "queues", "state", "since", numbers=("lanes", "since"))
    for seat in seats:
        state = f"{seat.state}: {seat.reason}" if seat.reason else seat.state
        table.add_row(
            seat.seat,
            seat.kind,
            f"{busy.get(seat.seat, 0)}/{seat.lanes}",
            "\n".join(seat.queues),
            state,
            span(time.time() - seat.started_at),
        )
    return table


def span(seconds: float) -> str:
    """A time span in its largest unit: `45 s`, `3 min`, `5 h`, `12 d`."""
    seconds = max(seconds, 0)
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"
