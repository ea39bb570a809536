"""Check that this machine's router or worker is live, for supervisors that restart it: `gridq health`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gridq.cli.exit_codes import EPILOG, DebugOption, JsonOption
from gridq.cli.output import print_json

app = typer.Typer()


@app.command(epilog=EPILOG, short_help="Check that this machine's router or worker is live.")
def health(
    seat: Annotated[
        str | None,
        typer.Option(
            "--seat",
            metavar="NAME",
            help="Check this seat of the machine. Default: any seat or router.",
            show_default=False,
        ),
    ] = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Check that a router or worker with this home folder is live, which means that it renews its lease.

    A process that hangs is not live. The exit code is 4 if none is live. A server that may evict keys is an
    error; a server without an append-only file gets a note. With --json, the timeouts in effect at each
    worker are shown.
    """
    from gridq.cli.grid import open_broker_client
    from gridq.config.machine_id import get_machine_id
    from gridq.config.settings import settings
    from gridq.errors import NoLiveSeat
    from gridq.seats import registry
    from gridq.store.capacity import check_persistence
    from gridq.store.connection import now_ms

    config = settings()
    machine = get_machine_id(config.home)
    with open_broker_client(config) as client:
        warning = check_persistence(client.redis)
        found: Any = client.redis.zrangebyscore(client.keys("seats"), f"({now_ms(client.redis)}", "inf")
        ads = registry.read_advertisements(client.redis, client.keys) if json else []
    names = sorted(name.decode() for name in found)
    live = [name for name in names if name.partition(".")[0] == machine]
    if seat is not None:
        live = [name for name in live if name == f"{machine}.{seat}"]
    if not live:
        raise NoLiveSeat(
            f"Nothing is live on {machine}" if seat is None else f"The seat {machine}.{seat} is not live",
            {"path": str(config.home), "fix": "look at its log, then start it again"},
        )
    if json:
        timeouts = {ad.seat: ad.timeouts for ad in ads if ad.seat in live and ad.timeouts}
        print_json({"machine": machine, "live": live, "server": warning, "timeouts": timeouts})
    else:
        typer.echo("live: " + ", ".join(live))
        if warning:
            typer.echo(f"server: {warning}")
