"""`gridq seat log`: the attempts that ran on a seat, for whom and at what cost."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Annotated

import typer

from gridq.cli.exit_codes import EPILOG, DebugOption, JsonOption
from gridq.cli.grid import open_broker_client
from gridq.cli.inputs import parse_instant
from gridq.cli.output import (
    format_count,
    format_duration,
    format_local_time,
    format_money,
    make_console,
    make_table,
    print_json,
)
from gridq.protocol.queue_names import format_queue

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.table import Table

    from gridq.limits.ledger import Entry

DEFAULT_SINCE = "7d"


def log(
    seat: Annotated[
        str | None,
        typer.Argument(
            metavar="SEAT",
            help="A seat of this machine, or any seat by its full id. Default: all of this machine.",
            show_default=False,
        ),
    ] = None,
    *,
    since: Annotated[
        str,
        typer.Option("--since", metavar="TIME", help="Start: a date such as 2026-11-01, or an age: 12h, 7d."),
    ] = DEFAULT_SINCE,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=10_000, help="Maximum number of attempts.")
    ] = 50,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show the latest attempts on this machine's seats: for whom they ran, their outcome and cost, and the
    sums. The data come from the ledger, which holds no prompts and no answers.
    """
    from gridq.config.machine_id import get_machine_id
    from gridq.config.settings import settings
    from gridq.limits import ledger
    from gridq.limits.accounts import read_zone
    from gridq.store.connection import now_ms
    from gridq.views.report import SeatReport

    config = settings()
    wanted = seat if seat and "." in seat else f"{get_machine_id(config.home)}.{seat or ''}"
    entries: deque[Entry] = deque(maxlen=limit)
    sums, priced = SeatReport(wanted), False
    with open_broker_client(config) as client:
        zone = read_zone(client.redis, client.keys, config.timezone)
        start = parse_instant(since, "--since", zone, now_ms(client.redis))
        for entry in ledger.read_entries(client.redis, client.keys, since=start):
            whole = entry.seat.startswith(wanted) if seat is None else entry.seat == wanted
            if whole and entry.charged is not None:
                entries.append(entry)
                sums.add(entry)
                priced = priced or entry.cost is not None
    attempts = sums.recorded + sums.wasted_attempts
    used, wasted = (
        sums.get_if_priced(micro) if priced or not entries else None for micro in (sums.used, sums.wasted)
    )
    if json:
        print_json(
            {
                "since": start and start / 1000,
                "attempts": attempts,
                "recorded": sums.recorded,
                "used": used,
                "wasted": wasted,
                "tokens_in": sums.tokens_in,
                "tokens_out": sums.tokens_out,
                "gpu_seconds": sums.gpu_seconds,
                "entries": [entry.to_json() | {"micro_dollars": entry.cost} for entry in entries],
            }
        )
        return
    if not entries:
        typer.echo(f"Nothing has run on {wanted.removesuffix('.')} since {since}.", err=True)
        return
    make_console().print(make_log_table(entries))
    typer.echo(
        f"{format_count(attempts, 'attempt')}, {sums.recorded} recorded; used {format_money(used)}, "
        f"wasted {format_money(wasted)}; {sums.tokens_in} tokens in, {sums.tokens_out} out"
        + (f", {sums.gpu_seconds:.1f} GPU seconds." if sums.gpu_seconds else "."),
        err=True,
    )


def make_log_table(entries: Iterable[Entry]) -> Table:
    """Return a table with one row for each entry."""
    numbers = ("cost", "tokens", "took")
    table = make_table("time", "seat", "for", "queue", "job", "outcome", *numbers, numbers=numbers, gap=1)
    for entry in entries:
        table.add_row(
            format_local_time(entry.at / 1000),
            entry.seat.partition(".")[2],
            entry.agent or "-",
            format_queue(entry.queue) if entry.queue else "-",
            f"{entry.job[:8]} {entry.step}.{entry.attempt}",
            entry.what,
            format_money(entry.cost),
            f"{entry.tokens_in}+{entry.tokens_out}",
            format_duration(entry.ms),
        )
    return table


def add(to: typer.Typer) -> None:
    """Add the command to the group `gridq seat`."""
    to.command("log", epilog=EPILOG, short_help="Show what ran on this machine's seats, and its cost.")(log)
