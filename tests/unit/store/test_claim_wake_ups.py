"""The seats that wake-ups go to, and their number."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gridq.protocol.models import Limit
from gridq.store.replies import Claim
from tests.unit.store.plans import ANY, Grid, one, plan, step, wide

pytestmark = pytest.mark.usefixtures("key_hygiene")


def _count_wake_ups(grid: Grid, *seats: str) -> list[int]:
    return [grid.wake_ups(f"seat:{seat}") for seat in seats]


def test_a_queue_has_no_more_wake_ups_than_slots(grid: Grid) -> None:
    grid.seat("m.a", concurrency=2)
    grid.seat("m.b")
    grid.job(wide(50))
    grid.job(wide(50))
    grid.sweep()
    assert _count_wake_ups(grid, "m.a", "m.b") == [2, 1]
    assert grid.wake_ups(ANY) == 3


def test_the_best_ranked_idle_seat_is_woken_first(grid: Grid) -> None:
    grid.client.zadd(grid.keys("rank", ANY), {"m.c": 1, "m.b": 2, "m.a": 3})
    grid.client.pexpire(grid.keys("rank", ANY), 60_000)
    for seat in ("m.a", "m.b", "m.c"):
        grid.seat(seat)
    grid.job(one())
    assert _count_wake_ups(grid, "m.a", "m.b", "m.c") == [0, 0, 1]
    grid.job(one())
    assert _count_wake_ups(grid, "m.a", "m.b", "m.c") == [0, 1, 1]


def test_of_equal_seats_the_longest_idle_is_woken(grid: Grid) -> None:
    for seat in ("m.c", "m.a", "m.b"):
        grid.seat(seat)
        before = grid.now()
        while grid.now() == before:
            pass
    grid.job(one())
    assert _count_wake_ups(grid, "m.a", "m.b", "m.c") == [0, 0, 1]


def test_an_excluded_seat_is_not_woken(grid: Grid) -> None:
    grid.seat("m.a")
    grid.job(one())
    claim = grid.take()
    grid.seat("m.b")
    grid.claim("m.b")
    grid.clear("seat:m.a", "seat:m.b", ANY)
    grid.client.zadd(grid.keys("idle", ANY), {"m.a": 1})
    grid.fail(claim, "seat", pause_ms=1000)
    assert _count_wake_ups(grid, "m.a", "m.b") == [0, 1]


def test_a_seat_without_enough_budget_is_not_woken(grid: Grid) -> None:
    grid.client.zadd(grid.keys("rank", ANY), {"m.b": 2, "m.a": 1})
    grid.client.pexpire(grid.keys("rank", ANY), 60_000)
    grid.seat("m.a", budget=500)
    grid.seat("m.b")
    grid.job(one(cost=900))
    assert _count_wake_ups(grid, "m.a", "m.b") == [0, 1]
    grid.job(one())
    assert _count_wake_ups(grid, "m.a", "m.b") == [1, 1]


@pytest.mark.parametrize(
    ("terms", "estimate"),
    [
        ({"limits": [Limit(resource="tokens", window="day", amount=1_000)]}, "600 500"),
        ({"budget": 6_000, "prices": (1_000_000, 5_000_000)}, "600 1100"),
        ({"budget": 60_000, "hourly_price": (3_600_000, 70_000)}, "6 11"),
    ],
)
def test_a_seat_whose_budget_cannot_hold_the_estimate_is_not_woken(
    grid: Grid, terms: dict[str, Any], estimate: str
) -> None:
    """This holds for any rank, and for stages made ready by a completion."""
    grid.client.zadd(grid.keys("rank", ANY), {"m.b": 2, "m.a": 1})
    grid.client.pexpire(grid.keys("rank", ANY), 60_000)
    grid.seat("m.a", **terms)
    grid.job(one(), more={"tokens:0": "1 1 1"})
    assert _count_wake_ups(grid, "m.a") == [1]
    grid.done(grid.take("m.a"), used=1, tokens=(1, 0))  # now its windows are not empty any more
    grid.clear("seat:m.a", ANY)
    grid.seat("m.b")
    grid.seat("m.c", "bench:first")
    assert grid.claim("m.a") == grid.claim("m.b") == "none"
    job = grid.job(one(), more={"tokens:0": estimate})
    assert _count_wake_ups(grid, "m.a", "m.b") == [0, 1]
    grid.scripts.stop(job, "cancelled", "{}")
    grid.clear("seat:m.b")
    assert grid.claim("m.b") == "none"
    job = grid.job(plan(step(queue="bench:first"), step(0)), more={"tokens:1": estimate})
    grid.complete(grid.take("m.c"))
    assert _count_wake_ups(grid, "m.a", "m.b") == [0, 1]
    grid.scripts.stop(job, "cancelled", "{}")
    grid.job(one(), more={"tokens:0": "1 1 1"})
    assert _count_wake_ups(grid, "m.a", "m.b") == [1, 1], "a small one may go there"


def test_a_full_seat_leaves_the_idle_set_until_it_has_a_free_slot(grid: Grid) -> None:
    grid.seat("m.a")
    assert grid.client.zscore(grid.keys("idle", ANY), "m.a") is not None
    grid.job(one())
    assert grid.client.zscore(grid.keys("idle", ANY), "m.a") is None
    grid.clear("seat:m.a")
    claim = grid.take()
    grid.job(one())
    assert (grid.wake_ups("seat:m.a"), grid.wake_ups(ANY)) == (0, 1)
    _, _, after = grid.complete(claim, go_on=True)
    assert isinstance(after, Claim)
    assert grid.complete(after, go_on=True)[2] == "none"
    assert grid.client.zscore(grid.keys("idle", ANY), "m.a") is not None


def test_a_claim_that_leaves_stages_sends_one_wake_up(grid: Grid) -> None:
    grid.seat("m.a")
    grid.seat("m.b")
    grid.job(wide(3))
    grid.clear("seat:m.a", "seat:m.b", ANY)
    grid.take("m.a")
    assert grid.wake_ups("seat:m.b") + grid.wake_ups(ANY) == 1
    grid.clear("seat:m.b", ANY)
    grid.take("m.b")
    assert grid.wake_ups(ANY) == 1


def test_a_wake_up_is_a_celery_message_with_a_unique_id(grid: Grid) -> None:
    grid.seat(concurrency=2)
    grid.job(wide(2))
    messages = [json.loads(text) for text in grid.client.lrange(grid.keys.queue("seat:m.a"), 0, -1)]
    assert len({message["headers"]["id"] for message in messages}) == 2
    assert {message["headers"]["task"] for message in messages} == {"gridq.run_stage"}
    assert all(message["properties"]["delivery_tag"] == message["headers"]["id"] for message in messages)
