"""`gridq seat`: what the owner of this machine's seats lends, and when."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gridq.cli.exit_codes import EPILOG, DebugOption, JsonOption
from gridq.cli.inputs import parse_seconds
from gridq.cli.output import format_local_time, format_money, make_console, make_table, print_json
from gridq.errors import ConfigError
from workers.cli import seat_log

if TYPE_CHECKING:
    from rich.table import Table

    from gridq.seats.registry import LiveSeat

app = typer.Typer()
seat_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Lend this machine's seats to the grid, or keep them: the owner's own word.",
    epilog=EPILOG,
)
app.add_typer(seat_app, name="seat")
seat_log.add(seat_app)

OBEYED = 5.0
"""Seconds within which a worker heeds the switch; it looks several times a second."""


def _names(incomplete: str) -> list[str]:
    from gridq.config.home import get_home_folder
    from workers.owner.watch import list_served_seats

    return [name for name in list_served_seats(get_home_folder()) if name.startswith(incomplete)]


Seat = Annotated[
    str | None,
    typer.Argument(
        metavar="SEAT",
        help="One seat of this machine, such as claude; all of them without it.",
        autocompletion=_names,
        show_default=False,
    ),
]


UNTOLD: dict[str, Any] = {
    "budget_left": None,
    "budget": None,
    "whole_budget": None,
    "budget_window": None,
    "budgets": [],
    "resting": None,
}
"""What the grid tells of a seat, where it does not."""


@seat_app.command(epilog=EPILOG, short_help="Keep a seat, or all: nothing runs there, at once.")
def pause(
    seat: Seat = None,
    *,
    for_: Annotated[
        str | None,
        typer.Option("--for", metavar="TIME", help="For so long: 30m, 2h, 1d.", show_default=False),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--until", metavar="CLOCK", help="Until then: 18:00, or 2026-12-01 18:00.", show_default=False
        ),
    ] = None,
    reason: Annotated[
        str, typer.Option("--reason", help="What the others are told.", show_default=False)
    ] = "",
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Keep a seat of this machine, or all of them, until the time is over or `gridq seat resume`.

    Within a second it takes nothing more, and what runs there is stopped and handed back with its attempt
    unspent. It holds over restarts, and needs no server: the word is a file of this home folder.
    """
    from workers.owner import switch

    if for_ is not None and until is not None:
        raise ConfigError("A pause ends once", {"path": "--until", "fix": "give --for or --until, not both"})
    home = _home_of(seat)
    now = time.time()
    end = now + parse_seconds(for_, "--for", 1, switch.MAX_PAUSE_SECONDS) if for_ is not None else None
    if until is not None:
        end = switch.parse_until(until, now)
    switch.pause(home, seat, until=end, reason=reason)
    _tell(home, seat, json)


@seat_app.command(epilog=EPILOG, short_help="Lend a seat, or all, again.")
def resume(seat: Seat = None, *, json: JsonOption = False, debug: DebugOption = False) -> None:
    """Lend a seat of this machine, or all of them, again, as far as the seats file allows."""
    from workers.owner import switch

    home = _home_of(seat)
    switch.resume(home, seat)
    _tell(home, seat, json)


@seat_app.command(epilog=EPILOG, short_help="Show how this machine's seats are lent.")
def status(seat: Seat = None, *, json: JsonOption = False, debug: DebugOption = False) -> None:
    """Show which seats of this machine are lent, and which are kept, since when, until when and why. Where
    the server answers, also which of them rest, as one whose plan's limit is used up; and of one with a
    budget what is left of the part that is lent, and the whole.
    """
    home = _home_of(seat)
    rows = _rows(home, seat)
    told = _told(home) if any(row["served"] for row in rows) else {}
    for row in rows:
        row.update(told.get(row["seat"], UNTOLD))
    _show(home, rows, json)


def _home_of(seat: str | None) -> Path:
    """The home folder. ConfigError: this machine has no such seat."""
    from gridq.config.home import get_home_folder
    from workers.owner.watch import list_served_seats

    home = get_home_folder()
    if seat is not None and seat not in list_served_seats(home):  # one that was never served
        from gridq.config.settings import settings
        from gridq.profiles.profile import load_profiles
        from workers.machine.probing import probe_machine

        config = settings()
        probe_machine(config, load_profiles(config.profiles)).select([seat], "SEAT")
    return home


def _rows(home: Path, seat: str | None) -> list[dict[str, Any]]:
    from workers.owner.watch import list_served_seats, read_seat

    return [read_seat(home, name) for name in ([seat] if seat is not None else list_served_seats(home))]


def _told(home: Path) -> dict[str, dict[str, Any]]:
    """What the grid tells of this machine's live seats; empty where the server does not answer."""
    from contextlib import suppress

    from redis.exceptions import RedisError

    from gridq.config.machine_id import get_machine_id
    from gridq.config.settings import settings
    from gridq.errors import GridError
    from gridq.seats import registry
    from gridq.store.connection import connect
    from gridq.store.keys import Keys

    with suppress(RedisError, GridError, OSError):
        config, machine = settings(), get_machine_id(home)
        url = config.broker_url.get_secret_value()
        with connect(url, name="gridq-seat", timeout=1.0, retry=False) as client:
            found = registry.read_live_seats(client, Keys(config.prefix), routers=False)
        return {seat.seat.partition(".")[2]: told_of(seat) for seat in found if seat.machine == machine}
    return {}


def told_of(seat: LiveSeat) -> dict[str, Any]:
    """Of the seat's own budget of money with least left: what is left of what is lent, that, the whole and
    its window; in words what else is budgeted; and why it rests, where its owner lends it.
    """
    from fractions import Fraction

    from gridq.cli.commands.workers import format_other_budgets, get_own_money_meter
    from gridq.protocol.meters import OWN
    from gridq.protocol.seat_states import PAUSED

    found = UNTOLD | {"budgets": format_other_budgets(seat)}
    own = get_own_money_meter(seat)
    if own is not None:
        whole = own.limit
        if seat.share and own.account == OWN:
            whole = seat.whole_budget or 0
            if int(whole * Fraction(str(seat.share))) != own.limit:  # that of another of its budgets
                whole = round(own.limit / Fraction(str(seat.share)))
        found |= {"budget_left": own.remaining, "budget": own.limit, "whole_budget": whole}
        found["budget_window"] = own.window
    if seat.state not in ("ready", PAUSED):
        found["resting"] = {name: getattr(seat, name) for name in ("state", "reason", "since", "until")}
    return found


def _tell(home: Path, seat: str | None, json: bool) -> None:
    """Show how the seats are lent, once their workers heed it."""
    end = time.monotonic() + OBEYED
    rows = _rows(home, seat)
    while not all(row["applied"] for row in rows) and time.monotonic() < end:
        time.sleep(0.05)
        rows = _rows(home, seat)
    _show(home, rows, json)


def _show(home: Path, rows: list[dict[str, Any]], json: bool) -> None:
    if json:
        print_json(rows)
    elif rows:
        make_console().print(_table(rows))
    else:
        typer.echo(f"No seat was ever served from {home}. To serve them: gridq worker", err=True)


def _table(rows: list[dict[str, Any]]) -> Table:
    from gridq.cli.commands.workers import format_budget
    from workers.owner.watch import LENT

    rich = any(row.get("budget") is not None for row in rows)
    table = make_table(
        "seat", "state", "since", "until", *(("left", "lent", "of budget") if rich else ()), "because",
        numbers=("left", "lent", "of budget"), keep_first=True,
    )  # fmt: skip
    for row in rows:
        state = row["state"] if row["served"] else f"{row['state']}, not served"
        rest = row.get("resting") if row["state"] == LENT and row["served"] else None
        if rest:
            state = f"{state}, {rest['state']}"
        if not row["applied"]:
            state = "its worker has not heeded it yet"
        why = rest or row
        times = (format_local_time(why[name]) if why[name] else "-" for name in ("since", "until"))
        window = row.get("budget_window") or "month"
        money = (
            [
                format_money(row["budget_left"]),
                format_budget(row["budget"], window),
                format_budget(row["whole_budget"], window),
            ]
            if rich
            else []
        )
        because = "\n".join((*((why["reason"],) if why["reason"] else ()), *row.get("budgets", ())))
        table.add_row(row["seat"], state, *times, *money, because)
    return table
