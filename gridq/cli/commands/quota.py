"""`gridq quota`: who may use what, and has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gridq.cli.exit_codes import EPILOG, DebugOption, JsonOption
from gridq.cli.output import format_zone_time, make_console, make_table, print_json
from gridq.protocol.money import format_dollars

if TYPE_CHECKING:
    from rich.table import Table

    from gridq.limits.accounts import Account, AccountsReport, Window

app = typer.Typer()

ORPHANED = "start a router with the file in GRIDQ_QUOTAS, or lift its limits by `gridq quota --lift`"

UNITS = {
    "money": "micro-dollars",
    "tokens": "tokens",
    "requests": "requests",
    "jobs": "jobs",
    "parallel": "stages",
    "pending": "stages",
}
"""A thing that is counted → what its numbers are in JSON."""


@app.command(epilog=EPILOG, short_help="Show who may use what, and has.")
def quota(
    check: Annotated[
        str | None,
        typer.Option("--check", metavar="FILE", help="Only read a quotas file, and say what is wrong in it."),
    ] = None,
    lift: Annotated[
        bool, typer.Option("--lift", help="Lift all limits; a router that has a quotas file sets them again.")
    ] = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show what agents, teams and seats may use, have used, hold and have left, and until when, and how full
    the queues are that have a bound.

    Limits are set in the quotas file that GRIDQ_QUOTAS names on the routers; they read it again when it
    changes.
    """
    from gridq.config.settings import settings

    if check is not None:
        _check(check, json)
        return
    from gridq.cli.grid import open_broker_client
    from gridq.limits import accounts, enforcement
    from gridq.store.connection import translated

    config = settings()
    with open_broker_client(config) as client, translated(client.url):
        if lift:
            lifted = enforcement.lift(client.scripts)
            typer.echo("All limits are lifted." if lifted else "There were no limits.", err=True)
        found = accounts.read(client.redis, client.keys, config.timezone)
    if json:
        print_json(to_json(found))
        return
    for line in format_headline(found):
        typer.echo(line, err=True)
    if found.accounts:
        make_console().print(make_accounts_table(found))


def format_headline(found: AccountsReport) -> list[str]:
    """In words, where the limits come from and whether keys are asked for."""
    from gridq.config.time_zones import find_zone
    from gridq.protocol.calendar import format_iso_time

    keys = "API keys are asked for." if found.keys else "No API keys: agents are who they say they are."
    if found.single_tenant:
        return ["No quotas file and no API keys: the grid is single-tenant and takes every job."]
    if found.in_force is None:
        return [f"No limits are in force. {keys}"]
    since = format_iso_time(found.in_force.at, found.zone)
    lines = [
        f"Limits of {found.in_force.source}, in force since {since}. {keys}",
        f"Months, weeks and days begin in the time zone {found.zone}.",
    ]
    if find_zone(found.zone) is None:
        lines.append("This machine does not have it, so times are told in UTC. Fix: pip install tzdata")
    if found.in_force.orphaned:
        until = format_iso_time(found.in_force.seen, found.zone)
        lines.append(
            f"No live router has this file any more: {found.in_force.holder} was read until {until}. "
            f"Its limits go on binding. Fix: {ORPHANED}"
        )
    if found.in_force.error:
        lines.append(f"The file has changed since and is refused: {found.in_force.error}")
    return lines


def make_accounts_table(found: AccountsReport) -> Table:
    """One row for each thing that somebody may use, or has used."""
    numbers = ("limit", "used", "held", "left")
    table = make_table("who", "what", *numbers, "until", "", numbers=numbers)
    for account in found.accounts:
        if account.limit is None and not account.spent and not account.reserved:
            continue
        remaining = "-" if account.remaining is None else format_amount(account, account.remaining)
        sliding = account.window is not None and account.window.kind == "sliding"
        table.add_row(
            f"{account.kind} {account.name}",
            account.what,
            "none" if account.limit is None else format_amount(account, account.limit),
            format_amount(account, account.spent),
            format_amount(account, account.reserved),
            remaining,
            "any minute" if sliding else format_zone_time(account.until, found.zone) or "-",
            "parked" if account.parked and account.what == "money" else "",
        )
    return table


def format_amount(account: Account, number: int) -> str:
    """A number of what the account counts: `$12.50` or `100`."""
    return format_dollars(number) if account.money else str(number)


def to_json(found: AccountsReport) -> dict[str, Any]:
    """All of it for programs: money in micro-dollars, times as ISO 8601 in the grid's time zone."""
    from gridq.protocol.calendar import format_iso_time

    force = found.in_force
    return {
        "timezone": found.zone,
        "single_tenant": found.single_tenant,
        "keys": found.keys,
        "limits": None
        if force is None
        else {
            "source": force.source,
            "since": format_iso_time(force.at, found.zone),
            "digest": force.digest,
            "refused": force.error or None,
            "last_had_by": force.holder,
            "last_had_at": format_iso_time(force.seen, found.zone),
            "orphaned": force.orphaned,
            "fix": ORPHANED if force.orphaned else None,
        },
        "accounts": [
            {
                "kind": account.kind,
                "name": account.name,
                "what": account.what,
                "limit": account.limit,
                "used": account.spent,
                "held": account.reserved,
                "left": account.remaining,
                "until": format_iso_time(account.until, found.zone),
                "team": account.team,
                "parked": account.parked,
                "resource": account.resource,
                "unit": UNITS[account.resource],
                "window": None if account.window is None else _window(account.window, found.zone),
                "set_by": None if account.limit is None else account.by,
            }
            for account in found.accounts
        ],
    }


def _window(window: Window, zone: str) -> dict[str, Any]:
    from gridq.protocol.calendar import format_iso_time

    return {
        "per": window.per,
        "kind": window.kind,
        "seconds": window.seconds,
        "starts": format_iso_time(window.since, zone),
        "turns_at": format_iso_time(window.until, zone),
    }


def _check(name: str, json: bool) -> None:
    from pathlib import Path

    from gridq.limits.quotas_file import TABLES, load

    limits = load(Path(name))
    counts = {kind: len(getattr(limits, kind)) for kind in TABLES}
    if json:
        print_json(counts | {"digest": limits.digest})
        return
    whole = counts.pop("grid")
    tables = ", ".join(f"{what}: {count}" for what, count in counts.items())
    limited = f"{whole} limit{'' if whole == 1 else 's'}" if whole else "no limit"
    typer.echo(f"{name} is right: {tables}; of the whole grid {limited}", err=True)
