"""Show the queues: `gridq queues`."""

from __future__ import annotations

import typer

from gridq.cli.exit_codes import EPILOG, DebugOption, JsonOption
from gridq.cli.grid import GridOption, load_settings, open_client
from gridq.cli.output import format_duration, make_console, make_table, print_json
from gridq.protocol.queue_names import format_queue

app = typer.Typer()


@app.command(epilog=EPILOG, short_help="Show the queue of each capability.")
def queues(grid: GridOption = None, json: JsonOption = False, debug: DebugOption = False) -> None:
    """Show the queue of each capability: what waits in it, by priority and for how long, and what runs.

    It also shows the wake-ups (messages that wake a worker), the live seats that serve the queue, and their
    slots.
    """
    config = load_settings(grid)
    with open_client(config) as client:
        found = client.queues()
    if json:
        print_json([view.to_json() for view in found])
        return
    columns = ("interactive", "batch", "oldest", "running", "wake-ups", "slots", "seats")
    table = make_table("queue", *columns, numbers=columns, keep_first=True)
    for view in found:
        numbers = (view.running, view.wake_ups, view.concurrency, len(view.seats))
        oldest = "-" if view.oldest_ms is None else format_duration(view.oldest_ms)
        waiting = (str(view.pending["interactive"]), str(view.pending["batch"]), oldest)
        table.add_row(format_queue(view.queue), *waiting, *map(str, numbers))
    make_console().print(table)
    for view in found:
        if sum(view.pending.values()) and not view.concurrency:
            typer.echo(
                f"{format_queue(view.queue)} has waiting stages but no live seat that serves it", err=True
            )
