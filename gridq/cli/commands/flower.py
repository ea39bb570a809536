"""Run Flower, adapted to the grid: `gridq flower`."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import Annotated
from urllib.parse import urlsplit

import typer

from gridq.cli.commands.gateway import is_port_free
from gridq.cli.exit_codes import EPILOG, INTERRUPTED, DebugOption, JsonOption
from gridq.cli.output import print_json
from gridq.config.urls import is_loopback
from gridq.errors import ConfigError

app = typer.Typer()


@app.command(epilog=EPILOG, short_help="Watch the grid in a browser, with Flower.")
def flower(
    *,
    address: Annotated[
        str, typer.Option("--address", metavar="HOST", help="Address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=0, max=65535, help="Port to listen on. Default: 5555, or a free port if taken.",
            show_default=False,
        ),
    ] = None,
    public_url: Annotated[
        str | None,
        typer.Option(
            "--public-url",
            metavar="URL",
            help="URL at which a proxy serves it, such as https://grid.example.com/flower.",
            show_default=False,
        ),
    ] = None,
    control: Annotated[
        bool, typer.Option("--control", help="Let users cancel jobs and stop workers. Default: read only.")
    ] = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:  # fmt: skip
    """Run Flower until SIGTERM or Ctrl-C: a web page with the workers, the queues, and every job and stage.

    Log in as the user `gridq`. The password is in the file that is printed at the start.
    """
    from gridq.config import flower_login
    from gridq.config.settings import settings
    from gridq.process import parent_watch
    from gridq.store.connection import connect
    from gridq.store.readiness import AWAY_SECONDS, wait_for_server

    parent_watch.end_with_parent()
    config = settings()
    path = _get_url_path(public_url)
    with connect(config.get_broker_url(), name="gridq-flower", retry=False) as probe:
        wait_for_server(probe, away=AWAY_SECONDS if parent_watch.is_supervised() else 0.0)

    flower_login.read_password(config)  # fail here, not while Flower parses its options
    from gridq.messaging import flower_app

    def announce(scheme: str, actual_port: int) -> None:
        local_url = f"{scheme}://{f'[{address}]' if ':' in address else address}:{actual_port}"
        url, file = public_url or local_url, str(flower_login.get_password_file(config))
        if json:
            print_json(
                {
                    "url": url,
                    "address": address,
                    "port": actual_port,
                    "user": flower_login.USER,
                    "password_file": file,
                }
            )
        else:
            notes = [f"listening at {local_url}"] if public_url else []
            notes += (
                [f"port {flower_login.PORT} is taken"]
                if port is None and actual_port != flower_login.PORT
                else []
            )
            note = f" ({', '.join(notes)})" if notes else ""
            typer.echo(f"Flower: {url}{note}, user {flower_login.USER}, password in {file}")
        if scheme == "http" and not is_loopback(address) and not (public_url or "").startswith("https://"):
            typer.echo(
                "warning: the password crosses the network unencrypted. Put a proxy with TLS in front, or "
                "set FLOWER_CERTFILE and FLOWER_KEYFILE",
                err=True,
            )

    arguments = [f"--address={address}", f"--port={_choose_port(address) if port is None else port}"]
    if path:
        arguments.append(f"--url-prefix={path}")
    spec = find_spec("broker_config.flowerconfig")
    assert spec is not None
    assert spec.origin is not None
    code = 0
    try:
        flower_app.serve(arguments, control=control, on_listening=announce, conf=spec.origin)
    except KeyboardInterrupt:
        code = INTERRUPTED
    # Exit at once: one of Flower's threads may wait for a server that is gone, and Python waits for threads.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _choose_port(address: str) -> int:
    """Return Flower's default port, or 0 (any free port) if it is taken."""
    from gridq.config.flower_login import PORT

    return PORT if is_port_free(address, PORT, "--address") else 0


def _get_url_path(url: str | None) -> str:
    """Return the path of a public URL, without slashes at its ends.

    Raises ConfigError if it is not the URL of a page.
    """
    if url is None:
        return ""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.netloc or parts.query or parts.fragment:
        raise ConfigError(
            "--public-url is not a valid URL",
            {"path": "--public-url", "expected": "a URL such as https://grid.example.com/flower"},
        )
    return parts.path.strip("/")
