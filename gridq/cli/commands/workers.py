"""`gridq workers` and `gridq seats`: who is in the grid, in short and in full."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import typer

from gridq.cli.exit_codes import EPILOG, DebugOption, JsonOption
from gridq.cli.grid import GridOption, describe_grid, load_settings, open_client
from gridq.cli.output import (
    format_local_time,
    format_money,
    format_span,
    make_console,
    make_table,
    print_json,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from gridq.protocol.meters import Meter
    from gridq.seats.registry import LiveSeat

app = typer.Typer()


@app.command(epilog=EPILOG, short_help="Show who is in the grid.")
def workers(grid: GridOption = None, json: JsonOption = False, debug: DebugOption = False) -> None:
    """Show who is in the grid: every live seat, its slots, its queues, how it is."""
    _show(grid, json, routers=False)


@app.command(epilog=EPILOG, short_help="Show each seat's slots, budget, state and limits.")
def seats(grid: GridOption = None, json: JsonOption = False, debug: DebugOption = False) -> None:
    """Show every live seat in full, the routers' too: slots, what is left of its budgets, its state with
    since when, until when and why, and the numbers that its worker tells.
    """
    _show(grid, json, routers=True)


def _show(grid: str | None, json: bool, *, routers: bool) -> None:
    config = load_settings(grid)
    with open_client(config) as client:
        found = client.seats() if routers else client.workers()
    if json:
        print_json([seat.model_dump() for seat in found])
        return
    if not found:
        start = "To serve one: gridq worker, or celery -A workers worker --seat local"
        typer.echo(f"No seat is live at {describe_grid(config)}. {start}", err=True)
        return
    make_console().print(full_table(found) if routers else seats_table(found))
    shared = shared_table(found) if routers else None
    if shared is not None:
        typer.echo()
        make_console().print(shared)


def seats_table(seats: Sequence[LiveSeat]) -> Table:
    """One row for each seat, in short."""
    columns = ("seat", "kind", "concurrency", "queues", "state", "since")
    table = make_table(*columns, numbers=("concurrency", "since"), keep_first=True)
    for seat in seats:
        ready = f"ready: {seat.reason}" if seat.reason else "ready"
        state = ready if seat.state == "ready" else state_of(seat)
        age = format_span(time.time() - seat.started_at) if seat.started_at else "-"
        concurrency = f"{seat.busy}/{seat.concurrency}"
        table.add_row(seat.seat, seat.kind or "-", concurrency, "\n".join(seat.queues), state, age)
    return table


def full_table(seats: Sequence[LiveSeat]) -> Table:
    """One row for each seat, in full, but for the budgets that it shares."""
    columns = ("seat", "concurrency", "left", "of budget", "state", "tells")
    table = make_table(*columns, numbers=columns[1:4])
    for seat in seats:
        own = own_money(seat)
        numbers = [f"{name} {value:g}" for name, value in sorted(seat.metrics.items()) if name != "busy"]
        if seat.owner:
            numbers.insert(0, f"owner {seat.owner}")
        if seat.share is not None:
            numbers.append(f"lends {seat.share:.0%} of {_whole(seat)}")
        if seat.lends_to:
            numbers.append(f"lent to {', '.join(seat.lends_to)}")
        numbers += other_budgets(seat, shared=False)
        if seat.per_minute is not None:
            numbers.append(f"requests a minute {seat.per_minute}")
        if seat.reliability < 0.995:
            numbers.append(f"reliability {seat.reliability:.2f}")
        if seat.wake_ups:
            numbers.append(f"wake-ups {seat.wake_ups}")
        table.add_row(
            seat.seat,
            f"{seat.busy}/{seat.concurrency}",
            format_money(own.remaining if own else None),
            "subscription"
            if seat.capability.get("billing") == "subscription"
            else (in_window(own.limit, own.window) if own else "-"),
            state_of(seat),
            "\n".join(numbers),
        )
    return table


def shared_table(seats: Sequence[LiveSeat]) -> Table | None:
    """One row for each budget that owners, model families and the whole grid have, with the seats that it
    binds; None where there is none.
    """
    from gridq.protocol.meters import GRID, OWN, WHOLE_GRID, describe_account, format_local_time

    found: dict[tuple[str, str], tuple[Meter, list[str]]] = {}
    for seat in seats:
        for meter in seat.meters:
            if meter.account not in (OWN, GRID):
                _, bound = found.setdefault((meter.account, meter.name), (meter, []))
                bound.append(seat.seat + (f" in {', '.join(meter.queues)}" if meter.queues else ""))
    table = make_table("shared by", "left", "until", "binds")
    for meter, bound in found.values():
        table.add_row(
            describe_account(meter.account),
            meter.describe(),
            format_local_time(meter.resets_at) if meter.resets_at is not None else "-",
            "every seat" if meter.account == WHOLE_GRID else "\n".join(bound),
        )
    return table if found else None


def own_money(seat: LiveSeat) -> Meter | None:
    """Of a seat's own budgets of money, those of its machine and of the quotas file, the one with least
    left; what it shares with others is none of them.
    """
    from gridq.protocol.meters import GRID, OWN, find_tightest

    return find_tightest((meter for meter in seat.meters if meter.account in (OWN, GRID)), "money")


def in_window(micro: int | None, window: str) -> str:
    """`$0.50 a day`; of a month, as budgets mostly are, the amount alone."""
    from gridq.protocol.meters import describe_window

    return format_money(micro) + ("" if micro is None or window == "month" else describe_window(window))


def _whole(seat: LiveSeat) -> str:
    """What a share is lent of: the one budget of money, else all."""
    from gridq.protocol.meters import OWN

    windows = [meter.window for meter in seat.meters if meter.account == OWN and meter.resource == "money"]
    return in_window(seat.whole_budget, windows[0]) if len(windows) == 1 else "its budgets"


def other_budgets(seat: LiveSeat, *, shared: bool = True) -> list[str]:
    """What is left of every budget that binds a seat, but for its own of money with least left. `shared`: of
    those, too, that it shares with others.
    """
    from gridq.protocol.meters import GRID, OWN, describe_holder

    least = own_money(seat)
    words = []
    for meter in seat.meters:
        if meter is not least and (shared or meter.account in (OWN, GRID)):
            where = f" in {', '.join(meter.queues)}" if meter.queues else ""
            by = "" if meter.account == OWN else " by the quotas file" if meter.account == GRID else ""
            who = "" if describe_holder(meter, seat.seat) == seat.seat else f"{whose(meter, seat.seat)}{where}: "
            words.append(f"{who}{meter.describe()}{by}")
    return words


def state_of(seat: LiveSeat) -> str:
    """`degraded since 14:03:07 until 14:04:07: the key was refused`."""
    text = seat.state
    if seat.since:
        text += f" since {format_local_time(seat.since)}"
    if seat.until:
        text += f" until {format_local_time(seat.until)}"
    if seat.reason:
        text += f": {seat.reason}"
    if seat.rate_until:
        text += f"; no request until {format_local_time(seat.rate_until)}"
    return text + (" (its worker is silent)" if seat.stale else "")
