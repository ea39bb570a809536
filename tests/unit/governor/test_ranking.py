"""Highest remaining share first; no budget is a whole share, a budget of nothing none."""

from __future__ import annotations

import pytest

from gridq.governor.ranking import WORST, SeatShare, rank
from gridq.governor.telemetry import Governor
from gridq.protocol import Limit
from gridq.store.scripts import Scripts
from tests.conftest import GridEnv


@pytest.mark.parametrize(
    ("left", "budget", "share"),
    [(None, None, 1.0), (0, 0, 0.0), (50, 100, 0.5), (150, 100, 1.0), (-5, 100, 0.0), (100, 100, 1.0)],
)
def test_the_share_that_is_left(left: int | None, budget: int | None, share: float) -> None:
    assert SeatShare("s", (), left, budget).share == share


def test_seats_are_ranked_for_each_queue_they_serve() -> None:
    full = SeatShare("full", ("llm:a", "llm:any"), 90, 100)
    spent = SeatShare("spent", ("llm:any",), 0, 100)
    free = SeatShare("free", ("llm:any",))
    assert rank([spent, full, free]) == {
        "llm:a": {"full": WORST // 10},
        "llm:any": {"free": 0, "full": WORST // 10, "spent": WORST},
    }


@pytest.mark.parametrize(
    ("left", "reliability", "worth"),
    [(100, 1.0, 1.0), (50, 0.5, 0.25), (0, 1.0, 0.0), (100, 0.0, 0.0), (100, 0.98, 1.0), (100, 0.97, 0.95)],
)
def test_a_seat_is_worth_what_is_left_of_it_times_its_reliability_in_steps(
    left: int, reliability: float, worth: float
) -> None:
    assert SeatShare("s", (), left, 100, reliability).worth == pytest.approx(worth)


def test_a_poor_seat_that_works_goes_before_a_rich_one_that_does_not() -> None:
    poor, broken = SeatShare("poor", ("q",), 40, 100), SeatShare("broken", ("q",), 90, 100, 0.25)
    ranked = rank([poor, broken])["q"]
    assert ranked["poor"] < ranked["broken"]


def monthly(budget: int | None) -> list[Limit]:
    return [] if budget is None else [Limit(thing="money", window="month", most=budget)]


@pytest.mark.usefixtures("key_hygiene")
def test_the_governor_ranks_by_the_seats_own_ledgers(grid_env: GridEnv) -> None:
    scripts = Scripts(grid_env.client, grid_env.settings)
    for seat, budget in (("m.rich", 1000), ("m.poor", 1000), ("m.free", None)):
        scripts.register(
            seat, "i", host="h", lanes=1, limits=monthly(budget), queues=["llm:any"], ttl_ms=60_000
        )
    grid_env.client.hset(scripts.keys("seat", "m.poor"), "own", "money/month/1000/900/0/")
    Governor(scripts).once()
    ranked = grid_env.client.zrange(scripts.keys("rank", "llm:any"), 0, -1)
    assert ranked == [b"m.free", b"m.rich", b"m.poor"]


@pytest.mark.usefixtures("key_hygiene")
def test_a_changed_budget_keeps_what_was_spent(grid_env: GridEnv) -> None:
    scripts = Scripts(grid_env.client, grid_env.settings)

    def start(incarnation: str, budget: int | None) -> bytes | None:
        scripts.register(
            "m.s", incarnation, host="h", lanes=1, limits=monthly(budget), queues=["llm:any"], ttl_ms=60_000
        )
        return grid_env.client.hget(scripts.keys("seat", "m.s"), "own")

    assert start("i1", 1000) == b"money/month/1000/0/0/"
    grid_env.client.hset(scripts.keys("seat", "m.s"), "own", "money/month/1000/300/0/")
    assert start("i2", 1000) == b"money/month/1000/300/0/"
    assert start("i3", 1500) == b"money/month/1500/300/0/"
    assert start("i4", 0) == b"money/month/0/300/0/"
    assert start("i5", None) is None
