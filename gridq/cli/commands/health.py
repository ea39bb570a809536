"""`gridq health`: whether what runs on this machine is live, for whoever restarts it where it is not."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gridq.cli.exit_codes import EXITS, AsJson, Debug
from gridq.cli.output import echo_json

app = typer.Typer()


@app.command(epilog=EXITS, short_help="Check that this machine's router or worker is live.")
def health(
    seat: Annotated[
        str | None,
        typer.Option(
            "--seat", metavar="NAME", help="This seat of this machine; any without it.", show_default=False
        ),
    ] = None,
    json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Check that a router or a worker that runs with this home folder is live: the server renews its lease.

    A process that hangs is not, though it still runs. Exit code 4 where none is. A server that evicts is an
    error, one without an append-only file is told of. With `--json` the timeouts are shown that are in effect
    at each worker, as it read them back at its start.
    """
    from gridq.cli.grid import client_of
    from gridq.config.machine_id import machine_id
    from gridq.config.settings import settings
    from gridq.errors import NoLiveSeat
    from gridq.seats import registry
    from gridq.store.capacity import check_kept
    from gridq.store.connection import now_ms

    config = settings()
    machine = machine_id(config.home)
    with client_of(config) as client:
        shortcoming = check_kept(client.redis)
        found: Any = client.redis.zrangebyscore(client.keys("seats"), f"({now_ms(client.redis)}", "inf")
        ads = registry.seats(client.redis, client.keys) if json else []
    names = sorted(name.decode() for name in found)
    live = [name for name in names if name.partition(".")[0] == machine]
    if seat is not None:
        live = [name for name in live if name == f"{machine}.{seat}"]
    if not live:
        raise NoLiveSeat(
            f"Nothing is live on {machine}" if seat is None else f"The seat {machine}.{seat} is not live",
            {"path": str(config.home), "fix": "look at its log, and start it again"},
        )
    if json:
        timeouts = {ad.seat: ad.timeouts for ad in ads if ad.seat in live and ad.timeouts}
        echo_json({"machine": machine, "live": live, "server": shortcoming, "timeouts": timeouts})
    else:
        typer.echo("live: " + ", ".join(live))
        if shortcoming:
            typer.echo(f"server: {shortcoming}")
