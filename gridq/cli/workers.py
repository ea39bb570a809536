"""`gridq workers`: the live seats."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import typer

from gridq.cli.exits import EXITS, Debug
from gridq.cli.inputs import AsJson
from gridq.cli.output import console, echo_json, plain_table

if TYPE_CHECKING:
    from rich.table import Table

    from gridq.protocol import Advertisement

app = typer.Typer()


@app.command(epilog=EXITS, short_help="Show the live seats.")
def workers(json: AsJson = False, debug: Debug = False) -> None:
    """Show who is in the grid: every live seat, its lanes, its queues, how it is."""
    from gridq.client import Client
    from gridq.settings import settings
    from gridq.store.connection import safe_url

    client = Client()
    try:
        seats = client.workers()
    finally:
        client.close()
    if json:
        echo_json([seat.model_dump() for seat in seats])
        return
    if not seats:
        url = safe_url(settings().broker_url.get_secret_value())
        typer.echo(f"No seat is live at {url}. To serve one: celery -A workers worker --seat local", err=True)
        return
    console().print(seats_table(seats))


def seats_table(seats: list[Advertisement]) -> Table:
    """One row for each seat."""
    table = plain_table("seat", "kind", "lanes", "queues", "state", "since", numbers=("lanes", "since"))
    for seat in seats:
        busy = int(seat.metrics.get("busy", 0))
        state = f"{seat.state}: {seat.reason}" if seat.reason else seat.state
        table.add_row(
            seat.seat,
            seat.kind,
            f"{busy}/{seat.lanes}",
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
