"""`gridq flower`: Flower, fitted to the grid."""

from __future__ import annotations

import os
import socket
import sys
from importlib.util import find_spec
from typing import Annotated
from urllib.parse import urlsplit

import typer

from gridq.cli.exit_codes import EXITS, INTERRUPTED, AsJson, Debug
from gridq.cli.output import echo_json
from gridq.config.urls import is_loopback
from gridq.errors import ConfigError

app = typer.Typer()


@app.command(epilog=EXITS, short_help="Show the grid in a browser, with Flower.")
def flower(
    *,
    address: Annotated[
        str, typer.Option("--address", metavar="HOST", help="Where to listen.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=0, max=65535, help="Without it 5555, or a free one where that is taken.",
            show_default=False,
        ),
    ] = None,
    public_url: Annotated[
        str | None,
        typer.Option(
            "--public-url",
            metavar="URL",
            help="Where a proxy shows it, such as https://grid.example.com/flower.",
            show_default=False,
        ),
    ] = None,
    control: Annotated[
        bool, typer.Option("--control", help="Let Flower cancel jobs and stop workers; else it only shows.")
    ] = False,
    json: AsJson = False,
    debug: Debug = False,
) -> None:  # fmt: skip
    """Run Flower until SIGTERM or Ctrl-C: the workers, the queues, each job and stage, in a browser.

    The user is `gridq`; the password stands in the file that is printed at the start.
    """
    from gridq.config import flower_login
    from gridq.config.settings import settings
    from gridq.process import parent_watch
    from gridq.store.connection import connect
    from gridq.store.readiness import AWAY, await_server

    parent_watch.watch()
    config = settings()
    path = _path_of(public_url)
    with connect(config.broker_url.get_secret_value(), name="gridq-flower", retry=False) as look:
        await_server(look, away=AWAY if parent_watch.supervised() else 0.0)

    flower_login.password(config)  # told now, and not by Flower in the midst of its options
    from gridq.messaging import flower_app

    def listening(scheme: str, at: int) -> None:
        own = f"{scheme}://{f'[{address}]' if ':' in address else address}:{at}"
        url, file = public_url or own, str(flower_login.password_file(config))
        if json:
            echo_json(
                {"url": url, "address": address, "port": at, "user": flower_login.USER, "password_file": file}
            )
        else:
            notes = [f"listening at {own}"] if public_url else []
            notes += (
                [f"port {flower_login.PORT} is taken"] if port is None and at != flower_login.PORT else []
            )
            note = f" ({', '.join(notes)})" if notes else ""
            typer.echo(f"Flower: {url}{note}, user {flower_login.USER}, password in {file}")
        if scheme == "http" and not is_loopback(address) and not (public_url or "").startswith("https://"):
            typer.echo(
                "warning: the password crosses the network unencrypted; put a proxy with TLS before it, or "
                "set FLOWER_CERTFILE and FLOWER_KEYFILE",
                err=True,
            )

    arguments = [f"--address={address}", f"--port={_port(address) if port is None else port}"]
    if path:
        arguments.append(f"--url-prefix={path}")
    spec = find_spec("broker_config.flowerconfig")
    assert spec is not None
    assert spec.origin is not None
    code = 0
    try:
        flower_app.serve(arguments, control=control, listening=listening, conf=spec.origin)
    except KeyboardInterrupt:
        code = INTERRUPTED
    # One of Flower's threads may wait for a server that is gone, and Python would wait for the thread.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _port(address: str) -> int:
    """Flower's own port, or 0 for any where it is taken."""
    from gridq.config.flower_login import PORT

    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, PORT))
        except OSError:
            return 0
    return PORT


def _path_of(url: str | None) -> str:
    """The path in a public URL, without its slashes."""
    if url is None:
        return ""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.netloc or parts.query or parts.fragment:
        raise ConfigError(
            "--public-url is not the address of a page",
            {"path": "--public-url", "expected": "such as https://grid.example.com/flower"},
        )
    return parts.path.strip("/")
