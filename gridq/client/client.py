"""Make a client from a URL: `Client` and `AsyncClient`.

The URL decides which class you get: http:// and https:// lead to a gateway, all others to the Redis server.
Each class is imported when it is first used, because one needs no HTTP library and the other no Redis client.
"""

from __future__ import annotations

from abc import ABCMeta
from typing import Any, cast

from gridq.client.base import BaseAsyncClient, BaseClient
from gridq.config.settings import Settings, settings
from gridq.config.urls import is_gateway


class Client(BaseClient, metaclass=ABCMeta):
    """A client of one grid: a BrokerClient or a GatewayClient, as the URL says. Threads may share it.

    `url` is the URL of a gateway, `http://host:port` or `https://…`; or of several gateways of one grid,
    separated by commas; or of the grid's Redis server: `redis://`, `rediss://`, `unix://`, `sentinel://`. If
    it is None, GRIDQ_URL is used, and if that is not set, GRIDQ_BROKER_URL. `key` is the API key, by default
    GRIDQ_KEY.

    Every client is an instance of this class for `isinstance`, whichever class made it.
    """

    def __new__(
        cls, url: str | None = None, key: str | None = None, *, config: Settings | None = None
    ) -> Client:
        client: BaseClient
        if leads_to_gateway(url, config):
            from gridq.client.gateway_client import GatewayClient

            client = GatewayClient(url, key, config=config)
        else:
            from gridq.client.broker_client import BrokerClient

            client = BrokerClient(url, key, config=config)
        return cast("Client", client)

    @classmethod
    def __subclasshook__(cls, other: type) -> Any:
        return issubclass(other, BaseClient) if cls is Client else NotImplemented


class AsyncClient(BaseAsyncClient, metaclass=ABCMeta):
    """A client of one grid for asyncio. It takes the arguments and has the methods of Client."""

    def __new__(
        cls, url: str | None = None, key: str | None = None, *, config: Settings | None = None
    ) -> AsyncClient:
        client: BaseAsyncClient
        if leads_to_gateway(url, config):
            from gridq.client.gateway_client import AsyncGatewayClient

            client = AsyncGatewayClient(url, key, config=config)
        else:
            from gridq.client.broker_client import AsyncBrokerClient

            client = AsyncBrokerClient(url, key, config=config)
        return cast("AsyncClient", client)

    @classmethod
    def __subclasshook__(cls, other: type) -> Any:
        return issubclass(other, BaseAsyncClient) if cls is AsyncClient else NotImplemented


def leads_to_gateway(url: str | None, config: Settings | None) -> bool:
    """Return whether a client made with these arguments reaches the grid through a gateway."""
    given = url or (config or settings()).url
    return given is not None and is_gateway(given)
