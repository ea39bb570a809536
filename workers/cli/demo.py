"""`gridq demo` and `gridq probe`: try a grid on this machine, and see what the machine offers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gridq.cli.exit_codes import EPILOG, DebugOption, JsonOption
from gridq.cli.output import make_console, make_table, print_json
from gridq.protocol import queue_names

if TYPE_CHECKING:
    from rich.table import Table

    from workers.machine.seats import ProbeResult


app = typer.Typer()


@app.command(epilog=EPILOG, short_help="Run one graph on a whole grid on this machine.")
def demo(
    *,
    graph: Annotated[
        str | None,
        typer.Option(
            "--graph",
            metavar="FILE",
            help="Your own graph. Default: a briefing from four notes.",
            show_default=False,
        ),
    ] = None,
    input: Annotated[
        str | None,
        typer.Option(
            "--input",
            "-i",
            metavar="JSON|@FILE|-",
            help="Input of the graph. Default: four notes.",
            show_default=False,
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine",
            metavar="NAME",
            help="Engine: llama_cpp or xllamacpp. Default: GRIDQ_ENGINE, else the installed one.",
            show_default=False,
        ),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the grid's folder and logs.")] = False,
    debug: DebugOption = False,
) -> None:
    """Run one graph on a whole grid on this machine, and show where each stage ran.

    A server, a router and two workers are started in a temporary folder and stopped at the end. ~/.gridq is
    not touched.
    """
    from gridq.cli.inputs import read_graph, read_input
    from workers.demo import GRAPH, NOTES
    from workers.demo.show import run_demo

    run_demo(
        read_graph(graph or str(GRAPH)),
        read_input(f"@{NOTES}" if input is None else input),
        engine=engine,
        needs_model=graph is None,
        keep=keep,
    )


@app.command(epilog=EPILOG, short_help="Show the seats that this machine can offer.")
def probe(json: JsonOption = False, debug: DebugOption = False) -> None:
    """Show the seats that this machine can offer, what was not found and why, and what its owner could also
    lend.

    No stage runs and no model is called.
    """
    from gridq.config.settings import settings
    from gridq.profiles.profile import load_profiles
    from workers.machine.probing import probe_machine

    config = settings()
    found = probe_machine(config, load_profiles(config.profiles))
    if json:
        seats = [{**each.offer.model_dump(exclude={"config"}), "queues": each.queues} for each in found.seats]
        print_json({"seats": seats, "missing": found.missing, "not_lent": found.not_lent})
        return
    out = make_console()
    out.print(make_seats_table(found))
    notices = [seat.offer.notice for seat in found.seats if seat.offer.notice]
    if notices:
        out.print("\nLent without a table in seats.toml:")
        for notice in notices:
            out.print(f"  - {notice}", markup=False)
    if found.missing:
        out.print("\nNot found:")
        for why in found.missing:
            out.print(f"  - {why}")
    if found.not_lent:
        out.print("\nFound, not lent:")
        for what in found.not_lent:
            first, *lines = what.splitlines()
            out.print(f"  - {first}")
            for line in lines:
                out.print(f"      {line}")
    out.print(f"\nTo serve them: gridq worker. Only one: gridq worker --seat {found.seats[-1].name}")


def make_seats_table(found: ProbeResult) -> Table:
    columns = ("seat", "kind", "slots", "queues", "description")
    table = make_table(*columns, numbers=("slots",), keep_first=True)
    for seat in found.seats:
        offer = seat.offer
        queues = "\n".join(queue_names.format_offered(seat.queues))
        table.add_row(offer.name, offer.kind, str(offer.concurrency), queues, offer.note)
    return table
