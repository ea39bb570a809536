"""renew.lua: the heartbeat decides whether a seat is live."""

from __future__ import annotations

import pytest

from tests.unit.store.plans import ANY, HOUR, Grid, one, wide

pytestmark = pytest.mark.usefixtures("key_hygiene")


def test_a_renewal_extends_seat_and_leases(grid: Grid) -> None:
    grid.seat()
    grid.job(one())
    claim = grid.take()
    grid.age("leases", claim.lease)
    grid.age("seats", "m.a")
    assert grid.scripts.renew("m.a", "i1", [claim.lease]) == []
    found = grid.sweep()[0]
    assert (found["died"], found["seats"]) == (0, 0)


def test_a_renewal_returns_exactly_the_lost_leases(grid: Grid) -> None:
    grid.seat(concurrency=4)
    grid.job(wide(4), "j1")
    claims = [grid.take(slot=str(slot)) for slot in range(4)]
    grid.lapse(claims[1])
    grid.complete(claims[2])
    leases = [claim.lease for claim in claims]
    assert grid.scripts.renew("m.a", "i1", leases) == [leases[1], leases[2]]
    grid.scripts.stop("j1", "cancelled", "{}")
    assert grid.scripts.renew("m.a", "i1", leases) == leases


def test_a_dead_or_replaced_seat_learns_it(grid: Grid) -> None:
    assert grid.scripts.renew("m.a", "i1", []) is None
    grid.seat()
    grid.age("seats", "m.a")
    grid.sweep()
    assert grid.scripts.renew("m.a", "i1", []) is None
    grid.seat(inc="i2")
    assert grid.scripts.renew("m.a", "i1", []) is None
    assert grid.scripts.renew("m.a", "i2", []) == []


def test_a_renewal_extends_the_record(grid: Grid) -> None:
    grid.seat(record_ttl_ms=HOUR)
    grid.client.pexpire(grid.keys("seat", "m.a"), 5000)
    grid.scripts.renew("m.a", "i1", [])
    assert grid.client.pttl(grid.keys("seat", "m.a")) > HOUR // 2


def test_a_lost_wake_up_is_sent_again(grid: Grid) -> None:
    grid.seat()
    grid.job(one())
    grid.clear("seat:m.a", ANY)
    grid.scripts.renew("m.a", "i1", [])
    grid.scripts.renew("m.a", "i1", [])
    assert grid.wake_ups("seat:m.a") == 1


@pytest.mark.parametrize("why", ["nothing pending", "full", "draining"])
def test_a_renewal_sends_no_useless_wake_up(grid: Grid, why: str) -> None:
    grid.seat()
    if why != "nothing pending":
        grid.job(wide(2))
    if why == "full":
        grid.take()
    if why == "draining":
        grid.scripts.leave("m.a", "i1", "drain")
    grid.clear("seat:m.a", ANY)
    grid.scripts.renew("m.a", "i1", [])
    assert grid.wake_ups("seat:m.a") == 0
