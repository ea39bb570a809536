"""Seats that are live without a worker, and a client of their grid."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gridq.app import app
from gridq.client import Client
from gridq.messaging import wake_ups
from gridq.protocol.models import Advertisement, Limit
from gridq.seats import registry
from tests.builders import stage
from tests.conftest import GridEnv
from tests.fakes.bench_profile import BENCH


@contextmanager
def open_client(grid_env: GridEnv) -> Iterator[Client]:
    """A client with the bench profile, on a grid that answers wake-ups."""
    config = grid_env.settings.model_copy(update={"profiles": (BENCH,)})
    with Client(config=config) as started:
        wake_ups.write_templates(app, started.redis, started.keys)
        yield started


def add_live_seat(
    client: Client, seat: str, *queues: str, concurrency: int = 1, budget: int | None = None, **details: Any
) -> None:
    """Make a seat live; where something is said of it, it advertises."""
    limits = [] if budget is None else [Limit(resource="money", window="month", amount=budget)]
    kwargs: dict[str, Any] = {
        "concurrency": concurrency,
        "limits": limits,
        "queues": queues,
        "record_ttl_ms": 60_000,
    }
    client.scripts.register(seat, f"i-{seat}", host=seat, **kwargs)
    machine, _, name = seat.partition(".")
    if details:
        ad = Advertisement(
            seat=seat, machine=machine, worker=f"{name}@{machine}", incarnation=f"i-{seat}", kind="bench",
            concurrency=concurrency, queues=list(queues), **details,
        )  # fmt: skip
        registry.advertise(client.redis, client.keys, ad, 10)


def echo_graph(slug: str = "any") -> dict[str, Any]:
    return {"root": stage("bench_echo", slug=slug)}
