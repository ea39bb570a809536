"""Check the grid's records against its rules: `gridq audit`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gridq.cli.exit_codes import BREACH, EPILOG, DebugOption, JsonOption, to_one_line
from gridq.cli.grid import open_broker_client
from gridq.cli.output import print_json

if TYPE_CHECKING:
    from gridq.protocol.models import Json
    from gridq.views.audit import Check

app = typer.Typer()

MAX_BREACHES = 10
"""The most breaches of one rule that are printed; `--json` has all."""


@app.command(epilog=EPILOG, short_help="Check that the grid's records are consistent.")
def audit(
    idle: Annotated[
        bool,
        typer.Option(
            "--idle", help="No job is running now: also check that no ended job left anything behind."
        ),
    ] = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Check the records of leases, pending stages, jobs and money against each other, in one snapshot.

    It only reads, so you can run it while the grid is at work. The exit code is 1 if a rule is broken.
    """
    from gridq.config.settings import settings
    from gridq.views import audit as audit_view

    with open_broker_client(settings()) as client:
        checks = audit_view.run_audit(client.redis, client.keys, idle=idle)
    if json:
        print_json({"checks": to_json(checks)})
    else:
        print_checks(checks)
    if any(check.breaches for check in checks):
        raise typer.Exit(BREACH)


def print_checks(checks: list[Check]) -> None:
    """Print each rule with `ok` or `breach`, followed by the breaches."""
    for check in checks:
        typer.echo(f"{'breach' if check.breaches else 'ok':7} {check.rule}")
        for line in check.breaches[:MAX_BREACHES]:
            typer.echo(f"          {to_one_line(line)}")
        if len(check.breaches) > MAX_BREACHES:
            typer.echo(f"          and {len(check.breaches) - MAX_BREACHES} more")


def to_json(checks: list[Check]) -> list[dict[str, Json]]:
    return [{"rule": check.rule, "breaches": list(check.breaches)} for check in checks]
