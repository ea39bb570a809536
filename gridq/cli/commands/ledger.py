"""`gridq ledger`: every attempt and what it cost, and whether the counters agree."""

from __future__ import annotations

import json as jsons
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from gridq.cli.exit_codes import BREACH, EXITS, AsJson, Debug, one_line
from gridq.cli.grid import client_of
from gridq.cli.inputs import instant_of
from gridq.cli.output import echo_json
from gridq.protocol.money import dollars

if TYPE_CHECKING:
    from gridq.limits.verification import Difference, Verified

app = typer.Typer()
ledger = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Every attempt and what it cost, and whether the counters agree.",
    epilog=EXITS,
)
app.add_typer(ledger, name="ledger")

Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME",
        help="From then on: 2026-11-01, 2026-11-01T08:00, or so long ago: 12h, 7d.",
        show_default=False,
    ),
]
"""The option `--since`."""

Until = Annotated[
    str | None,
    typer.Option("--until", metavar="TIME", help="Up to then, in the same form.", show_default=False),
]
"""The option `--until`."""


@ledger.command(epilog=EXITS, short_help="Print the ledger, one JSON object a line.")
def export(since: Since = None, until: Until = None, json: AsJson = False, debug: Debug = False) -> None:
    """Print the ledger as ndjson, the earliest entry first: one JSON object a line, with or without --json.
    It is read page by page, so it may be of any length. No prompt, input or answer stands in it.
    """
    from gridq.config.settings import settings
    from gridq.limits import ledger as entries
    from gridq.limits.accounts import zone_of
    from gridq.store.connection import now_ms, translated

    config = settings()
    with client_of(config) as client, translated(client.url):
        now, zone = now_ms(client.redis), zone_of(client.redis, client.keys, config.timezone)
        start = instant_of(since, "--since", zone, now)
        end = instant_of(until, "--until", zone, now)
        for entry in entries.read(client.redis, client.keys, since=start, until=end):
            sys.stdout.write(jsons.dumps(entry.to_json(), separators=(",", ":")) + "\n")
    sys.stdout.flush()


@ledger.command(epilog=EXITS, short_help="Rebuild the counters from the ledger, and compare.")
def verify(json: AsJson = False, debug: Debug = False) -> None:
    """Rebuild from the ledger what agents, teams and seats have used in the windows that run now, and compare
    it with what the grid counts. It only reads, and may be run on a grid at work. Exit code 1 where they
    differ.
    """
    from gridq.config.settings import settings
    from gridq.limits.verification import verify as compare
    from gridq.store.connection import translated

    with client_of(settings()) as client, translated(client.url):
        found = compare(client.redis, client.keys)
    if json:
        echo_json(as_json(found))
    else:
        _show(found)
    if found.differences:
        raise typer.Exit(BREACH)


def as_json(found: Verified) -> dict[str, object]:
    """All of it for programs."""
    return {
        "entries": found.entries,
        "until": found.until or None,
        "counters": found.counters,
        "differences": [
            {"counter": each.counter, "kept": each.kept, "entered": each.entered}
            for each in found.differences
        ],
        "notes": list(found.notes),
    }


def _show(found: Verified) -> None:
    for note in found.notes:
        typer.echo(f"note        {one_line(note)}")
    for each in found.differences:
        typer.echo(f"difference  {one_line(each.counter)}: the grid counts {_amount(each, each.kept)}, "
                   f"the ledger has {_amount(each, each.entered)}")  # fmt: skip
    word = "agree" if not found.differences else f"were compared, {len(found.differences)} differ"
    counters = "1 counter" if found.counters == 1 else f"{found.counters} counters"
    if found.counters == 1 and not found.differences:
        word = "agrees"
    entries = "1 entry was" if found.entries == 1 else f"{found.entries} entries were"
    typer.echo(f"{counters} {word}; {entries} read.")


def _amount(difference: Difference, number: int) -> str:
    return str(number) if difference.counter.endswith("jobs of the month") else dollars(number)
