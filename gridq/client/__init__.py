"""The plain client: submit, wait, stream, cancel. It needs the URL of a gateway or of the grid's server, and
nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from gridq.client.base import AsyncClient, Client
from gridq.jobs.waiting import Piece
from gridq.protocol.models import Json

if TYPE_CHECKING:
    from gridq.client.broker_client import AsyncBrokerClient, BrokerClient
    from gridq.client.gateway_client import AsyncGatewayClient, GatewayClient

__all__ = [
    "AsyncBrokerClient",
    "AsyncClient",
    "AsyncGatewayClient",
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
def default() -> Client:
    """This process's client of the grid that the settings name."""
    return Client()


def submit(graph: Json, input: Json = None, *, job: str | None = None, **options: Json) -> str:
    """`Client.submit` of the default client."""
    return default().submit(graph, input, job=job, **options)


def result(job: str, timeout: float | None = None) -> Json:
    """`Client.result` of the default client."""
    return default().result(job, timeout)


def stream(job: str, timeout: float | None = None) -> Iterator[Piece]:
    """`Client.stream` of the default client."""
    return default().stream(job, timeout)


def cancel(job: str) -> bool:
    """`Client.cancel` of the default client."""
    return default().cancel(job)


def __getattr__(name: str) -> Any:
    """The ways to a grid, each imported when it is asked for: one needs no HTTP, the other no redis."""
    ways = {
        "BrokerClient": "gridq.client.broker_client",
        "AsyncBrokerClient": "gridq.client.broker_client",
        "GatewayClient": "gridq.client.gateway_client",
        "AsyncGatewayClient": "gridq.client.gateway_client",
    }
    if name not in ways:
        raise AttributeError(f"module 'gridq.client' has no attribute {name!r}")
    return getattr(import_module(ways[name]), name)
