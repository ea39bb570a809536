"""A seat of the last resort leaves its queues to the others, and takes them back once they have gone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gridq.client import Client
from gridq.seats.registry import is_served_by_others
from tests.conftest import GridEnv
from tests.unit.seats.live_seats import add_live_seat, open_client
from workers.process.last_resort import LastResort

ANY = "llm:any"


@pytest.fixture
def client(grid_env: GridEnv) -> Iterator[Client]:
    with open_client(grid_env) as opened:
        yield opened


def is_served(client: Client) -> bool:
    return is_served_by_others(client.redis, client.keys, ANY, "toy.cpu")


@pytest.mark.parametrize(
    ("other", "counts"),
    [
        ({"state": "ready"}, True),
        ({"last_resort": [ANY]}, False),
        ({"last_resort": ["llm:other"]}, True),
        ({"lends_to": ["bob"]}, False),
        ({}, False),  # it has not said what it is
    ],
)
def test_only_what_everybody_may_use_and_is_no_last_resort_counts(
    client: Client, other: dict[str, Any], counts: bool
) -> None:
    add_live_seat(client, "toy.cpu", ANY, last_resort=[ANY])
    assert not is_served(client)
    add_live_seat(client, "big.gpu0", ANY, **other)
    assert is_served(client) is counts


def test_a_seat_that_takes_no_work_does_not_count(client: Client) -> None:
    add_live_seat(client, "big.gpu0", "llm:big", ANY, state="ready")
    assert is_served(client)
    client.scripts.leave("big.gpu0", "i-big.gpu0", "drain")
    assert not is_served(client)


def test_a_change_is_told_once(client: Client) -> None:
    told: list[frozenset[str]] = []
    last = LastResort(client.redis, client.keys, "toy.cpu", [ANY], lambda: told.append(last.served_elsewhere))
    last.look()
    assert told == []
    add_live_seat(client, "big.gpu0", ANY, state="ready")
    last.look()
    last.look()
    client.scripts.leave("big.gpu0", "i-big.gpu0", "go")
    last.look()
    assert told == [{ANY}, set()]
