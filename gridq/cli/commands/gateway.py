"""Serve the grid over HTTP: `gridq gateway`."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gridq.cli.exit_codes import EPILOG, DebugOption, JsonOption
from gridq.cli.output import print_json
from gridq.config.urls import is_loopback
from gridq.errors import ConfigError, GatewayOpen
from gridq.process.heap import settle_heap

if TYPE_CHECKING:
    from gridq.gateway.options import GatewayOptions

app = typer.Typer()


@app.command(epilog=EPILOG, short_help="Serve the grid over HTTP: OpenAI and Anthropic APIs, and jobs.")
def gateway(
    *,
    host: Annotated[
        str | None,
        typer.Option("--host", metavar="HOST", help="Address to listen on. Default: only this machine."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=0, max=65535, help="Port to listen on. Default: 8080, or a free port if taken.",
            show_default=False,
        ),
    ] = None,
    certfile: Annotated[
        Path | None, typer.Option("--certfile", metavar="FILE", help="Certificate (PEM), to serve HTTPS.")
    ] = None,
    keyfile: Annotated[
        Path | None, typer.Option("--keyfile", metavar="FILE", help="Private key of the certificate (PEM).")
    ] = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:  # fmt: skip
    """Serve the grid over HTTP until SIGTERM or Ctrl-C. Any program whose base URL you can change can use it.

    It listens beyond this machine only if the grid has API keys (`gridq keys create`). You can run several
    gateways side by side. At shutdown, open requests have GRIDQ_DRAIN seconds to finish.
    """
    from gridq.config.settings import settings
    from gridq.gateway.app import serve
    from gridq.gateway.options import load_options
    from gridq.process import parent_watch
    from gridq.telemetry import logs

    parent_watch.end_with_parent()
    config = settings()
    options = load_options(host=host, port=port, certfile=certfile, keyfile=keyfile)
    logs.setup(config=config)
    requested_port, is_free = options.port, is_port_free(options.host, options.port, "--host")
    needs_key = _check_grid(options)
    if not is_free:
        if "port" in options.model_fields_set:
            raise ConfigError(
                f"Cannot listen on port {requested_port} of {options.host}",
                {
                    "path": "--port",
                    "reason": "the port is taken, or the address is not this machine's",
                    "fix": "choose another port",
                },
            )
        options = options.model_copy(update={"port": 0})

    def announce(url: str) -> None:
        if json:
            print_json({"url": url, "host": options.host, "port": _get_port(url), "keys": needs_key})
        else:
            note = "" if options.port == requested_port else f" (port {requested_port} is taken)"
            typer.echo(f"Gateway: {url}{note}\nTry it:  {format_example(url, needs_key=needs_key)}")
        if not is_loopback(options.host) and options.certfile is None:
            typer.echo(
                "warning: API keys cross the network unencrypted. Put a proxy with TLS in front, or use "
                "--certfile and --keyfile",
                err=True,
            )
        settle_heap()

    with contextlib.suppress(KeyboardInterrupt):  # the shutdown was orderly
        serve(config, options, ready=announce)


def format_example(url: str, *, needs_key: bool) -> str:
    """Return a command that shows that the gateway at `url` answers."""
    key = " -H 'Authorization: Bearer gq_…'" if needs_key else ""
    return f"curl {url}/v1/models{key}"


def _check_grid(options: GatewayOptions) -> bool:
    """Check that the grid can be used, and return whether it requires API keys.

    Raises BrokerError or SchemaMismatch if it cannot be used, and GatewayOpen if it requires no keys although
    the gateway would be reachable from other machines.
    """
    from gridq.cli.grid import open_broker_client
    from gridq.config.settings import settings
    from gridq.process import parent_watch
    from gridq.store.capacity import check_persistence
    from gridq.store.connection import connect
    from gridq.store.readiness import AWAY_SECONDS, wait_for_server

    url = settings().get_broker_url()
    with connect(url, name="gridq-gateway", retry=False) as probe:
        wait_for_server(probe, away=AWAY_SECONDS if parent_watch.is_supervised() else 0.0)
    with open_broker_client(settings()) as client:
        check_persistence(client.redis)
        client.scripts.adopt()
        needs_key = bool(client.redis.exists(client.keys("api_keys")))
    if not needs_key and not is_loopback(options.host):
        raise GatewayOpen(
            f"The grid has no API keys, and {options.host} is reachable from other machines",
            {
                "path": "--host",
                "fix": "create a key with `gridq keys create --agent NAME`, or listen on 127.0.0.1",
            },
        )
    return needs_key


def is_port_free(host: str, port: int, option: str) -> bool:
    """Return whether `port` can be listened on now.

    Raises ConfigError if `host`, the value of `option`, has no address.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        raise ConfigError(
            f"{host!r} is not an address to listen on",
            {"path": option, "expected": "an address such as 127.0.0.1 or ::1"},
        ) from None
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError:
            return False
    return True


def _get_port(url: str) -> int:
    return int(url.rpartition(":")[2])
