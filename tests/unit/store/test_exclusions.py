"""sweep.lua: exclusions of a stage that no seat is left for are void."""

from __future__ import annotations

import pytest

from tests.unit.store.plans import Grid, one, wide

pytestmark = pytest.mark.usefixtures("key_hygiene")


def _both_excluded(grid: Grid) -> str:
    grid.seat("m.a")
    grid.seat("m.b")
    job = grid.job(one())
    grid.fail(grid.take("m.a"), "died")
    grid.lapse(grid.take("m.b"))
    return job


def test_excluded_seats_are_readmitted_if_all_are_excluded(grid: Grid) -> None:
    job = _both_excluded(grid)
    assert grid.field(job, "excluded:0") is None  # the sweep that found the lapsed lease saw that too
    assert grid.classes() == {"0/0|": 1}
    grid.take("m.a")


def test_exclusions_hold_while_another_seat_is_live(grid: Grid) -> None:
    grid.seat("m.a")
    grid.seat("m.b")
    job = grid.job(one())
    grid.fail(grid.take("m.a"), "died")
    assert grid.sweep()[0]["readmitted"] == 0
    grid.age("seats", "m.b")
    assert grid.sweep()[0]["readmitted"] == 1
    assert grid.take("m.a").job == job


@pytest.mark.parametrize("why", ["draining", "no budget"])
def test_a_seat_that_cannot_take_the_stage_does_not_count(grid: Grid, why: str) -> None:
    grid.seat("m.a")
    grid.seat("m.b", budget=0 if why == "no budget" else None)
    job = grid.job(one(cost=900))
    grid.fail(grid.take("m.a"), "died")
    if why == "draining":
        grid.scripts.leave("m.b", "i1", "drain")
    assert grid.sweep()[0]["readmitted"] == 1
    assert grid.take("m.a").job == job


def test_only_excluded_seats_without_back_off_are_readmitted(grid: Grid) -> None:
    grid.seat("m.a")
    grid.seat("m.b")
    job = grid.job(one())
    grid.fail(grid.take("m.a"), "seat", pause_ms=60_000)
    grid.fail(grid.take("m.b"), "died")
    assert grid.sweep()[0]["readmitted"] == 1
    assert grid.field(job, "excluded:0") == "m.a"
    assert grid.claim("m.a") == "none"
    assert grid.take("m.b").job == job


def test_exclusions_hold_while_no_seat_is_live(grid: Grid) -> None:
    grid.seat("m.a")
    grid.job(one())
    grid.fail(grid.take(), "died")
    grid.scripts.leave("m.a", "i1", "go")
    assert grid.sweep()[0]["readmitted"] == 0
    grid.seat("m.a", inc="i2")
    assert grid.sweep()[0]["readmitted"] == 1


def test_seats_are_readmitted_in_batches(grid: Grid) -> None:
    grid.seat("m.a", concurrency=10)
    grid.seat("m.b", concurrency=10)
    grid.job(wide(10))
    claims = [grid.take("m.a", slot=str(slot)) for slot in range(10)]
    for claim in claims:
        grid.fail(claim, "died")
    grid.age("seats", "m.b")
    assert [grid.sweep(4)[0]["readmitted"] for _ in range(4)] == [4, 4, 2, 0]
