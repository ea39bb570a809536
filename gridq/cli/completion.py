"""Complete arguments in the shell with names from the grid, if it answers at once.

A completion never prints an error: without a server there is nothing to offer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from gridq.client import BaseClient

TIMEOUT_SECONDS = 1.0
"""The time that a completion may wait for the server."""


def complete_job_ids(incomplete: str) -> list[tuple[str, str]]:
    """Offer the ids of the latest jobs, with their names and states."""
    return _query(
        lambda client: [
            (summary.job, f"{summary.name} {summary.state}")
            for summary in client.jobs(200)
            if summary.job.startswith(incomplete)
        ]
    )


JobArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="Job id, or the beginning of it.",
        autocompletion=complete_job_ids,
        show_default=False,
    ),
]
"""The argument of commands about one job."""


def complete_seat_names(incomplete: str) -> list[tuple[str, str]]:
    """Offer the live seats, with their states."""
    return _query(
        lambda client: [
            (seat.seat, seat.state) for seat in client.workers() if seat.seat.startswith(incomplete)
        ]
    )


def complete_states(incomplete: str) -> list[str]:
    """Offer the states of a job."""
    from gridq.protocol.states import JobState

    return [state for state in JobState if state.startswith(incomplete)]


def _query(read: Callable[[BaseClient], list[tuple[str, str]]]) -> list[tuple[str, str]]:
    with suppress(Exception), _open_client() as client:
        return read(client)
    return []


@contextmanager
def _open_client() -> Iterator[BaseClient]:
    from gridq.config.settings import settings

    config = settings()
    if config.url is not None:
        from gridq.client.gateway_calls import Gateways
        from gridq.client.gateway_client import GatewayClient

        with GatewayClient(config=config) as gateway_client:
            gateway_client.gateways.close()
            gateway_client.gateways = Gateways(config.url, config.key, timeout=TIMEOUT_SECONDS)
            yield gateway_client
        return
    from gridq.client.broker_client import BrokerClient
    from gridq.store.connection import connect

    with BrokerClient(config=config) as client:
        client.redis.close()
        client.redis = connect(client.url, name="gridq-complete", timeout=TIMEOUT_SECONDS, retry=False)
        yield client
