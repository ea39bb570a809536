"""An operator's drain: `drain:<seat>`, which register.lua, renew.lua and leave.lua obey."""

from __future__ import annotations

import pytest

from gridq.seats import registry
from tests.unit.store.plans import ANY, Grid, one

pytestmark = pytest.mark.usefixtures("key_hygiene")


def drain(grid: Grid, seat: str = "m.a") -> None:
    registry.drain(grid.client, grid.keys, seat)
    grid.scripts.renew(seat, "i1", [])


def undrain(grid: Grid, seat: str = "m.a") -> None:
    assert registry.undrain(grid.client, grid.keys, seat)
    grid.scripts.renew(seat, "i1", [])


def concurrency(grid: Grid) -> bytes | None:
    found: bytes | None = grid.client.hget(grid.keys("concurrency"), ANY)  # type: ignore[assignment]
    return found


def test_drain_and_undrain_take_effect_at_the_next_renewal(grid: Grid) -> None:
    grid.seat(concurrency=2)
    drain(grid)
    assert grid.claim() == "draining"
    assert concurrency(grid) is None  # it counts as nobody who could serve
    grid.scripts.renew("m.a", "i1", [])
    assert concurrency(grid) is None
    undrain(grid)
    assert concurrency(grid) == b"2"
    grid.job(one())
    assert grid.take()


def test_drain_keeps_running_work_and_wakes_another_seat_for_the_rest(grid: Grid) -> None:
    grid.seat("m.a")
    job = grid.job(one())
    claim = grid.take()
    grid.seat("m.b")
    grid.job(one(), job="waits")
    grid.clear("seat:m.a", "seat:m.b", ANY)
    drain(grid)
    assert grid.wake_ups("seat:m.b") + grid.wake_ups(ANY) == 1
    assert grid.complete(claim, go_on=True)[2] == "draining"
    assert grid.client.exists(grid.keys("result", job))


def test_a_drain_holds_when_the_worker_registers_again(grid: Grid) -> None:
    grid.seat()
    drain(grid)
    grid.seat()
    assert grid.claim() == "draining"
    grid.seat(inc="i2")
    assert (grid.claim(inc="i2"), concurrency(grid)) == ("draining", None)
    assert registry.undrain(grid.client, grid.keys, "m.a")
    grid.scripts.renew("m.a", "i2", [])
    assert concurrency(grid) == b"1"


def test_undrain_does_not_revive_a_seat_that_is_stopping(grid: Grid) -> None:
    grid.seat()
    drain(grid)
    grid.scripts.leave("m.a", "i1", "drain")
    undrain(grid)
    assert (grid.claim(), concurrency(grid)) == ("draining", None)


def test_undrain_wakes_the_seat_for_pending_stages(grid: Grid) -> None:
    grid.seat()
    drain(grid)
    grid.job(one(), wait=True)
    grid.clear("seat:m.a", ANY)
    undrain(grid)
    assert grid.wake_ups("seat:m.a") == 1


def test_a_drain_outlives_the_seat_but_expires(grid: Grid) -> None:
    grid.seat()
    drain(grid)
    grid.scripts.leave("m.a", "i1", "go")
    assert 0 < grid.client.pttl(grid.keys("drain", "m.a")) <= registry.DRAIN_TTL_MS  # type: ignore[operator]
    grid.seat(inc="i2")
    assert grid.claim(inc="i2") == "draining"
    assert not registry.undrain(grid.client, grid.keys, "m.b")
