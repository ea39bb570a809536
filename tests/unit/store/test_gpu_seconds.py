"""GPU seconds: reserved from what a stage declares or is expected to take, and settled by what it took."""

from __future__ import annotations

import math

import pytest

from gridq.limits.ledger import read_entries
from gridq.protocol.meters import Meter, UsageEstimate
from gridq.protocol.models import MAX_USAGE, Limit, Usage
from gridq.seats.registry import read_live_seats
from gridq.store.replies import Accepted, Claim
from tests.unit.store.ledger_entries import check_ledger
from tests.unit.store.limits import account, limit, read_parked_agents
from tests.unit.store.plans import ANY, Grid, chain, one, quota, wide

pytestmark = pytest.mark.usefixtures("key_hygiene")

UNPRICED = (0, 600_000)
"""A seat that counts its time, which costs nothing; stages may run for ten minutes."""

DAY = Limit(resource="gpu_seconds", window="day", amount=60_000)


def read_used(grid: Grid) -> tuple[int, int]:
    """Return the ms that are used and reserved of the seat's own budget."""
    (meter,) = grid.meters("m.a")
    return meter.used, meter.reserved


def test_declared_seconds_are_reserved_and_what_it_took_is_settled(grid: Grid) -> None:
    grid.seat(concurrency=3, limits=[DAY], hourly_price=UNPRICED)
    grid.job(wide(3), more={f"tokens:{number}": "0 0 g25000" for number in range(3)})
    first = grid.take(slot="0")
    grid.take(slot="1")
    assert read_used(grid) == (0, 50_000)
    assert grid.claim(slot="2") == "none"
    grid.done(first, tokens=(0, 0, 1.25))
    assert read_used(grid) == (1_250, 25_000)
    grid.take(slot="2")
    check_ledger(grid)


def test_without_declared_seconds_the_expected_time_is_reserved(grid: Grid) -> None:
    grid.seat(concurrency=3, limits=[DAY], hourly_price=UNPRICED)
    grid.scripts.renew("m.a", "i1", [], stage_ms={ANY: 6_500})
    grid.job(one())
    grid.take()
    assert read_used(grid) == (0, 6_500)


def test_a_stage_that_needs_more_than_the_limit_runs_in_an_empty_window_alone(grid: Grid) -> None:
    grid.seat(concurrency=3, limits=[DAY], hourly_price=UNPRICED)
    grid.job(wide(2), more={"tokens:0": "0 0 g600000", "tokens:1": "0 0 g600000"})
    grid.take(slot="0")
    assert grid.claim(slot="1") == "none"
    check_ledger(grid)


def test_a_seat_that_does_not_count_time_needs_none(grid: Grid) -> None:
    grid.seat(concurrency=1, limits=[Limit(resource="gpu_seconds", window="day", amount=0)])
    grid.job(one(), more={"tokens:0": "0 0 g25000"})
    assert isinstance(grid.claim(), Claim)


def test_a_limit_of_zero_permits_nothing(grid: Grid) -> None:
    grid.seat(limits=[Limit(resource="gpu_seconds", window="day", amount=0)], hourly_price=UNPRICED)
    grid.job(one())
    assert grid.claim() == "none"


def test_shared_budgets_count_them_over_all_seats(grid: Grid) -> None:
    limit(grid, '[grid]\nbudgets = [{gpu_seconds = 30, per = "day"}]\n')
    for seat in ("m.a", "m.b"):
        grid.seat(seat, hourly_price=UNPRICED)
    grid.job(wide(2), more={f"tokens:{number}": "0 0 g20000" for number in range(2)})
    grid.take("m.a")
    assert grid.claim("m.b") == "none"
    check_ledger(grid)


@pytest.mark.parametrize("kind", ["seat", "died", "back", "stage"])
def test_what_a_failed_attempt_took_is_charged_to_the_seat(grid: Grid, kind: str) -> None:
    limit(grid, '[agents.ann]\nbudgets = [{gpu_seconds = 100, per = "day"}]\n')
    grid.seat(limits=[DAY], hourly_price=UNPRICED)
    assert grid.admit(one(), "j1", agent="ann") == Accepted()
    grid.fail(grid.take(), kind, tokens=(0, 0, 2.0))
    assert read_used(grid) == (2_000, 0)
    assert account(grid, "ann", "GPU seconds a day").spent == 0
    check_ledger(grid)


def test_an_attempt_that_is_closed_reports_its_seconds_once(grid: Grid) -> None:
    grid.seat(limits=[DAY], hourly_price=UNPRICED)
    grid.job(one())
    claim = grid.take()
    grid.fail(claim, "back", tokens=(0, 0, 2.0))
    for _ in range(2):
        grid.fail(claim, "back", tokens=(0, 0, 3.5))
    assert read_used(grid) == (3_500, 0)
    entries = [entry.gpu_ms for entry in read_entries(grid.client, grid.keys) if entry.charged]
    assert entries == [2_000, 1_500]
    check_ledger(grid)


def test_an_agents_seconds_are_reserved_at_admission_and_spent(grid: Grid) -> None:
    limit(grid, '[agents.ann]\nbudgets = [{gpu_seconds = 60, per = "day"}]\n')
    grid.seat(hourly_price=UNPRICED)
    declared = {"tokens:0": "0 0 g30000", "tokens:1": "0 0 600000 g20000"}
    assert grid.admit(chain(2), "j1", agent="ann", more=declared) == Accepted()
    reserved = account(grid, "ann", "GPU seconds a day")
    assert (reserved.spent, reserved.reserved, reserved.remaining) == (0, 50_000, 10_000)
    refused = quota(grid.admit(one(), "j2", agent="ann", more={"tokens:0": "0 0 g10001"}))
    assert refused.what == "agent_gpu_seconds"
    assert (refused.reserved, refused.limit, refused.needed) == (50_000, 60_000, 10_001)
    grid.done(grid.take(), tokens=(0, 0, 31.0))
    spent = account(grid, "ann", "GPU seconds a day")
    assert (spent.spent, spent.reserved) == (31_000, 19_000)
    grid.done(grid.take(), tokens=(0, 0, 1.0))
    assert account(grid, "ann", "GPU seconds a day").spent == 32_000
    assert account(grid, "ann", "GPU seconds a day").reserved == 0
    assert not grid.own() & {"reservations", "reserved"}
    check_ledger(grid)


def test_an_agent_over_its_seconds_is_parked(grid: Grid) -> None:
    limit(grid, '[agents.ann]\nbudgets = [{gpu_seconds = 60, per = "day"}]\n')
    grid.seat(hourly_price=UNPRICED)
    assert grid.admit(chain(2), "j1", agent="ann") == Accepted()
    grid.done(grid.take(), tokens=(0, 0, 61.0))
    assert read_parked_agents(grid) == {"ann"}
    assert grid.claim() == "none"
    check_ledger(grid)


@pytest.mark.parametrize("text", ["0 0", "3 4 900", "3 4 g500", "3 4 900 g500"])
def test_the_estimate_of_a_stage_is_read_alike(grid: Grid, text: str) -> None:
    estimate = UsageEstimate.parse(text)
    assert estimate.to_text() == text
    grid.seat(limits=[DAY], hourly_price=UNPRICED)
    (seat,) = read_live_seats(grid.client, grid.keys)
    grid.job(one(), more={"tokens:0": text})
    grid.take()
    expected = min(seat.rates.estimate_gpu_ms(ANY, estimate) or 0, 600_000)
    assert read_used(grid)[1] == expected


@pytest.mark.parametrize(("seconds", "ms"), [(0.0004, 0), (0.07, 70), (1.0006, 1001), (math.inf, MAX_USAGE)])
def test_the_time_of_a_stage_is_rounded_to_the_nearest_ms(seconds: float, ms: int) -> None:
    assert Usage(seconds=seconds).gpu_ms == ms


def test_many_gpu_seconds_are_shown_in_full() -> None:
    meter = Meter(account="g", resource="gpu_seconds", window="month", limit=1_234_567_890)
    assert meter.format_amount(meter.limit) == "1234567.89 GPU seconds"
