"""Show the live seats, in short and in full: `gridq workers`, `gridq seats`."""

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
from gridq.protocol import queue_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from gridq.protocol.meters import Meter
    from gridq.protocol.models import ModelCooldown
    from gridq.seats.registry import LiveSeat

app = typer.Typer()


@app.command(epilog=EPILOG, short_help="Show who is in the grid.")
def workers(grid: GridOption = None, json: JsonOption = False, debug: DebugOption = False) -> None:
    """Show who is in the grid: every live seat with its slots, its queues and its state."""
    _show(grid, json, routers=False)


@app.command(epilog=EPILOG, short_help="Show each seat in full: slots, budgets, state, metrics.")
def seats(grid: GridOption = None, json: JsonOption = False, debug: DebugOption = False) -> None:
    """Show every live seat in full, including the routers': slots, remaining budgets, state, and metrics.

    Each state comes with its reason, since when it applies and until when. The metrics are those that the
    worker reports.
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
        fix = "start one: gridq worker, or celery -A workers worker --seat local"
        typer.echo(f"No seat is live at {describe_grid(config)}. Fix: {fix}", err=True)
        return
    make_console().print(make_full_table(found) if routers else make_seats_table(found))
    shared = make_shared_table(found) if routers else None
    if shared is not None:
        typer.echo()
        make_console().print(shared)


def make_seats_table(seats: Sequence[LiveSeat]) -> Table:
    """Return a table with one short row for each seat."""
    columns = ("seat", "kind", "slots", "queues", "state", "uptime")
    table = make_table(*columns, numbers=("slots", "uptime"), keep_first=True)
    for seat in seats:
        ready = f"ready: {seat.reason}" if seat.reason else "ready"
        state = ready if seat.state == "ready" else format_state(seat)
        age = format_span(time.time() - seat.started_at) if seat.started_at else "-"
        slots = f"{seat.busy}/{seat.concurrency}"
        queues = "\n".join(queue_names.format_offered(seat.queues))
        table.add_row(seat.seat, seat.kind or "-", slots, queues, state, age)
    return table


def make_full_table(seats: Sequence[LiveSeat]) -> Table:
    """Return a table with one full row for each seat, without the budgets that it shares with others."""
    columns = ("seat", "slots", "left", "of budget", "state", "metrics")
    table = make_table(*columns, numbers=columns[1:4])
    for seat in seats:
        own = get_own_money_meter(seat)
        numbers = [
            f"{name} {_format_metric(name, value)}"
            for name, value in sorted(seat.metrics.items())
            if name != "busy"
        ]
        if seat.owner:
            numbers.insert(0, f"owner {seat.owner}")
        if seat.share is not None:
            numbers.append(f"lends {seat.share:.0%} of {_format_whole_budget(seat)}")
        if seat.lends_to:
            numbers.append(f"lent to {', '.join(seat.lends_to)}")
        numbers += format_other_budgets(seat, shared=False)
        if seat.requests_per_minute is not None:
            numbers.append(f"requests per minute {seat.requests_per_minute}")
        if seat.reliability < 0.995:
            numbers.append(f"reliability {seat.reliability:.2f}")
        numbers += [format_model_cooldown(each, seat.reason) for each in seat.models_in_cooldown]
        if seat.wake_ups:
            numbers.append(f"wake-ups {seat.wake_ups}")
        table.add_row(
            seat.seat,
            f"{seat.busy}/{seat.concurrency}",
            format_money(own.remaining if own else None),
            "subscription"
            if seat.capability.get("billing") == "subscription"
            else (format_budget(own.limit, own.window) if own else "-"),
            format_state(seat),
            "\n".join(numbers),
        )
    return table


def _format_metric(name: str, value: float) -> str:
    """Format a metric; bytes in a unit that can be read."""
    if "_bytes" not in name:
        return f"{value:g}"
    return f"{value / 2**30:.1f} GB" if value >= 2**30 else f"{value / 2**20:.0f} MB"


def make_shared_table(seats: Sequence[LiveSeat]) -> Table | None:
    """Return a table with one row for each shared budget, and the seats that it applies to.

    Shared budgets are those of owners, model families and the whole grid. None if there are none.
    """
    from gridq.protocol import meters
    from gridq.protocol.meters import GRID, OWN, WHOLE_GRID, describe_account

    found: dict[tuple[str, str], tuple[Meter, list[str]]] = {}
    for seat in seats:
        for meter in seat.meters:
            if meter.account not in (OWN, GRID):
                _, names = found.setdefault((meter.account, meter.name), (meter, []))
                names.append(seat.seat + (f" in {', '.join(meter.queues)}" if meter.queues else ""))
    table = make_table("shared by", "left", "resets", "applies to")
    for meter, names in found.values():
        table.add_row(
            describe_account(meter.account),
            meter.describe(),
            meters.format_local_time(meter.resets_at) if meter.resets_at is not None else "-",
            "every seat" if meter.account == WHOLE_GRID else "\n".join(names),
        )
    return table if found else None


def get_own_money_meter(seat: LiveSeat) -> Meter | None:
    """Return the seat's money budget with the least left, or None.

    Only its own budgets count, from its machine or the quotas file, not those that it shares with others.
    """
    from gridq.protocol.meters import GRID, OWN, find_tightest

    return find_tightest((meter for meter in seat.meters if meter.account in (OWN, GRID)), "money")


def format_budget(micro: int | None, window: str) -> str:
    """Format a budget: `$0.50 a day`, or only the amount for a month, the usual window."""
    from gridq.protocol.meters import describe_window

    return format_money(micro) + ("" if micro is None or window == "month" else describe_window(window))


def _format_whole_budget(seat: LiveSeat) -> str:
    """Return what a lent share is a share of: the only money budget, or all budgets."""
    from gridq.protocol.meters import OWN

    windows = [meter.window for meter in seat.meters if meter.account == OWN and meter.resource == "money"]
    return format_budget(seat.whole_budget, windows[0]) if len(windows) == 1 else "its budgets"


def format_other_budgets(seat: LiveSeat, *, shared: bool = True) -> list[str]:
    """Return what is left of each budget of a seat, except the money budget of `get_own_money_meter`.

    Without `shared`, budgets that it shares with others are left out.
    """
    from gridq.protocol.meters import GRID, OWN, describe_holder

    shown_elsewhere = get_own_money_meter(seat)
    texts = []
    for meter in seat.meters:
        if meter is not shown_elsewhere and (shared or meter.account in (OWN, GRID)):
            where = f" in {', '.join(meter.queues)}" if meter.queues else ""
            source = " by the quotas file" if meter.account == GRID else ""
            holder = describe_holder(meter, seat.seat)
            prefix = "" if holder == seat.seat else f"{holder}{where}: "
            texts.append(f"{prefix}{meter.describe()}{source}")
    return texts


def format_model_cooldown(cooldown: ModelCooldown, seat_reason: str = "") -> str:
    """Format it: `model m is in cooldown until 14:04:07 (since 14:03:07): the endpoint does not have it`.

    The reason is left out if it is `seat_reason`, which is shown beside it.
    """
    until = f" until {format_local_time(cooldown.until)}" if cooldown.until else ""
    reason = f": {cooldown.reason}" if cooldown.reason != seat_reason else ""
    return f"model {cooldown.model} is in cooldown{until} (since {format_local_time(cooldown.since)}){reason}"


def format_state(seat: LiveSeat) -> str:
    """Format a seat's state: `degraded since 14:03:07 until 14:04:07: the key was refused`."""
    text = seat.state
    if seat.since:
        text += f" since {format_local_time(seat.since)}"
    if seat.until:
        text += f" until {format_local_time(seat.until)}"
    if seat.reason:
        text += f": {seat.reason}"
    if seat.rate_until:
        text += f"; no request until {format_local_time(seat.rate_until)}"
    return text + (" (its worker does not respond)" if seat.stale else "")
