"""Find the grid that a command works with, and open a client of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from gridq.client import BaseClient, BrokerClient
    from gridq.config.settings import Settings

GridOption = Annotated[
    str | None,
    typer.Option(
        "--grid",
        metavar="URL",
        help="URL of a gateway (http://…) or of the Redis server (redis://…). "
        "Default: GRIDQ_URL or GRIDQ_BROKER_URL.",
        show_default=False,
    ),
]
"""The option `--grid`."""


def load_settings(grid: str | None) -> Settings:
    """Return the settings, changed by the option `--grid`.

    Raises ConfigError if it is not the URL of a grid.
    """
    from pydantic import SecretStr

    from gridq.config.settings import settings
    from gridq.config.urls import check_url, is_gateway, parse_gateways

    config = settings()
    if grid is None:
        return config
    if is_gateway(grid):
        parse_gateways(grid, "--grid")
        return config.model_copy(update={"url": grid})
    check_url(grid, "--grid")
    return config.model_copy(update={"url": None, "broker_url": SecretStr(grid)})


def describe_grid(config: Settings) -> str:
    """Return where the grid is: the URL of the gateways, or the server and the prefix of the grid's keys."""
    if config.url is not None:
        return config.url
    from gridq.store.connection import redact_url

    return f"{redact_url(config.broker_url.get_secret_value())} under the prefix {config.prefix!r}"


@contextmanager
def open_client(config: Settings) -> Iterator[BaseClient]:
    """Open a client of the grid: through a gateway if the settings name one, else through the server."""
    from gridq.client import Client

    if config.url is None:
        _check_server(config)
    with Client(config=config) as client:
        yield client


@contextmanager
def open_broker_client(config: Settings) -> Iterator[BrokerClient]:
    """Open a client of the server. Within the block, errors of the server are raised as BrokerError."""
    from gridq.client import BrokerClient
    from gridq.store.connection import translate_errors

    _check_server(config)
    with BrokerClient(config=config) as client, translate_errors(client.url):
        yield client


def _check_server(config: Settings) -> None:
    """Raise BrokerError at once if the server cannot be used.

    A client would wait for the server to come back, which is of no use to somebody at a terminal.
    """
    from gridq.store.connection import CONNECT_TIMEOUT_SECONDS, check_server, connect

    url = config.get_broker_url()
    with connect(url, name="gridq-cli", timeout=CONNECT_TIMEOUT_SECONDS, retry=False) as probe:
        check_server(probe)
