"""Seats: a budget that refills when its window turns, and never more requests in a minute than it may."""

from __future__ import annotations

import pytest

from gridq.store.replies import Claim
from tests.unit.store.limits import DAY, HOUR, account, limit, turn, turn_at
from tests.unit.store.plans import Grid, chain, one, wide

pytestmark = pytest.mark.usefixtures("key_hygiene")


def read_remaining(grid: Grid, seat: str = "m.a") -> tuple[int | None, ...]:
    """Return what is left of the first meter of a seat's own budget and of the grid's."""
    sheets = (grid.meters(seat, which) for which in ("own", "grid"))
    return tuple(found[0].remaining if found else None for found in sheets)


def age_claims(grid: Grid, seat: str = "m.a", but: int = 0) -> None:
    """The seat's last claims, all but the latest `but`, were a minute ago."""
    key = grid.keys("claim_times", seat)
    times = grid.client.lrange(key, 0, -1)
    for at, when in enumerate(times[but:], but):
        grid.client.lset(key, at, int(when) - 60_000)


# -- budgets


@pytest.mark.parametrize("by", ["claim", "renewal"])
def test_a_reservation_held_over_the_reset_counts_in_the_new_window(grid: Grid, by: str) -> None:
    turn_at(grid, DAY)
    grid.seat(concurrency=3, budget=30_000)
    grid.job(wide(3, cost=10_000))
    first, second = grid.take(slot="0"), grid.take(slot="1")
    grid.done(first, used=20_000)
    assert grid.left() == 0
    turn(grid)
    if by == "claim":
        grid.take(slot="0")
    else:
        grid.scripts.renew("m.a", "i1", [second.lease])
        assert grid.left() == 20_000
        grid.take(slot="0")
    assert grid.left() == 10_000
    grid.done(second, used=4_000)
    assert grid.left() == 16_000
    (held,) = grid.held().values()
    grid.complete(held, used=0)
    assert grid.left() == 26_000


def test_a_budget_refills_once_per_window(grid: Grid) -> None:
    turn_at(grid, DAY)
    grid.seat(budget=1_000)
    turn(grid)
    grid.scripts.renew("m.a", "i1", [])
    grid.job(one())
    grid.done(grid.take(), used=600)
    grid.scripts.renew("m.a", "i1", [])
    grid.seat(budget=1_000)
    assert grid.left() == 400
    assert (grid.meters()[0].resets_at or 0) > grid.now()


def test_a_seat_absent_over_the_reset_is_refilled(grid: Grid) -> None:
    turn_at(grid, DAY)
    grid.seat(budget=1_000)
    grid.job(one())
    grid.done(grid.take(), used=1_000)
    turn(grid)
    grid.scripts.leave("m.a", "i1", "go")
    grid.seat(inc="i2", budget=1_000)
    assert grid.left() == 1_000


def test_a_renewal_after_the_reset_wakes_the_seat(grid: Grid) -> None:
    turn_at(grid, DAY)
    grid.seat(budget=1_000)
    grid.job(wide(2, cost=1_000))
    grid.done(grid.take(), used=1_000)
    assert grid.claim() == "none"
    turn(grid)
    grid.clear("bench:any", "seat:m.a")
    grid.scripts.renew("m.a", "i1", [])
    assert grid.wake_ups("seat:m.a") == 1
    grid.take()


def test_a_budget_refills_only_with_a_calendar(grid: Grid) -> None:
    grid.seat(budget=1_000)
    grid.job(one())
    grid.done(grid.take(), used=700)
    grid.scripts.renew("m.a", "i1", [])
    turn_at(grid, DAY)
    grid.job(one())
    grid.done(grid.take(), used=100)
    assert grid.left() == 200
    assert (grid.meters()[0].resets_at or 0) > grid.now()


# -- the grid's own limits


def test_a_seats_own_and_the_grids_budget_both_bind(grid: Grid) -> None:
    """Neither the owner's limit nor the operator's replaces the other."""
    turn_at(grid, DAY)
    limit(grid, '[seats."m.a"]\nbudget_dollars = 0.003\nperiod = "day"')
    grid.seat("m.a", budget=10_000)
    grid.seat("m.b", budget=2_000)
    grid.job(wide(5, cost=1_000))
    for _ in range(3):
        grid.done(grid.take("m.a"), used=1_000)
    assert grid.claim("m.a") == "none"
    assert read_remaining(grid) == (7000, 0)
    limit(grid, '[seats."m.b"]\nbudget_dollars = 1')
    assert read_remaining(grid) == (7000, None)
    for _ in range(2):
        grid.done(grid.take("m.b"), used=1_000)
    assert grid.claim("m.b") == "none"
    assert grid.take("m.a")
    assert account(grid, "m.b", "grid money a month").remaining == 1_000_000 - 2_000


def test_a_budget_added_during_work_includes_open_reservations(grid: Grid) -> None:
    grid.seat(budget=100_000)
    grid.job(one(cost=10_000))
    claim = grid.take()
    limit(grid, '[seats."m.a"]\nbudget_dollars = 0.02')
    assert read_remaining(grid) == (90_000, 10_000)
    grid.done(claim, used=4_000)
    assert read_remaining(grid) == (96_000, 16_000)
    assert account(grid, "m.a", "grid money a month").spent == 4_000


def test_a_seat_without_grid_budget_is_not_woken(grid: Grid) -> None:
    limit(grid, '[seats."m.a"]\nbudget_dollars = 0')
    grid.seat("m.a")
    grid.job(one(cost=5_000))
    assert grid.wake_ups("seat:m.a") == 0
    assert grid.claim("m.a") == "none"


# -- requests a minute


def test_a_seat_claims_no_more_than_its_requests_per_minute(grid: Grid) -> None:
    grid.seat(concurrency=4, requests_per_minute=3)
    grid.job(wide(6))
    for _ in range(3):
        grid.done(grid.take())
    assert grid.claim() == "limited"
    age_claims(grid, but=2)
    assert isinstance(grid.claim(), Claim)
    assert grid.claim(slot="1") == "limited"
    assert account(grid, "m.a", "requests a minute").spent == 3


def test_claiming_with_a_completion_obeys_the_rate(grid: Grid) -> None:
    grid.seat(requests_per_minute=2)
    grid.job(wide(4))
    after = grid.complete(grid.take(), go_on=True)[2]
    assert isinstance(after, Claim)
    assert grid.complete(after, go_on=True)[2] == "limited"


def test_a_claim_without_result_counts_no_request(grid: Grid) -> None:
    grid.seat(requests_per_minute=1, budget=0)
    grid.job(one(cost=5_000))
    for _ in range(3):
        assert grid.claim() == "none"
    limit(grid, "")
    grid.seat(requests_per_minute=1)
    claim = grid.take()
    assert grid.take().lease == claim.lease  # its reply was lost: the same again, counted once
    assert grid.client.llen(grid.keys("claim_times", "m.a")) == 1


def test_pure_steps_count_no_requests(grid: Grid) -> None:
    grid.seat(requests_per_minute=1)
    grid.job(chain(1))
    grid.job(chain(3, queue="gridq:pure"))
    grid.seat("m.r", "gridq:pure")
    claim = grid.take("m.r")
    after = grid.complete(claim, go_on=True, seat="m.r")[2]
    assert isinstance(after, Claim)
    grid.complete(after, go_on=True)
    assert grid.take("m.a")


def test_a_rate_limited_seat_is_woken_by_its_renewal(grid: Grid) -> None:
    grid.seat("m.a", concurrency=2, requests_per_minute=1)
    grid.seat("m.b", concurrency=4)
    grid.job(one())
    grid.done(grid.take("m.a"))
    grid.clear("bench:any", "seat:m.a", "seat:m.b")
    grid.job(one())
    assert grid.claim("m.a") == "limited"
    grid.clear("bench:any", "seat:m.a", "seat:m.b")
    grid.job(one())
    assert (grid.wake_ups("seat:m.a"), grid.wake_ups("seat:m.b")) == (0, 1)
    grid.scripts.renew("m.a", "i1", [])
    assert grid.wake_ups("seat:m.a") == 0
    age_claims(grid)
    grid.scripts.renew("m.a", "i1", [])
    assert grid.wake_ups("seat:m.a") == 1
    grid.take("m.a")


def test_the_smaller_of_two_rates_binds_and_zero_means_none(grid: Grid) -> None:
    limit(grid, '[seats."m.a"]\nrequests_per_minute = 1')
    grid.seat(requests_per_minute=5)
    grid.job(wide(7))
    grid.done(grid.take())
    assert grid.claim() == "limited"
    limit(grid, '[seats."m.a"]\nrequests_per_minute = 9')
    for _ in range(4):
        grid.done(grid.take())
    assert grid.claim() == "limited"
    grid.seat(requests_per_minute=0)
    age_claims(grid)
    assert grid.claim() == "limited"
    limit(grid, "")
    grid.seat()
    grid.take()


def test_a_clock_set_back_does_not_lock_a_seat(grid: Grid) -> None:
    grid.seat(requests_per_minute=1)
    grid.job(wide(2))
    grid.done(grid.take())
    key = grid.keys("claim_times", "m.a")
    grid.client.lset(key, 0, grid.now() + HOUR)
    grid.take()


def test_built_in_stages_run_on_an_overdrawn_budget(grid: Grid) -> None:
    """Otherwise a job could not assemble its answer after overspending by a micro-dollar."""
    limit(grid, '[grid]\nbudgets = [{dollars = 0.01, per = "day"}]')
    grid.seat("m.a")
    grid.seat("m.r", "gridq:local", budget=100)
    grid.job(one())
    grid.done(grid.take("m.a"), used=10_001)
    grid.job(one())
    assert grid.claim("m.a") == "none"
    grid.job(one(queue="gridq:local"))
    grid.done(grid.take("m.r"))
    grid.job(one(queue="gridq:local", cost=1_000))
    assert grid.claim("m.r") == "none"  # of its own word it does cost something
