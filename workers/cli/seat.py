"""`gridq seat`: pause, resume, retry and show the seats of this machine."""

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
    help="Pause this machine's seats, lend them again, retry them after a failure, and see what ran on them.",
    short_help="Pause this machine's seats, and see what ran on them.",
    epilog=EPILOG,
)
app.add_typer(seat_app, name="seat")
seat_log.add(seat_app)

APPLY_SECONDS = 5.0
"""Time to wait for a worker to apply the switch, which it reads several times a second."""


def _complete_seats(incomplete: str) -> list[str]:
    from gridq.config.home import get_home_folder
    from workers.owner.watch import list_served_seats

    return [name for name in list_served_seats(get_home_folder()) if name.startswith(incomplete)]


SeatArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="SEAT",
        help="A seat of this machine, such as claude. Default: all.",
        autocompletion=_complete_seats,
        show_default=False,
    ),
]


NO_SERVER: dict[str, Any] = {
    "budget_left": None,
    "budget": None,
    "whole_budget": None,
    "budget_window": None,
    "budgets": [],
    "circuit_breaker": None,
    "models_in_cooldown": [],
}
"""The server's part of a seat's status, if the server does not answer."""


@seat_app.command(epilog=EPILOG, short_help="Pause a seat, or all, at once.")
def pause(
    seat: SeatArgument = None,
    *,
    for_: Annotated[
        str | None,
        typer.Option("--for", metavar="TIME", help="Duration: 30m, 2h, 1d.", show_default=False),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="TIME", help="End: 18:00, or 2026-12-01 18:00.", show_default=False),
    ] = None,
    reason: Annotated[
        str, typer.Option("--reason", help="Reason that other users see.", show_default=False)
    ] = "",
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Pause a seat of this machine, or all of them, until the given time or `gridq seat resume`.

    Within a second the seat takes no more stages. Running stages are stopped and handed back; that costs them
    no attempt. The pause is a file in the home folder: it survives restarts and needs no server.
    """
    from workers.owner import switch

    if for_ is not None and until is not None:
        raise ConfigError(
            "--for and --until exclude each other", {"path": "--until", "fix": "use one of them"}
        )
    home = _find_home(seat)
    now = time.time()
    end = now + parse_seconds(for_, "--for", 1, switch.MAX_PAUSE_SECONDS) if for_ is not None else None
    if until is not None:
        end = switch.parse_until(until, now)
    switch.pause(home, seat, until=end, reason=reason)
    _show_applied(home, seat, json)


@seat_app.command(epilog=EPILOG, short_help="Lend a paused seat, or all, again.")
def resume(seat: SeatArgument = None, *, json: JsonOption = False, debug: DebugOption = False) -> None:
    """Lend a paused seat of this machine, or all of them, again, on the terms of the seats file."""
    from workers.owner import switch

    home = _find_home(seat)
    switch.resume(home, seat)
    _show_applied(home, seat, json)


@seat_app.command(epilog=EPILOG, short_help="End the cooldown of one seat or all seats now.")
def retry(seat: SeatArgument = None, *, json: JsonOption = False, debug: DebugOption = False) -> None:
    """End the cooldown of a seat of this machine and its models, or of all seats, now.

    Use it once you have fixed what failed, such as credit, a URL or the name of a model. The next request
    tries the seat; if it fails, the cooldown starts again. After you renew a login, or a key in a key file,
    you need no retry: the seat notices it.
    """
    from workers.owner import recovery
    from workers.owner.watch import list_served_seats

    home = _find_home(seat)
    names = [seat] if seat is not None else list_served_seats(home)
    recovery.request_retry(home, names)
    end = time.monotonic() + APPLY_SECONDS
    while any(recovery.is_retry_due(home, name) for name in names) and time.monotonic() < end:
        time.sleep(0.05)
    _show_status(home, seat, json)


@seat_app.command(epilog=EPILOG, short_help="Show how this machine's seats are lent.")
def status(seat: SeatArgument = None, *, json: JsonOption = False, debug: DebugOption = False) -> None:
    """Show which seats of this machine are lent and which are paused, since when, until when and why.

    If the server answers, also show open circuit breakers (of a plan whose limit is used up, for example),
    models in cooldown, and the budgets of the seats: what is left, how much is lent, and the total.
    """
    _show_status(_find_home(seat), seat, json)


def _show_status(home: Path, seat: str | None, json: bool) -> None:
    """Print the state of the seats, with what the server knows of them."""
    rows = _read_seats(home, seat)
    live = _read_live_seats(home) if any(row["served"] for row in rows) else {}
    for row in rows:
        row.update(live.get(row["seat"], NO_SERVER))
    _print_seats(home, rows, json)


def _find_home(seat: str | None) -> Path:
    """Return the home folder. ConfigError: this machine has no such seat."""
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


def _read_seats(home: Path, seat: str | None) -> list[dict[str, Any]]:
    from workers.owner.watch import list_served_seats, read_seat

    return [read_seat(home, name) for name in ([seat] if seat is not None else list_served_seats(home))]


def _read_live_seats(home: Path) -> dict[str, dict[str, Any]]:
    """Return the server's view of this machine's live seats, by name; empty if the server does not answer."""
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
        url = config.get_broker_url()
        with connect(url, name="gridq-seat", timeout=1.0, retry=False) as client:
            found = registry.read_live_seats(client, Keys(config.prefix), routers=False)
        return {
            seat.seat.partition(".")[2]: summarize_seat(seat) for seat in found if seat.machine == machine
        }
    return {}


def summarize_seat(seat: LiveSeat) -> dict[str, Any]:
    """Return the server's part of a seat's status: its own budget of money with the least left, the others in
    words, and the open circuit breaker of a seat that is not paused.
    """
    from fractions import Fraction

    from gridq.cli.commands.workers import format_other_budgets, get_own_money_meter
    from gridq.protocol.meters import OWN
    from gridq.protocol.seat_states import PAUSED

    found = NO_SERVER | {"budgets": format_other_budgets(seat)}
    found["models_in_cooldown"] = [each.model_dump() for each in seat.models_in_cooldown]
    own = get_own_money_meter(seat)
    if own is not None:
        whole = own.limit
        if seat.share and own.account == OWN:
            whole = seat.whole_budget or 0
            if int(whole * Fraction(str(seat.share))) != own.limit:  # it is that of another budget
                whole = round(own.limit / Fraction(str(seat.share)))
        found |= {"budget_left": own.remaining, "budget": own.limit, "whole_budget": whole}
        found["budget_window"] = own.window
    if seat.state not in ("ready", PAUSED):
        found["circuit_breaker"] = {
            name: getattr(seat, name) for name in ("state", "reason", "since", "until")
        }
    return found


def _show_applied(home: Path, seat: str | None, json: bool) -> None:
    """Print the state of the seats, once their workers have applied it."""
    end = time.monotonic() + APPLY_SECONDS
    rows = _read_seats(home, seat)
    while not all(row["applied"] for row in rows) and time.monotonic() < end:
        time.sleep(0.05)
        rows = _read_seats(home, seat)
    _print_seats(home, rows, json)


def _print_seats(home: Path, rows: list[dict[str, Any]], json: bool) -> None:
    if json:
        print_json(rows)
    elif rows:
        make_console().print(make_seats_table(rows))
    else:
        typer.echo(f"No seat has been served from {home} yet. To serve them: gridq worker", err=True)


def make_seats_table(rows: list[dict[str, Any]]) -> Table:
    from gridq.cli.commands.workers import format_budget, format_model_cooldown
    from gridq.protocol.models import ModelCooldown
    from workers.owner.watch import LENT

    budgeted = any(row.get("budget") is not None for row in rows)
    table = make_table(
        "seat", "state", "since", "until",
        *(("left", "lent", "budget", "reason, other budgets") if budgeted else ("reason",)),
        numbers=("left", "lent", "budget"), keep_first=True,
    )  # fmt: skip
    for row in rows:
        state = row["state"] if row["served"] else f"{row['state']}, not served"
        breaker = row.get("circuit_breaker") if row["state"] == LENT and row["served"] else None
        if breaker:
            state = f"{state}, {breaker['state']}"
        if not row["applied"]:
            state = "not applied by its worker yet"
        cause = breaker or row
        times = (format_local_time(cause[name]) if cause[name] else "-" for name in ("since", "until"))
        window = row.get("budget_window") or "month"
        money = (
            [
                format_money(row["budget_left"]),
                format_budget(row["budget"], window),
                format_budget(row["whole_budget"], window),
            ]
            if budgeted
            else []
        )
        models = [
            format_model_cooldown(ModelCooldown(**each), cause["reason"])
            for each in row.get("models_in_cooldown", ())
        ]
        reasons = (*((cause["reason"],) if cause["reason"] else ()), *models, *row.get("budgets", ()))
        table.add_row(row["seat"], state, *times, *money, "\n".join(reasons))
    return table
