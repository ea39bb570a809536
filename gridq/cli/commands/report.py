"""`gridq report`: what each seat was worth in a month."""

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
    from gridq.views.report import Figure, Report, Told

app = typer.Typer()


@app.command(epilog=EPILOG, short_help="Show what each seat was worth in a month.")
def report(
    month: Annotated[
        str | None,
        typer.Option("--month", metavar="YYYY-MM", help="Which month; this one.", show_default=False),
    ] = None,
    *,
    quotas: Annotated[
        str | None,
        typer.Option(
            "--quotas",
            metavar="FILE",
            help="The quotas file that says what seats cost and whose they are, instead of GRIDQ_QUOTAS.",
            show_default=False,
        ),
    ] = None,
    seats: Annotated[
        int | None, typer.Option("--seats", metavar="S", help="How many seats there are.", show_default=False)
    ] = None,
    seat_cost: Annotated[
        float | None,
        typer.Option(
            "--seat-cost",
            metavar="C",
            help="Dollars a month for a seat of which the quotas file says nothing.",
            show_default=False,
        ),
    ] = None,
    utilisation: Annotated[
        float | None,
        typer.Option(
            "--utilisation",
            metavar="U",
            help="The part of what is paid for that is used, 0 to 1, instead of what the ledger says.",
            show_default=False,
        ),
    ] = None,
    routable: Annotated[
        float | None,
        typer.Option(
            "--routable",
            metavar="R",
            help="The part of what lies idle that the grid can have, 0 to 1.",
            show_default=False,
        ),
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print the seats as CSV.")] = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show what each seat was used for in a month, what was lent, reclaimed and wasted, from the ledger; and
    what lies idle in a year: S seats · C a month · 12 · (1 - u), of which the grid can have the part r.

    Each number says where it comes from. What nobody has said and the ledger does not hold stays unknown.
    """
    from gridq.config.settings import settings
    from gridq.limits.accounts import read_zone
    from gridq.store.connection import now_ms, translated
    from gridq.views import report as reports

    config = settings()
    told = _told(config, quotas, seats, seat_cost, utilisation, routable)
    with open_broker_client(config) as client, translated(client.url):
        zone = read_zone(client.redis, client.keys, config.timezone)
        now = now_ms(client.redis)
        found = reports.report(client.redis, client.keys, _month(month, zone, now), now, told)
    if json:
        print_json(to_json(found, zone))
    elif csv:
        sys.stdout.write(to_csv(found))
    else:
        _show(found, zone)


def to_json(found: Report, zone: str) -> dict[str, Any]:
    """All of it for programs: money in micro-dollars, times as ISO 8601 in the grid's time zone."""
    from gridq.protocol.calendar import format_iso_time

    return {
        "month": (format_iso_time(found.start, zone) or "")[:7],
        "timezone": zone,
        "since": format_iso_time(found.since, zone),
        "until": format_iso_time(found.until, zone),
        "seats": [seat.to_json() for seat in found.seats],
        "model": {name: asdict(figure) for name, figure in found.model.items()},
        "idle_a_year": found.idle,
        "reclaimable_a_year": found.reclaimable,
    }


def to_csv(found: Report) -> str:
    """A line for each seat, under its fields' names; what is not known is empty. Money in micro-dollars."""
    out = io.StringIO()
    rows = [seat.to_json() for seat in found.seats]
    from gridq.views.report import SeatReport

    writer = csvs.DictWriter(out, list(SeatReport("").to_json()), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def seats_table(found: Report) -> Table:
    """One row for each seat."""
    numbers = ("recorded", "used", "lent", "wasted", "cost", "reclaimed")
    table = make_table("seat", *numbers, numbers=numbers, keep_first=True)
    for seat in found.seats:
        table.add_row(
            seat.seat,
            str(seat.recorded),
            format_money(seat.known(seat.used)),
            format_money(seat.known(seat.lent)),
            format_money(seat.known(seat.wasted)),
            format_money(seat.cost),
            format_money(seat.reclaimed),
        )
    return table


def _show(found: Report, zone: str) -> None:
    if found.since is None:
        typer.echo("The ledger holds nothing of this month.", err=True)
    else:
        since, until = format_zone_time(found.since, zone), format_zone_time(found.until, zone)
        typer.echo(f"From the ledger, {since} to {until} ({zone}); - is not known.", err=True)
    if found.seats:
        make_console().print(seats_table(found))
    words = {"S": "seats", "C": "a seat's cost a month", "u": "used of it", "r": "to be had of the rest"}
    for name, figure in found.model.items():
        typer.echo(f"{name}  {words[name]:22} {_figure(name, figure):>12}  {figure.source}")
    typer.echo(f"   {'idle in a year':22} {format_money(found.idle):>12}  S · C · 12 · (1 - u)")
    typer.echo(f"   {'reclaimable in a year':22} {format_money(found.reclaimable):>12}  r of it")


def _figure(name: str, figure: Figure) -> str:
    if figure.value is None:
        return "unknown"
    if name == "C":
        return format_money(round(figure.value))
    return f"{figure.value:g}" if name == "S" else f"{figure.value:.3g}"


def _told(
    config: Settings, file: str | None, seats: int | None, seat_cost: float | None, *parts: float | None
) -> Told:
    from gridq.limits.quotas_file import load
    from gridq.protocol.budget_syntax import MAX_DOLLARS
    from gridq.views.report import Told

    path = config.quotas if file is None else Path(file)
    limits = {} if path is None else load(path).seats
    for option, part, most in (
        ("--utilisation", parts[0], 1),
        ("--routable", parts[1], 1),
        ("--seat-cost", seat_cost, MAX_DOLLARS),
        ("--seats", seats, 10**6),
    ):
        if part is not None and not 0 <= part <= most:
            raise ConfigError(
                f"{part:g} is no number for {option}", {"path": option, "expected": f"from 0 to {most}"}
            )
    cost = None if seat_cost is None else round(seat_cost * 1_000_000)
    return Told(limits, "" if path is None else str(path), seats, cost, *parts)


def _month(text: str | None, zone: str, now: int) -> tuple[int, int]:
    """Start and end of the month, in ms. ConfigError: it is none."""
    from gridq.protocol.calendar import format_iso_time, get_month_bounds

    match = re.fullmatch(r"(\d{4})-(\d\d)", text or (format_iso_time(now, zone) or "")[:7])
    if match is None or not (1970 <= int(match[1]) <= 9998 and 1 <= int(match[2]) <= 12):
        raise ConfigError(f"{text!r} is no month", {"path": "--month", "expected": "a month such as 2026-11"})
    return get_month_bounds(zone, int(match[1]), int(match[2]))
