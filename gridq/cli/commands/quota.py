"""Show limits and usage of agents, teams, seats and queues: `gridq quota`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gridq.cli.exit_codes import EPILOG, DebugOption, JsonOption
from gridq.cli.output import format_zone_time, make_console, make_table, print_json

if TYPE_CHECKING:
    from rich.table import Table

    from gridq.limits.accounts import AccountsReport, Window

app = typer.Typer()

ORPHANED_FIX = "start a router with the file in GRIDQ_QUOTAS, or lift its limits with `gridq quota --lift`"

UNITS = {
    "money": "micro-dollars",
    "tokens": "tokens",
    "requests": "requests",
    "jobs": "jobs",
    "parallel": "stages",
    "gpu_seconds": "milliseconds",
    "pending": "stages",
}
"""Resource → the unit of its numbers in JSON."""


@app.command(epilog=EPILOG, short_help="Show limits and usage.")
def quota(
    check: Annotated[
        str | None,
        typer.Option("--check", metavar="FILE", help="Only check a quotas file for errors."),
    ] = None,
    lift: Annotated[
        bool, typer.Option("--lift", help="Lift all limits. A router with a quotas file sets them again.")
    ] = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show the limits of agents, teams and seats, what they have used, reserved and left, and when it resets.

    It also shows how full the bounded queues are. You set limits in a quotas file that GRIDQ_QUOTAS names on
    the routers. They reload it when it changes.
    """
    from gridq.config.settings import settings

    if check is not None:
        _check_file(check, json)
        return
    from gridq.cli.grid import open_broker_client
    from gridq.limits import accounts, quotas_loader

    config = settings()
    with open_broker_client(config) as client:
        if lift:
            lifted = quotas_loader.lift(client.scripts)
            typer.echo("All limits are lifted." if lifted else "There were no limits.", err=True)
        found = accounts.read_accounts(client.redis, client.keys, config.timezone)
    if json:
        print_json(to_json(found))
        return
    for line in format_headline(found):
        typer.echo(line, err=True)
    if found.accounts:
        make_console().print(make_accounts_table(found))


def format_headline(found: AccountsReport) -> list[str]:
    """Return the lines about the limits as a whole: their source, the need for API keys, and problems."""
    from gridq.config.time_zones import find_zone
    from gridq.protocol.calendar import format_iso_time

    keys = "API keys are required." if found.requires_keys else "No API keys: agents are not verified."
    if found.is_single_tenant:
        return ["No quotas file and no API keys: the grid is single-tenant and accepts every job."]
    if found.active_limits is None:
        return [f"No limits are in force. {keys}"]
    since = format_iso_time(found.active_limits.applied_at, found.zone)
    lines = [
        f"Limits of {found.active_limits.source}, in force since {since}. {keys}",
        f"Months, weeks and days begin in the time zone {found.zone}.",
    ]
    if find_zone(found.zone) is None:
        lines.append(
            "This machine does not know this time zone, so times are in UTC. Fix: pip install tzdata"
        )
    if found.active_limits.is_orphaned:
        until = format_iso_time(found.active_limits.last_seen, found.zone)
        lines.append(
            f"No live router has this file any more: {found.active_limits.holder} was last seen at {until}. "
            f"Its limits still apply. Fix: {ORPHANED_FIX}"
        )
    if found.active_limits.error:
        lines.append(f"The file has changed since then, but it has an error: {found.active_limits.error}")
    return lines


def make_accounts_table(found: AccountsReport) -> Table:
    """Return a table with one row for each account that has a limit or usage."""
    numbers = ("limit", "used", "reserved", "left")
    table = make_table("who", "what", *numbers, "resets", "", numbers=numbers)
    for account in found.accounts:
        if account.limit is None and not account.spent and not account.reserved:
            continue
        remaining = "-" if account.remaining is None else account.format_amount(account.remaining)
        sliding = account.window is not None and account.window.kind == "sliding"
        table.add_row(
            f"{account.kind} {account.name}",
            account.what,
            "none" if account.limit is None else account.format_amount(account.limit),
            account.format_amount(account.spent),
            account.format_amount(account.reserved),
            remaining,
            "sliding" if sliding else format_zone_time(account.resets_at, found.zone) or "-",
            "parked" if account.parked and account.what == "money" else "",
        )
    return table


def to_json(found: AccountsReport) -> dict[str, Any]:
    """Return the report as JSON: money in micro-dollars, times as ISO 8601 in the grid's time zone."""
    from gridq.protocol.calendar import format_iso_time

    limits = found.active_limits
    return {
        "timezone": found.zone,
        "single_tenant": found.is_single_tenant,
        "keys": found.requires_keys,
        "limits": None
        if limits is None
        else {
            "source": limits.source,
            "since": format_iso_time(limits.applied_at, found.zone),
            "digest": limits.digest,
            "error": limits.error or None,
            "last_seen_on": limits.holder,
            "last_seen_at": format_iso_time(limits.last_seen, found.zone),
            "orphaned": limits.is_orphaned,
            "fix": ORPHANED_FIX if limits.is_orphaned else None,
        },
        "accounts": [
            {
                "kind": account.kind,
                "name": account.name,
                "what": account.what,
                "limit": account.limit,
                "used": account.spent,
                "reserved": account.reserved,
                "left": account.remaining,
                "until": format_iso_time(account.resets_at, found.zone),
                "team": account.team,
                "parked": account.parked,
                "resource": account.resource,
                "unit": UNITS[account.resource],
                "window": None if account.window is None else _window_to_json(account.window, found.zone),
                "set_by": None if account.limit is None else account.set_by,
            }
            for account in found.accounts
        ],
    }


def _window_to_json(window: Window, zone: str) -> dict[str, Any]:
    from gridq.protocol.calendar import format_iso_time

    return {
        "per": window.per,
        "kind": window.kind,
        "seconds": window.seconds,
        "starts": format_iso_time(window.starts_at, zone),
        "resets_at": format_iso_time(window.resets_at, zone),
    }


def _check_file(name: str, json: bool) -> None:
    from pathlib import Path

    from gridq.limits.quotas_file import TABLES, load

    limits = load(Path(name))
    counts = {kind: len(getattr(limits, kind)) for kind in TABLES}
    if json:
        print_json(counts | {"digest": limits.digest})
        return
    grid_limits = counts.pop("grid")
    tables = ", ".join(f"{table}: {count}" for table, count in counts.items())
    typer.echo(f"{name} is valid: {tables}; limits of the whole grid: {grid_limits}", err=True)
