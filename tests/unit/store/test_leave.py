"""leave.lua: a seat drains, or goes."""

from __future__ import annotations

import pytest

from tests.unit.store.plans import ANY, Grid, one, wide

pytestmark = pytest.mark.usefixtures("key_hygiene")


def test_a_draining_seat_claims_nothing_and_finishes_its_stages(grid: Grid) -> None:
    grid.seat(concurrency=2)
    job = grid.job(wide(2))
    claim = grid.take()
    assert grid.scripts.leave("m.a", "i1", "drain")
    assert grid.scripts.leave("m.a", "i1", "drain")
    assert grid.claim(slot="1") == "draining"
    assert grid.take().lease == claim.lease  # the slot's own lease, once more
    result, _, after = grid.complete(claim, go_on=True)
    assert (result, after) == (1, "draining")
    assert grid.pending() == [f"{job}:1"]


def test_a_draining_seat_is_not_woken_and_another_is(grid: Grid) -> None:
    grid.seat("m.a")
    grid.seat("m.b")
    grid.scripts.leave("m.a", "i1", "drain")
    grid.job(one())
    assert (grid.wake_ups("seat:m.a"), grid.wake_ups("seat:m.b")) == (0, 1)


def test_a_draining_seat_wakes_another_for_pending_stages(grid: Grid) -> None:
    grid.seat("m.a")
    grid.seat("m.b")
    grid.job(wide(4))
    grid.clear("seat:m.a", "seat:m.b", ANY)
    grid.claim("m.a")
    grid.clear("seat:m.a", "seat:m.b", ANY)
    grid.scripts.leave("m.a", "i1", "drain")
    assert grid.wake_ups("seat:m.b") + grid.wake_ups(ANY) == 1


def test_leaving_ends_leases_and_wake_ups_at_once(grid: Grid) -> None:
    grid.seat("m.a", concurrency=2)
    grid.seat("m.b")
    job = grid.job(wide(2))
    grid.take()
    assert grid.scripts.leave("m.a", "i1", "go")
    assert grid.scripts.leave("m.a", "i1", "go")
    assert grid.held() == {}
    assert grid.wake_ups("seat:m.a") == 0
    assert grid.claim(slot="1") == "gone"
    assert grid.client.hget(grid.keys("concurrency"), ANY) == b"1"
    assert grid.client.smembers(grid.keys("serving", ANY)) == {b"m.b"}
    assert {grid.take("m.b").lease.split(":")[1]} <= {"0", "1"}
    assert grid.field(job, "losses:0") == "1"


def test_only_the_live_incarnation_may_leave(grid: Grid) -> None:
    grid.seat(inc="i2")
    assert not grid.scripts.leave("m.a", "i1", "go")
    assert not grid.scripts.leave("m.a", "i1", "drain")
    grid.job(one())
    grid.take(inc="i2")
