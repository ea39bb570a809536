"""`gridq audit`: whether what must hold in a grid holds in this one now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gridq.cli.exit_codes import BREACH, EXITS, AsJson, Debug, one_line
from gridq.cli.grid import client_of
from gridq.cli.output import echo_json

if TYPE_CHECKING:
    from gridq.protocol.models import Json
    from gridq.views.audit import Check

app = typer.Typer()

SHOWN = 10
"""Breaches of one rule that are printed; `--json` has all."""


@app.command(epilog=EXITS, short_help="Check the grid's records against the rules that must always hold.")
def audit(
    idle: Annotated[
        bool, typer.Option("--idle", help="Nothing runs: then nothing may be left of jobs that ran.")
    ] = False,
    json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Check the records of leases, pending stages, jobs and money against each other, at one instant. It only
    reads, and may be run on a grid at work. Exit code 1 where a rule is broken.
    """
    from gridq.config.settings import settings
    from gridq.store.connection import translated
    from gridq.views import audit as rules

    with client_of(settings()) as client, translated(client.url):
        checks = rules.audit(client.redis, client.keys, idle=idle)
    if json:
        echo_json({"checks": as_json(checks)})
    else:
        show(checks)
    if any(each.breaches for each in checks):
        raise typer.Exit(BREACH)


def show(checks: list[Check]) -> None:
    """Print each rule with `ok` or `breach`, and what breaks it."""
    for each in checks:
        typer.echo(f"{'breach' if each.breaches else 'ok':7} {each.rule}")
        for line in each.breaches[:SHOWN]:
            typer.echo(f"          {one_line(line)}")
        if len(each.breaches) > SHOWN:
            typer.echo(f"          and {len(each.breaches) - SHOWN} more")


def as_json(checks: list[Check]) -> list[dict[str, Json]]:
    """The same for programs."""
    return [{"rule": each.rule, "breaches": list(each.breaches)} for each in checks]
