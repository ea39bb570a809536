"""The client that a command works with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gridq.client import BrokerClient
    from gridq.settings import Settings


def place_of_grid(config: Settings) -> str:
    """Where a command looked: the server and, as several grids may share one, the prefix."""
    from gridq.store.connection import safe_url

    return f"{safe_url(config.broker_url.get_secret_value())} under the prefix {config.prefix!r}"


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
