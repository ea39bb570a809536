"""Seats with an hourly price reserve the expected run time of a stage at its claim."""

from __future__ import annotations

import pytest

from gridq.protocol.meters import UsageEstimate
from gridq.protocol.models import Limit
from gridq.seats.registry import read_live_seats
from gridq.store.replies import Claim
from tests.unit.store.ledger_entries import check_ledger
from tests.unit.store.limits import limit
from tests.unit.store.plans import Grid, one, wide

pytestmark = pytest.mark.usefixtures("key_hygiene")

MINUTE = 60_000
HOUR = (3_600_000, 10 * MINUTE)
"""$3.60 an hour, a micro-dollar a millisecond, and stages may run for ten minutes."""


def day(amount: int) -> Limit:
    return Limit(resource="money", window="day", amount=amount)


def read_money(grid: Grid, seat: str = "m.a") -> tuple[int, int]:
    """Return what is used and reserved of the seat's own money."""
    return grid.meters(seat)[0].used, grid.meters(seat)[0].reserved


def test_measured_run_times_are_reserved_and_settled(grid: Grid) -> None:
    grid.seat(concurrency=4, limits=[day(20_000)], hourly_price=HOUR)
    grid.scripts.renew("m.a", "i1", [], stage_ms={"bench:any": 6_500})
    grid.job(wide(4))
    first = grid.take(slot="0")
    assert read_money(grid) == (0, 6_500)
    grid.take(slot="1")
    grid.take(slot="2")
    assert grid.claim(slot="3") == "none"  # three leave half a cent, a fourth would be expected to cost more
    grid.done(first, used=900)
    assert read_money(grid) == (900, 13_000)
    assert isinstance(grid.claim(slot="0"), str)  # 6,100 are left
    grid.done(grid.held()["1"], used=0)
    grid.take(slot="1")
    check_ledger(grid)


def test_an_unmeasured_queue_reserves_the_stage_timeout(grid: Grid) -> None:
    grid.seat(concurrency=3, limits=[day(1_500_000)], hourly_price=HOUR)
    grid.job(wide(3))
    grid.take(slot="0")
    grid.take(slot="1")
    assert read_money(grid) == (0, 1_200_000)
    assert grid.claim(slot="2") == "none"
    check_ledger(grid)


def test_a_stages_own_timeout_limits_its_estimate(grid: Grid) -> None:
    grid.seat(concurrency=3, limits=[day(1_000_000)], hourly_price=HOUR)
    for number, estimate in enumerate(("0 0 5000", "70 30 5000", "70 30")):
        grid.job(one(), f"j{number}", more={"tokens:0": estimate})
    grid.take(slot="0")
    grid.take(slot="1")
    assert read_money(grid) == (0, 10_000)
    grid.scripts.renew("m.a", "i1", [], stage_ms={"bench:any": 9_000})
    grid.take(slot="2")
    assert read_money(grid) == (0, 19_000)
    grid.job(one(), "j3", more={"tokens:0": "0 0 5000"})
    grid.done(grid.held()["0"], used=0)
    grid.take(slot="0")
    assert read_money(grid) == (0, 19_000)  # not the nine seconds of the others
    check_ledger(grid)


def test_an_unmeasured_queue_counts_as_the_slowest(grid: Grid) -> None:
    grid.seat("m.a", "bench:any", "bench:one", "bench:two", limits=[day(100_000)], hourly_price=HOUR)
    grid.scripts.renew("m.a", "i1", [], stage_ms={"bench:one": 40, "bench:two": 700})
    grid.job(one())
    grid.take()
    assert read_money(grid) == (0, 700)


def test_measurements_outlive_the_worker_in_queues_still_served(grid: Grid) -> None:
    grid.seat("m.a", "bench:any", "bench:one", limits=[day(100_000)], hourly_price=HOUR)
    grid.scripts.renew("m.a", "i1", [], stage_ms={"bench:any": 500, "bench:one": 9_000})
    grid.scripts.leave("m.a", "i1", "go")
    grid.seat("m.a", "bench:any", "bench:two", inc="i2", limits=[day(100_000)], hourly_price=HOUR)
    grid.scripts.renew("m.a", "i2", [], stage_ms={"bench:two": 80})
    assert read_live_seats(grid.client, grid.keys)[0].rates.stage_ms == {"bench:any": 500, "bench:two": 80}
    grid.job(one())
    grid.take(inc="i2")
    assert read_money(grid) == (0, 500)
    check_ledger(grid)


def test_a_stage_over_the_whole_limit_may_run_alone_in_an_empty_window(grid: Grid) -> None:
    grid.seat(concurrency=2, limits=[day(100_000)], hourly_price=HOUR)
    grid.job(wide(3))
    first = grid.take(slot="0")
    assert grid.claim(slot="1") == "none"
    grid.done(first, used=10)
    grid.scripts.renew("m.a", "i1", [], stage_ms={"bench:any": 20})
    grid.take(slot="0")
    grid.take(slot="1")
    assert read_money(grid) == (10, 40)
    check_ledger(grid)


def test_shared_budgets_reserve_hourly_cost_and_free_stages_do_not(grid: Grid) -> None:
    limit(grid, '[grid]\nbudgets = [{dollars = 0.01, per = "day"}]')
    for seat in ("m.a", "m.b"):
        grid.seat(seat, "bench:any", "gridq:local", hourly_price=HOUR)
        grid.scripts.renew(seat, "i1", [], stage_ms={"bench:any": 6_000, "gridq:local": 6_000})
    grid.job(wide(2))
    claim = grid.take("m.a")
    assert grid.claim("m.b") == "none"
    [meter] = grid.shared("g")
    assert (meter.used, meter.reserved) == (0, 6_000)
    grid.job(one(queue="gridq:local"))
    free = grid.take("m.b")
    assert free.queue == "gridq:local"
    assert grid.shared("g")[0].reserved == 6_000
    grid.done(free)
    grid.done(claim, used=10)
    assert isinstance(grid.claim("m.b"), Claim)
    check_ledger(grid)


@pytest.mark.parametrize(
    ("takes", "estimate"),
    [({}, "0 0"), ({}, "40 900 7777"), ({"bench:any": 1_234}, "7 1"), ({"bench:one": 77}, "1 1 60")],
)
def test_python_and_lua_estimate_the_same_cost(grid: Grid, takes: dict[str, int], estimate: str) -> None:
    """Python explains waiting jobs from the seat's record."""
    grid.seat(
        "m.a",
        "bench:any",
        "bench:one",
        limits=[day(9_000_000)],
        prices=(300_001, 7),
        hourly_price=(1_999_999, 61_001),
    )
    grid.scripts.renew("m.a", "i1", [], stage_ms=takes)
    grid.job(one(), more={"tokens:0": estimate})
    [seat] = read_live_seats(grid.client, grid.keys)
    grid.take()
    assert seat.rates.estimate_cost("bench:any", UsageEstimate.parse(estimate)) == read_money(grid)[1] > 0
