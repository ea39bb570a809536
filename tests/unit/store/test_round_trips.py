"""To hold and to settle is one round trip each, whatever budgets and quotas bind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
from redis import Connection, ConnectionPool, Redis

from gridq.limits.quotas_file import AgentLimit, Limits, SeatLimit, TeamLimit
from gridq.protocol.models import Limit
from gridq.store.replies import Claim
from tests.conftest import GridEnv
from tests.unit.store.plans import Grid, chain, one

DOLLAR = 1_000_000
T = TypeVar("T")


class Counting(Connection):
    """A connection that counts what it sends, a pipeline's commands as one."""

    sent = 0

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        self.sent += 1
        super().send_packed_command(command, check_health)


class Counted:
    """Counts the round trips of one client, whose commands all go over one connection."""

    def __init__(self, url: str) -> None:
        self.pool = ConnectionPool.from_url(url, connection_class=Counting, max_connections=1)
        self.client = Redis(connection_pool=self.pool)

    def __call__(self, act: Callable[[], T]) -> tuple[int, T]:
        """Return the number of round trips of `act`, and its result."""
        before = self._sent()
        found = act()
        return self._sent() - before, found

    def _sent(self) -> int:
        connection = self.pool.get_connection()
        self.pool.release(connection)
        assert isinstance(connection, Counting)
        return connection.sent


@pytest.fixture
def client_counter(grid: Grid, grid_env: GridEnv) -> Iterator[Counted]:
    """Count the round trips of the client of `grid`, with a seat and an agent under every kind of limit."""
    grid.seat(budget=50 * DOLLAR, requests_per_minute=60)
    limits = Limits(
        {"ann": AgentLimit("lab", 20 * DOLLAR, 100)},
        {"lab": TeamLimit(30 * DOLLAR, 200)},
        {"m.a": SeatLimit((Limit(resource="money", window="day", amount=40 * DOLLAR),), 60)},
        digest="all",
    )
    grid.scripts.apply_limits(limits.digest, "{}", limits.to_fields())
    for text in grid.scripts.sources.values():
        grid.client.script_load(text)  # a script that the server does not know is sent a second time
    counted = Counted(grid_env.url)
    before, grid.scripts.client = grid.scripts.client, counted.client
    yield counted
    grid.scripts.client = before
    counted.pool.disconnect()


def test_claim_and_settlement_are_one_round_trip_each(grid: Grid, client_counter: Counted) -> None:
    grid.job(one(cost=DOLLAR))
    sent, claim = client_counter(grid.take)
    assert sent == 1
    sent, (result, ended, _) = client_counter(lambda: grid.complete(claim, used=DOLLAR // 2))
    assert (sent, result, ended) == (1, 1, "plain")


def test_a_settlement_claims_the_next_stage_in_the_same_round_trip(
    grid: Grid, client_counter: Counted
) -> None:
    grid.job(chain(2, cost=DOLLAR))
    first = grid.take()
    sent, (_, _, second) = client_counter(lambda: grid.complete(first, used=DOLLAR, go_on=True))
    assert sent == 1
    assert isinstance(second, Claim)
    grid.done(second)


def test_a_settlement_with_a_long_output_is_one_round_trip(grid: Grid, client_counter: Counted) -> None:
    grid.job(one(cost=DOLLAR))
    claim = grid.take()
    sent, (result, _, _) = client_counter(
        lambda: grid.complete(claim, b"@v1", used=DOLLAR, long=b"x" * 200_000)
    )
    assert (sent, result) == (1, 1)


def test_the_settlement_of_a_failed_attempt_is_one_round_trip(grid: Grid, client_counter: Counted) -> None:
    grid.job(one(cost=DOLLAR))
    claim = grid.take()
    sent, word = client_counter(lambda: grid.fail(claim, used=DOLLAR))
    assert (sent, word) == (1, "again")
