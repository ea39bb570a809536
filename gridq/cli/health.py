"""`gridq health`: whether what runs on this machine is live, for whoever restarts it where it is not."""

from __future__ import annotations

from typing import Annotated

import typer

from gridq.cli.exits import EXITS, AsJson, Debug
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
    from gridq import registry
    from gridq.cli.server import client_of
    from gridq.errors import NoLiveSeat
    from gridq.machine import machine_id
    from gridq.settings import settings
    from gridq.store.capacity import check_kept

    config = settings()
    machine = machine_id(config.home)
    with client_of(config) as client:
        look = client.redis.pipeline(transaction=False)
        shortcoming = check_kept(client.redis)
        look.time()
        look.zrange(client.keys("seats"), 0, -1, withscores=True)
        (seconds, micros), found = look.execute()
        ads = {ad.seat: ad.timeouts for ad in registry.seats(client.redis, client.keys)}
    now = seconds * 1000 + micros / 1000
    here = [name.decode() for name, until in found if until > now]
    live = [name for name in here if name.partition(".")[0] == machine]
    if seat is not None:
        live = [name for name in live if name == f"{machine}.{seat}"]
    if not live:
        raise NoLiveSeat(
            f"Nothing is live on {machine}" if seat is None else f"The seat {machine}.{seat} is not live",
            {"path": str(config.home), "fix": "look at its log, and start it again"},
        )
    if json:
        timeouts = {name: ads[name] for name in sorted(live) if ads.get(name)}
        echo_json({"machine": machine, "live": sorted(live), "server": shortcoming, "timeouts": timeouts})
    else:
        typer.echo("live: " + ", ".join(sorted(live)))
        if shortcoming:
            typer.echo(f"server: {shortcoming}")
