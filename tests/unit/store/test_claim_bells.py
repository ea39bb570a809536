"""Whom the bells wake, and how many there are."""

from __future__ import annotations

import json

import pytest

from gridq.store.replies import Claim
from tests.unit.store.plans import ANY, Grid, one, wide

pytestmark = pytest.mark.usefixtures("key_hygiene")


def _rung(grid: Grid, *seats: str) -> list[int]:
    return [grid.bells(f"seat:{seat}") for seat in seats]


def test_never_more_bells_in_a_queue_than_lanes(grid: Grid) -> None:
    grid.seat("m.a", lanes=2)
    grid.seat("m.b")
    grid.job(wide(50))
    grid.job(wide(50))
    grid.sweep()
    assert _rung(grid, "m.a", "m.b") == [2, 1]
    assert grid.bells(ANY) == 3


def test_the_best_ranked_idle_seat_is_rung_first(grid: Grid) -> None:
    grid.client.zadd(grid.keys("rank", ANY), {"m.c": 1, "m.b": 2, "m.a": 3})
    grid.client.pexpire(grid.keys("rank", ANY), 60_000)
    for seat in ("m.a", "m.b", "m.c"):
        grid.seat(seat)
    grid.job(one())
    assert _rung(grid, "m.a", "m.b", "m.c") == [0, 0, 1]
    grid.job(one())
    assert _rung(grid, "m.a", "m.b", "m.c") == [0, 1, 1]


def test_of_equal_seats_the_one_idle_longest(grid: Grid) -> None:
    for seat in ("m.c", "m.a", "m.b"):
        grid.seat(seat)
        before = grid.now()
        while grid.now() == before:
            pass
    grid.job(one())
    assert _rung(grid, "m.a", "m.b", "m.c") == [0, 0, 1]


def test_an_excluded_seat_is_not_rung(grid: Grid) -> None:
    grid.seat("m.a")
    grid.job(one())
    claim = grid.take()
    grid.seat("m.b")
    grid.claim("m.b")
    grid.clear("seat:m.a", "seat:m.b", ANY)
    grid.client.zadd(grid.keys("idle", ANY), {"m.a": 1})
    grid.fail(claim, "seat", pause_ms=1000)
    assert _rung(grid, "m.a", "m.b") == [0, 1]


def test_a_seat_that_cannot_pay_for_it_is_not_rung(grid: Grid) -> None:
    grid.client.zadd(grid.keys("rank", ANY), {"m.b": 2, "m.a": 1})
    grid.client.pexpire(grid.keys("rank", ANY), 60_000)
    grid.seat("m.a", budget=500)
    grid.seat("m.b")
    grid.job(one(cost=900))
    assert _rung(grid, "m.a", "m.b") == [0, 1]
    grid.job(one())
    assert _rung(grid, "m.a", "m.b") == [1, 1]


def test_a_full_seat_leaves_the_idle_set_and_comes_back(grid: Grid) -> None:
    grid.seat("m.a")
    assert grid.client.zscore(grid.keys("idle", ANY), "m.a") is not None
    grid.job(one())
    assert grid.client.zscore(grid.keys("idle", ANY), "m.a") is None
    grid.clear("seat:m.a")
    claim = grid.take()
    grid.job(one())
    assert (grid.bells("seat:m.a"), grid.bells(ANY)) == (0, 1)
    _, _, after = grid.complete(claim, go_on=True)
    assert isinstance(after, Claim)
    assert grid.complete(after, go_on=True)[2] == "none"
    assert grid.client.zscore(grid.keys("idle", ANY), "m.a") is not None


def test_a_claim_that_leaves_work_wakes_one_more(grid: Grid) -> None:
    grid.seat("m.a")
    grid.seat("m.b")
    grid.job(wide(3))
    grid.clear("seat:m.a", "seat:m.b", ANY)
    grid.take("m.a")
    assert grid.bells("seat:m.b") + grid.bells(ANY) == 1
    grid.clear("seat:m.b", ANY)
    grid.take("m.b")
    assert grid.bells(ANY) == 1


def test_a_bell_is_a_message_of_celery_with_an_id_of_its_own(grid: Grid) -> None:
    grid.seat(lanes=2)
    grid.job(wide(2))
    messages = [json.loads(text) for text in grid.client.lrange(grid.keys.queue("seat:m.a"), 0, -1)]
    assert len({message["headers"]["id"] for message in messages}) == 2
    assert {message["headers"]["task"] for message in messages} == {"gridq.run_stage"}
    assert all(message["properties"]["delivery_tag"] == message["headers"]["id"] for message in messages)
