"""Show what each seat was used for in a month: `gridq report`."""

from __future__ import annotations

import csv as csvs
import io
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gridq.cli.exit_codes import EPILOG, DebugOption, JsonOption
from gridq.cli.grid import open_broker_client
from gridq.cli.output import format_money, format_zone_time, make_console, make_table, print_json
from gridq.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from gridq.config.settings import Settings
    from gridq.views.report import Figure, Report, ReportInputs

app = typer.Typer()


@app.command(epilog=EPILOG, short_help="Show what each seat was used for in a month.")
def report(
    month: Annotated[
        str | None,
        typer.Option(
            "--month",
            metavar="YYYY-MM",
            help="Month to report on. Default: the current month.",
            show_default=False,
        ),
    ] = None,
    *,
    quotas: Annotated[
        str | None,
        typer.Option(
            "--quotas",
            metavar="FILE",
            help="Quotas file with the costs and owners of the seats. Default: GRIDQ_QUOTAS.",
            show_default=False,
        ),
    ] = None,
    seats: Annotated[
        int | None, typer.Option("--seats", metavar="S", help="Number of seats.", show_default=False)
    ] = None,
    seat_cost: Annotated[
        float | None,
        typer.Option(
            "--seat-cost",
            metavar="C",
            help="Dollars per month for seats without a cost in the quotas file.",
            show_default=False,
        ),
    ] = None,
    utilisation: Annotated[
        float | None,
        typer.Option(
            "--utilisation",
            metavar="U",
            help="Share of the paid capacity that is used, 0 to 1. Default: from the ledger.",
            show_default=False,
        ),
    ] = None,
    routable: Annotated[
        float | None,
        typer.Option(
            "--routable",
            metavar="R",
            help="Share of the idle capacity that the grid can use, 0 to 1.",
            show_default=False,
        ),
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print the seats as CSV.")] = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show from the ledger what each seat was used for in a month, and what was lent, reclaimed and wasted.

    It also shows the value of idle capacity per year: S seats · C dollars per month · 12 · (1 - U). The grid
    can use the share R of it. Each number comes with its source. Numbers that neither you nor the ledger
    provide are shown as unknown.
    """
    from gridq.config.settings import settings
    from gridq.limits.accounts import read_zone
    from gridq.store.connection import now_ms
    from gridq.views import report as report_view

    config = settings()
    assumptions = _read_assumptions(config, quotas, seats, seat_cost, utilisation, routable)
    with open_broker_client(config) as client:
        zone = read_zone(client.redis, client.keys, config.timezone)
        now = now_ms(client.redis)
        bounds = _parse_month(month, zone, now)
        found = report_view.build_report(client.redis, client.keys, bounds, now, assumptions)
    if json:
        print_json(to_json(found, zone))
    elif csv:
        sys.stdout.write(to_csv(found))
    else:
        _print(found, zone)


def to_json(found: Report, zone: str) -> dict[str, Any]:
    """Return the report as JSON: money in micro-dollars, times as ISO 8601 in the grid's time zone."""
    from gridq.protocol.calendar import format_iso_time

    return {
        "month": (format_iso_time(found.start, zone) or "")[:7],
        "timezone": zone,
        "since": format_iso_time(found.since, zone),
        "until": format_iso_time(found.until, zone),
        "seats": [seat.to_json() for seat in found.seats],
        "model": {name: asdict(figure) for name, figure in found.model.items()},
        "idle_per_year": found.idle,
        "reclaimable_per_year": found.reclaimable,
    }


def to_csv(found: Report) -> str:
    """Return the seats as CSV with a header. Unknown values are empty, and money is in micro-dollars."""
    from gridq.views.report import SeatReport

    out = io.StringIO()
    rows = [seat.to_json() for seat in found.seats]
    writer = csvs.DictWriter(out, list(SeatReport("").to_json()), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def make_seats_table(found: Report) -> Table:
    numbers = ("recorded", "used", "lent", "wasted", "cost", "reclaimed")
    table = make_table("seat", *numbers, numbers=numbers, keep_first=True)
    for seat in found.seats:
        table.add_row(
            seat.seat,
            str(seat.recorded),
            format_money(seat.get_if_priced(seat.used)),
            format_money(seat.get_if_priced(seat.lent)),
            format_money(seat.get_if_priced(seat.wasted)),
            format_money(seat.cost),
            format_money(seat.reclaimed),
        )
    return table


def _print(found: Report, zone: str) -> None:
    if found.since is None:
        typer.echo("The ledger has no entries of this month.", err=True)
    else:
        since, until = format_zone_time(found.since, zone), format_zone_time(found.until, zone)
        typer.echo(f"From the ledger, {since} to {until} ({zone}); - means unknown.", err=True)
    if found.seats:
        make_console().print(make_seats_table(found))
    labels = {
        "S": "seats",
        "C": "cost of a seat per month",
        "u": "share used",
        "r": "usable share of the rest",
    }
    for name, figure in found.model.items():
        typer.echo(f"{name}  {labels[name]:24} {_format_figure(name, figure):>12}  {figure.source}")
    typer.echo(f"   {'idle per year':24} {format_money(found.idle):>12}  S · C · 12 · (1 - u)")
    typer.echo(f"   {'reclaimable per year':24} {format_money(found.reclaimable):>12}  r · idle")


def _format_figure(name: str, figure: Figure) -> str:
    if figure.value is None:
        return "unknown"
    if name == "C":
        return format_money(round(figure.value))
    return f"{figure.value:g}" if name == "S" else f"{figure.value:.3g}"


def _read_assumptions(
    config: Settings, file: str | None, seats: int | None, seat_cost: float | None, *shares: float | None
) -> ReportInputs:
    """Return what the options and the quotas file say. Raises ConfigError for a number out of range."""
    from gridq.limits.quotas_file import load
    from gridq.protocol.budget_syntax import MAX_DOLLARS
    from gridq.views.report import ReportInputs

    path = config.quotas if file is None else Path(file)
    limits = {} if path is None else load(path).seats
    for option, number, maximum in (
        ("--utilisation", shares[0], 1),
        ("--routable", shares[1], 1),
        ("--seat-cost", seat_cost, MAX_DOLLARS),
        ("--seats", seats, 10**6),
    ):
        if number is not None and not 0 <= number <= maximum:
            raise ConfigError(
                f"{number:g} is out of range for {option}",
                {"path": option, "expected": f"from 0 to {maximum}"},
            )
    cost = None if seat_cost is None else round(seat_cost * 1_000_000)
    return ReportInputs(limits, "" if path is None else str(path), seats, cost, *shares)


def _parse_month(text: str | None, zone: str, now: int) -> tuple[int, int]:
    """Return start and end of the month, in ms; None is the current month.

    Raises ConfigError if it is not one.
    """
    from gridq.protocol.calendar import format_iso_time, get_month_bounds

    match = re.fullmatch(r"(\d{4})-(\d\d)", text or (format_iso_time(now, zone) or "")[:7])
    if match is None or not (1970 <= int(match[1]) <= 9998 and 1 <= int(match[2]) <= 12):
        raise ConfigError(
            f"{text!r} is not a month", {"path": "--month", "expected": "a month such as 2026-11"}
        )
    return get_month_bounds(zone, int(match[1]), int(match[2]))
