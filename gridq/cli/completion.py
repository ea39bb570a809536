"""What a shell offers for an argument: the grid's own names, where it answers at once.

A completion never complains: without a server there is nothing to offer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gridq.client import Client

PATIENCE = 1.0
"""Seconds that a completion may wait for the server."""

STATES = ("queued", "running", "done", "failed", "cancelled", "expired")


def job_ids(incomplete: str) -> list[tuple[str, str]]:
    """The latest jobs, with their names and states."""
    return _offered(
        lambda client: [
            (summary.job, f"{summary.name} {summary.state}")
            for summary in client.jobs(200)
            if summary.job.startswith(incomplete)
        ]
    )


def seat_names(incomplete: str) -> list[tuple[str, str]]:
    """The live seats, with their states."""
    return _offered(
        lambda client: [
            (seat.seat, seat.state) for seat in client.workers() if seat.seat.startswith(incomplete)
        ]
    )


def states(incomplete: str) -> list[str]:
    """The states of a job."""
    return [state for state in STATES if state.startswith(incomplete)]


def _offered(look: Callable[[Client], list[tuple[str, str]]]) -> list[tuple[str, str]]:
    with suppress(Exception), _client() as client:
        return look(client)
    return []


@contextmanager
def _client() -> Iterator[Client]:
    from gridq.config.settings import settings

    config = settings()
    if config.url is not None:
        from gridq.client.gateway_calls import Gateways
        from gridq.client.gateway_client import GatewayClient

        with GatewayClient(config=config) as asked:
            asked.gateways.close()
            asked.gateways = Gateways(config.url, config.key, patience=PATIENCE)
            yield asked
        return
    from gridq.client.broker_client import BrokerClient
    from gridq.store.connection import connect

    with BrokerClient(config=config) as client:
        client.redis.close()
        client.redis = connect(client.url, name="gridq-complete", timeout=PATIENCE, retry=False)
        yield client
