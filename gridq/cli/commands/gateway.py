"""`gridq gateway`: the grid over HTTP."""

from __future__ import annotations

import contextlib
import gc
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gridq.cli.exit_codes import EXITS, AsJson, Debug
from gridq.cli.output import echo_json
from gridq.config.urls import is_loopback
from gridq.errors import ConfigError, GatewayOpen

if TYPE_CHECKING:
    from gridq.gateway.options import GatewayOptions

app = typer.Typer()


@app.command(epilog=EXITS, short_help="Serve the grid over HTTP: OpenAI's and Anthropic's APIs, and jobs.")
def gateway(
    *,
    host: Annotated[
        str | None,
        typer.Option("--host", metavar="HOST", help="Where to listen; without it on this machine alone."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=0, max=65535, help="Without it 8080, or a free one where that is taken.",
            show_default=False,
        ),
    ] = None,
    certfile: Annotated[
        Path | None, typer.Option("--certfile", metavar="FILE", help="A certificate (PEM), for HTTPS.")
    ] = None,
    keyfile: Annotated[
        Path | None, typer.Option("--keyfile", metavar="FILE", help="The certificate's private key (PEM).")
    ] = None,
    json: AsJson = False,
    debug: Debug = False,
) -> None:  # fmt: skip
    """Serve the grid over HTTP until SIGTERM or Ctrl-C: any program that can change a base URL can use it.

    Beyond this machine it listens only where the grid has API keys (`gridq keys create`). Several gateways
    side by side are equal. At the end open answers may finish within GRIDQ_DRAIN seconds.
    """
    from gridq.config.settings import settings
    from gridq.gateway.app import serve
    from gridq.gateway.options import gateway_options
    from gridq.process import parent_watch
    from gridq.telemetry import logs

    parent_watch.watch()
    config = settings()
    options = gateway_options(host=host, port=port, certfile=certfile, keyfile=keyfile)
    logs.setup(config=config)
    wanted, free = options.port, _is_free(options.host, options.port)
    keyed = _look_at_grid(options)
    if not free:
        if "port" in options.model_fields_set:
            raise ConfigError(
                f"The port {wanted} of {options.host} cannot be listened at",
                {"path": "--port", "reason": "it is taken, or not this machine's", "fix": "choose another"},
            )
        options = options.model_copy(update={"port": 0})

    def listening(url: str) -> None:
        if json:
            echo_json({"url": url, "host": options.host, "port": _port_of(url), "keys": keyed})
        else:
            note = "" if options.port == wanted else f" (port {wanted} is taken)"
            typer.echo(f"Gateway: {url}{note}\nTry it:  {example(url, keyed=keyed)}")
        if not is_loopback(options.host) and options.certfile is None:
            typer.echo(
                "warning: keys cross the network unencrypted; put a proxy with TLS before it, or give "
                "--certfile and --keyfile",
                err=True,
            )
        gc.collect()
        gc.freeze()  # what is loaded by now stays: collections that walk it take a tenth of a request's time

    with contextlib.suppress(KeyboardInterrupt):  # it has ended in order, and as it was told to
        serve(config, options, ready=listening)


def example(url: str, *, keyed: bool) -> str:
    """A command that shows that the gateway at `url` answers."""
    key = " -H 'Authorization: Bearer gq_…'" if keyed else ""
    return f"curl {url}/v1/models{key}"


def _look_at_grid(options: GatewayOptions) -> bool:
    """Whether the grid asks for keys, after a look at its server. BrokerError, SchemaMismatch: it cannot be
    used; GatewayOpen: it asks for none, and the gateway would be open to everybody.
    """
    from gridq.cli.grid import client_of
    from gridq.config.settings import settings
    from gridq.process import parent_watch
    from gridq.store.capacity import check_kept
    from gridq.store.connection import connect, translated
    from gridq.store.readiness import AWAY, await_server

    url = settings().broker_url.get_secret_value()
    with connect(url, name="gridq-gateway", retry=False) as look:
        await_server(look, away=AWAY if parent_watch.supervised() else 0.0)
    with client_of(settings()) as client, translated(client.url):
        check_kept(client.redis)
        client.scripts.adopt()
        keyed = bool(client.redis.exists(client.keys("api_keys")))
    if not keyed and not is_loopback(options.host):
        raise GatewayOpen(
            f"The grid has no API key, and {options.host} is reached beyond this machine",
            {
                "path": "--host",
                "fix": "make a key by `gridq keys create --agent NAME`, or listen on 127.0.0.1",
            },
        )
    return keyed


def _is_free(host: str, port: int) -> bool:
    """Whether `port` can be listened at now; a host that has no address cannot."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        raise ConfigError(
            f"{host!r} is no address to listen at", {"path": "--host", "expected": "such as 127.0.0.1 or ::1"}
        ) from None
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError:
            return False
    return True


def _port_of(url: str) -> int:
    return int(url.rpartition(":")[2])
