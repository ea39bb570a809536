"""The grid that a command works with: which it is, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from gridq.client import BrokerClient, Client
    from gridq.config.settings import Settings

GridUrl = Annotated[
    str | None,
    typer.Option(
        "--grid",
        metavar="URL",
        help="A gateway (http://…) or the grid's server (redis://…), instead of GRIDQ_URL.",
        show_default=False,
    ),
]
"""The option `--grid`."""


def settings_for(grid: str | None) -> Settings:
    """The settings, with what `--grid` says in them. ConfigError: that is no URL of a grid."""
    from pydantic import SecretStr

    from gridq.config.settings import settings
    from gridq.config.urls import check_url, gateways, is_gateway

    config = settings()
    if grid is None:
        return config
    if is_gateway(grid):
        gateways(grid, "--grid")
        return config.model_copy(update={"url": grid})
    check_url(grid, "--grid")
    return config.model_copy(update={"url": None, "broker_url": SecretStr(grid)})


def place_of_grid(config: Settings) -> str:
    """Where a command looked: the gateways, or the server and, as several grids may share one, the prefix."""
    if config.url is not None:
        return config.url
    from gridq.store.connection import safe_url

    return f"{safe_url(config.broker_url.get_secret_value())} under the prefix {config.prefix!r}"


@contextmanager
def grid_of(config: Settings) -> Iterator[Client]:
    """A client of the grid that the settings name: by a gateway where they name one, else as `client_of`."""
    if config.url is None:
        with client_of(config) as server:
            yield server
        return
    from gridq.client import Client

    with Client(config=config) as client:
        yield client


@contextmanager
def client_of(config: Settings) -> Iterator[BrokerClient]:
    """A client of the server that the settings name, after a look at it.

    BrokerError at once where it cannot be used: who sits at a terminal need not wait for a server to come
    back, which the client itself does.
    """
    from gridq.client import BrokerClient
    from gridq.store.connection import CONNECT_TIMEOUT, check_server, connect

    url = config.broker_url.get_secret_value()
    with connect(url, name="gridq-cli", timeout=CONNECT_TIMEOUT, retry=False) as look:
        check_server(look)
    client = BrokerClient(config=config)
    try:
        yield client
    finally:
        client.close()
