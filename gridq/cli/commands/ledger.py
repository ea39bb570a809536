"""Export the ledger, and verify the grid's counters against it: `gridq ledger`."""

from __future__ import annotations

import json as jsons
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from gridq.cli.exit_codes import BREACH, EPILOG, DebugOption, JsonOption, to_one_line
from gridq.cli.grid import open_broker_client
from gridq.cli.inputs import parse_instant
from gridq.cli.output import format_count, print_json

if TYPE_CHECKING:
    from gridq.limits.ledger_verification import Verification

app = typer.Typer()
ledger = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Export the ledger of all attempts, and verify the counters.",
    epilog=EPILOG,
)
app.add_typer(ledger, name="ledger")

Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME",
        help="Start at this time (2026-11-01, 2026-11-01T08:00), or so long ago (12h, 7d).",
        show_default=False,
    ),
]
"""The option `--since`."""

Until = Annotated[
    str | None,
    typer.Option("--until", metavar="TIME", help="End at this time, in the same form.", show_default=False),
]
"""The option `--until`."""


@ledger.command(epilog=EPILOG, short_help="Print the ledger, one JSON object per line.")
def export(
    since: Since = None, until: Until = None, json: JsonOption = False, debug: DebugOption = False
) -> None:
    """Print the ledger as NDJSON, oldest entry first: one JSON object per line, with or without --json.

    The ledger is read page by page, so it may have any length. It holds no prompt, input or answer.
    """
    from gridq.config.settings import settings
    from gridq.limits import ledger as entries
    from gridq.limits.accounts import read_zone
    from gridq.store.connection import now_ms

    config = settings()
    with open_broker_client(config) as client:
        now, zone = now_ms(client.redis), read_zone(client.redis, client.keys, config.timezone)
        start = parse_instant(since, "--since", zone, now)
        end = parse_instant(until, "--until", zone, now)
        for entry in entries.read_entries(client.redis, client.keys, since=start, until=end):
            sys.stdout.write(jsons.dumps(entry.to_json(), separators=(",", ":")) + "\n")
    sys.stdout.flush()


@ledger.command(epilog=EPILOG, short_help="Rebuild the counters from the ledger, and compare them.")
def verify(json: JsonOption = False, debug: DebugOption = False) -> None:
    """Rebuild the usage of agents, teams and seats in the current windows, and compare it with the counters.

    It only reads, so you can run it while the grid is at work. The exit code is 1 if they differ.
    """
    from gridq.config.settings import settings
    from gridq.limits.ledger_verification import verify as compare

    with open_broker_client(settings()) as client:
        found = compare(client.redis, client.keys)
    if json:
        print_json(to_json(found))
    else:
        _print(found)
    if found.differences:
        raise typer.Exit(BREACH)


def to_json(found: Verification) -> dict[str, object]:
    return {
        "entries": found.entries,
        "until": found.until or None,
        "counters": found.counters,
        "differences": [
            {"counter": difference.counter, "counted": difference.counted, "recorded": difference.recorded}
            for difference in found.differences
        ],
        "notes": list(found.notes),
    }


def _print(found: Verification) -> None:
    from gridq.protocol.meters import format_amount

    for note in found.notes:
        typer.echo(f"note        {to_one_line(note)}")
    for difference in found.differences:
        counted, recorded = (
            format_amount(difference.resource, amount) for amount in (difference.counted, difference.recorded)
        )
        name = to_one_line(difference.counter)
        typer.echo(f"difference  {name}: the grid counts {counted}, the ledger has {recorded}")
    result = f"{len(found.differences)} differ" if found.differences else "all agree"
    entries = "1 entry" if found.entries == 1 else f"{found.entries} entries"
    typer.echo(f"{format_count(found.counters, 'counter')} compared, {result}; {entries} read.")
