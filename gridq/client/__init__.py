"""Submit jobs and read a grid from Python: `Client`, `AsyncClient` and four functions of a default client.

In: the URL of a gateway or of the grid's Redis server.
Out: results, pieces, views of jobs, queues and seats, or a GridError.
Imported by: gateway, cli, workers and the programs of users.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from gridq.client.base import BaseAsyncClient, BaseClient
from gridq.client.client import AsyncClient, Client
from gridq.jobs.waiting import Piece
from gridq.protocol.models import Json

if TYPE_CHECKING:
    from gridq.client.broker_client import AsyncBrokerClient, BrokerClient
    from gridq.client.gateway_client import AsyncGatewayClient, GatewayClient

__all__ = [
    "AsyncBrokerClient",
    "AsyncClient",
    "AsyncGatewayClient",
    "BaseAsyncClient",
    "BaseClient",
    "BrokerClient",
    "Client",
    "GatewayClient",
    "Piece",
    "cancel",
    "default",
    "result",
    "stream",
    "submit",
]


@cache
def get_default_client() -> Client:
    """Return this process's client of the grid that the settings name."""
    return Client()


def submit(graph: Json, input: Json = None, *, job: str | None = None, **options: Json) -> str:
    """Submit a graph with the default client; see `Client.submit`."""
    return get_default_client().submit(graph, input, job=job, **options)


def result(job: str, timeout: float | None = None) -> Json:
    """Return the result of a job with the default client; see `Client.result`."""
    return get_default_client().result(job, timeout)


def stream(job: str, timeout: float | None = None) -> Iterator[Piece]:
    """Yield the pieces of a job with the default client; see `Client.stream`."""
    return get_default_client().stream(job, timeout)


def cancel(job: str) -> bool:
    """Cancel a job with the default client; see `Client.cancel`."""
    return get_default_client().cancel(job)


def __getattr__(name: str) -> Any:
    """Import the class of one kind of client on first use: one needs no HTTP library, the other no Redis."""
    if name in {"BrokerClient", "AsyncBrokerClient"}:
        from gridq.client import broker_client

        return getattr(broker_client, name)
    if name in {"GatewayClient", "AsyncGatewayClient"}:
        from gridq.client import gateway_client

        return getattr(gateway_client, name)
    raise AttributeError(f"module 'gridq.client' has no attribute {name!r}")
