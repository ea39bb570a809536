"""`gridq queues` and `gridq models`: what waits where, and what can be asked for."""

from __future__ import annotations

import typer

from gridq.cli.exit_codes import EXITS, AsJson, Debug
from gridq.cli.grid import GridUrl, grid_of, place_of_grid, settings_for
from gridq.cli.output import console, echo_json, plain_table, took

app = typer.Typer()


@app.command(epilog=EXITS, short_help="Show what waits for which capability.")
def queues(grid: GridUrl = None, json: AsJson = False, debug: Debug = False) -> None:
    """Show each capability's queue: what waits in it by priority and how long the oldest has, what runs, the
    wake-ups (messages that wake a worker), the slots that take from it, and how many live seats serve it.
    """
    config = settings_for(grid)
    with grid_of(config) as client:
        found = client.queues()
    if json:
        echo_json([view.to_json() for view in found])
        return
    columns = ("interactive", "batch", "oldest", "running", "wake_ups", "concurrency", "seats")
    table = plain_table("queue", *columns, numbers=columns, named=True)
    for view in found:
        numbers = (view.running, view.wake_ups, view.concurrency, len(view.seats))
        oldest = "-" if view.oldest_ms is None else took(view.oldest_ms)
        waits = (str(view.pending["interactive"]), str(view.pending["batch"]), oldest)
        table.add_row(view.queue, *waits, *map(str, numbers))
    console().print(table)
    for view in found:
        if sum(view.pending.values()) and not view.concurrency:
            typer.echo(f"{view.queue} has work and nobody who takes it", err=True)


@app.command(epilog=EXITS, short_help="Show the models and other capabilities of the live seats.")
def models(grid: GridUrl = None, json: AsJson = False, debug: Debug = False) -> None:
    """Show what a stage can ask for now: each capability of the live seats, who serves it, and where its
    model is loaded already.
    """
    from gridq.seats.registry import offers_of

    config = settings_for(grid)
    with grid_of(config) as client:
        offers = offers_of(client.workers())
    if json:
        echo_json(offers)
        return
    if not offers:
        typer.echo(f"No live seat at {place_of_grid(config)} offers a capability of its own", err=True)
        return
    columns = ("capability", "loaded on", "seats", "slots free")
    table = plain_table(*columns, numbers=columns[-1:], named=True)
    for offer in offers:
        loaded = "\n".join(offer["loaded"]) or ("no" if offer["loads"] else "-")
        concurrency = f"{offer['free']}/{offer['concurrency']}"
        table.add_row(offer["queue"], loaded, "\n".join(offer["seats"]), concurrency)
    console().print(table)
