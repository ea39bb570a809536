"""register.lua: a seat has one live incarnation; a new one ends the leases of the old."""

from __future__ import annotations

import pytest

from tests.unit.store.plans import ANY, HOUR, Grid, one, wide

pytestmark = pytest.mark.usefixtures("key_hygiene")


def _concurrency(grid: Grid, queue: str = ANY) -> int:
    return int(grid.client.hget(grid.keys("concurrency"), queue) or 0)


def test_a_seat_adds_its_slots_to_its_queues(grid: Grid) -> None:
    grid.seat("m.a", concurrency=2)
    grid.seat("m.b", ANY, "bench:b", concurrency=3)
    assert (_concurrency(grid), _concurrency(grid, "bench:b")) == (5, 3)
    assert grid.client.smembers(grid.keys("serving", ANY)) == {b"m.a", b"m.b"}


def test_a_seat_may_change_its_slots_and_queues(grid: Grid) -> None:
    grid.seat("m.a", ANY, "bench:b", concurrency=2)
    grid.seat("m.a", "bench:b", "bench:c", concurrency=3)
    assert (_concurrency(grid), _concurrency(grid, "bench:b"), _concurrency(grid, "bench:c")) == (0, 3, 3)
    assert not grid.client.exists(grid.keys("serving", ANY), grid.keys("idle", ANY))


def test_a_seat_live_on_another_host_is_refused(grid: Grid) -> None:
    grid.seat("m.a", host="h1")
    grid.job(one())
    claim = grid.take()
    assert grid.seat("m.a", inc="i2", host="h2") == "h1"
    assert grid.held() == {"0": claim.lease}
    assert grid.claim(inc="i2", slot="1") == "gone"


def test_another_host_may_replace_a_dead_one(grid: Grid) -> None:
    grid.seat("m.a", host="h1")
    grid.age("seats", "m.a")
    assert grid.seat("m.a", inc="i2", host="h2") is None
    assert _concurrency(grid) == 1
    assert grid.scripts.renew("m.a", "i1", []) is None


def test_a_new_incarnation_ends_the_leases_of_the_old_at_once(grid: Grid) -> None:
    grid.seat("m.a", concurrency=2)
    grid.seat("m.b")
    grid.job(wide(2), "j1")
    old = [grid.take(), grid.take(slot="1")]
    grid.seat("m.a", inc="i2", concurrency=2)
    assert grid.held() == {}
    assert grid.pending() == ["j1:0", "j1:1"]
    assert grid.claim(slot="0", inc="i1") == "gone"
    assert grid.scripts.renew("m.a", "i1", [claim.lease for claim in old]) is None
    assert grid.take("m.b").attempt == 2


def test_a_late_heartbeat_keeps_the_leases(grid: Grid) -> None:
    grid.seat()
    grid.job(one())
    claim = grid.take()
    grid.age("seats", "m.a")
    grid.seat()
    assert grid.held() == {"0": claim.lease}
    assert grid.sweep()[0]["seats"] == 0


def test_a_changed_budget_keeps_what_was_used(grid: Grid) -> None:
    grid.seat(budget=50_000)
    grid.job(one(cost=900))
    grid.done(grid.take(), used=700)
    grid.seat(inc="i2", budget=60_000)
    assert grid.left() == 59_300
    grid.seat(inc="i3", budget=10_000)
    assert grid.left() == 9_300


def test_a_reservation_without_a_budget_is_not_released_to_a_new_one(grid: Grid) -> None:
    grid.seat(budget=None)
    grid.job(one(cost=900))
    claim = grid.take()
    grid.seat(budget=5_000)
    grid.done(claim, used=100)
    assert grid.left() == 4_900


def test_a_new_incarnation_replaces_wake_ups_with_one_for_pending_work(grid: Grid) -> None:
    grid.seat("m.a", concurrency=3)
    grid.job(wide(3))
    assert grid.wake_ups("seat:m.a") == 3
    grid.clear(ANY)
    grid.seat("m.a", inc="i2", concurrency=3)
    assert grid.wake_ups("seat:m.a") == 1


def test_registering_again_ends_a_drain(grid: Grid) -> None:
    grid.seat()
    grid.scripts.leave("m.a", "i1", "drain")
    grid.job(one())
    assert grid.claim() == "draining"
    grid.seat()
    grid.take()


def test_the_record_has_a_ttl(grid: Grid) -> None:
    grid.seat(record_ttl_ms=HOUR)
    life: int = grid.client.pttl(grid.keys("seat", "m.a"))
    assert 0 < life <= HOUR
