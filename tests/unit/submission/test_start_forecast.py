"""The estimated start of a stage from pending stages and seats, in the order of the scripts."""

from __future__ import annotations

from typing import Any

import pytest

from gridq.protocol.meters import Meter, SeatRates, UsageEstimate
from gridq.protocol.models import ServiceTime
from gridq.submission.queue_snapshot import PendingStages, QueueSnapshot, SeatLoad, StageRequest
from gridq.submission.start_forecast import StartForecast, find_faster_queue, forecast_start

ANY = "llm:any"


def constant(seconds: float, n: int = 100) -> ServiceTime:
    return ServiceTime(n=n, mean=seconds, p50=seconds, p90=seconds)


def service_time(mean: float, p50: float, p90: float, n: int = 100) -> ServiceTime:
    return ServiceTime(n=n, mean=mean, p50=p50, p90=p90)


def seat(name: str = "m.a", *queues: str, concurrency: int = 1, busy: int | None = None,
         took: float | None = 10.0, elapsed: float = 0.0, **more: Any) -> SeatLoad:  # fmt: skip
    """A seat whose slots are all busy, each with a stage of `took` seconds."""
    serves = queues or (ANY,)
    running = tuple((serves[0], elapsed) for _ in range(concurrency if busy is None else busy))
    service = {} if took is None else {queue: constant(took) for queue in serves}
    return SeatLoad(name, frozenset(serves), concurrency, running, service, **more)


def money(**fields: Any) -> Meter:
    return Meter(account="own", resource="money", window="day", **fields)


def look(
    *seats: SeatLoad, lines: tuple[PendingStages, ...] = (), ask: StageRequest | None = None, **more: Any
) -> StartForecast:
    return forecast_start(QueueSnapshot(seats, lines, **more), ask or StageRequest(ANY, "ann"))


def test_a_free_slot_starts_a_stage_at_once_without_measurements() -> None:
    found = look(seat(busy=0, took=None))
    assert (found.position, found.concurrency, found.p50, found.bottleneck) == (1, 1, 0.0, "")
    assert found.is_now


def test_without_measurements_no_time_is_estimated() -> None:
    found = look(seat(took=None), lines=(PendingStages(ANY, "ann", 3),))
    assert (found.position, found.p50, found.low, found.high) == (4, None, None, None)
    assert found.bottleneck == "the only slot of llm:any"


def test_a_stage_waits_for_running_and_earlier_stages() -> None:
    assert look(seat(elapsed=4.0)).p50 == pytest.approx(6.0)
    assert look(seat(elapsed=4.0), lines=(PendingStages(ANY, "ann", 2),)).p50 == pytest.approx(26.0)
    assert look(seat(concurrency=2, elapsed=4.0), lines=(PendingStages(ANY, "ann", 2),)).p50 == pytest.approx(
        16.0
    )


def test_free_slots_are_taken_by_earlier_stages_first() -> None:
    found = look(seat(concurrency=3, busy=1), lines=(PendingStages(ANY, "ann", 2),))
    assert found.position == 3
    assert found.p50 == pytest.approx(10.0)
    assert look(seat(concurrency=4, busy=1), lines=(PendingStages(ANY, "ann", 2),)).is_now


def test_an_overdue_stage_may_end_any_time() -> None:
    assert look(seat(elapsed=60.0)).p50 == pytest.approx(1.0)


def test_a_long_queue_moves_at_the_rate_of_all_slots() -> None:
    found = look(seat(concurrency=2), seat("m.b", took=5.0), lines=(PendingStages(ANY, "ann", 4000),))
    assert found.rate == pytest.approx(0.4)
    assert found.p50 == pytest.approx(4000 / 0.4, rel=0.01)


def test_the_spread_follows_the_measurements() -> None:
    board = SeatLoad("m.a", frozenset([ANY]), 1, ((ANY, 0.0),), {ANY: service_time(10.0, 8.0, 20.0)})
    found = look(board, lines=(PendingStages(ANY, "ann", 3),))
    assert found.low is not None
    assert found.high is not None
    assert found.low < 0.7 * 40 < 40 < 1.3 * 40 < found.high
    steady = look(seat(), lines=(PendingStages(ANY, "ann", 3),))
    assert steady.low is not None
    assert found.low < steady.low < 40


def test_interactive_stages_go_before_batch_stages() -> None:
    lines = (PendingStages(ANY, "ann", 5, prio=1), PendingStages(ANY, "bob", 2))
    assert look(seat(), lines=lines, ask=StageRequest(ANY, "bob")).position == 3
    assert look(seat(), lines=lines, ask=StageRequest(ANY, "ann", prio=1)).position == 8


def test_aged_batch_stages_go_with_interactive_ones() -> None:
    lines = (PendingStages(ANY, "ann", 5, prio=1, aged=3),)
    assert look(seat(), lines=lines, ask=StageRequest(ANY, "ann")).position == 4


def test_agents_take_turns() -> None:
    lines = (PendingStages(ANY, "ann", 100), PendingStages(ANY, "bob", 2))
    assert look(seat(), lines=lines, ask=StageRequest(ANY, "eve")).position == 3, "one of each goes first"
    assert look(seat(), lines=lines, ask=StageRequest(ANY, "bob")).position == 3 + 3
    assert look(seat(), lines=lines, ask=StageRequest(ANY, "ann")).position == 103


def test_an_agent_ahead_of_its_share_waits() -> None:
    turns = {("llm", "ann"): 0.0, ("llm", "eve"): 10.0}
    board = {"virtual_times": turns, "clocks": {"llm": 0.0}}
    assert (
        look(seat(), lines=(PendingStages(ANY, "ann", 100),), ask=StageRequest(ANY, "eve"), **board).position
        == 12
    )


def test_stages_that_cost_more_move_their_agent_further() -> None:
    lines = (PendingStages(ANY, "ann", 100, cost=10_000),)
    turns = {("llm", "eve"): 10.0}
    assert look(seat(), lines=lines, ask=StageRequest(ANY, "eve"), virtual_times=turns).position == 7


def test_stages_that_no_seat_here_may_take_do_not_count() -> None:
    poor = seat("m.a", meters=(money(limit=2_000, used=1_500),))
    lines = (
        PendingStages(ANY, "ann", 5, cost=1000),
        PendingStages(ANY, "ann", 5, excluded=frozenset(["m.a"])),
    )
    assert look(poor, lines=lines).position == 1
    assert (
        look(poor, lines=lines, ask=StageRequest(ANY, cost=1000)).bottleneck
        == "the budgets of the seats of llm:any: m.a has $0.0005 left of $0.002 a day"
    )


def test_a_seat_that_joined_later_takes_no_stage_that_is_pinned_to_another() -> None:
    pinned = frozenset({"m.a", "=m.gone"})
    late = seat("m.late", busy=0)
    lines = (PendingStages(ANY, "ann", 5, excluded=pinned),)
    assert look(late, lines=lines).is_now
    found = look(late, lines=lines, ask=StageRequest(ANY, excluded=pinned))
    assert (found.position, found.p50) == (None, None)


def test_a_budget_that_binds_is_named() -> None:
    family = Meter(account="f:opus", resource="tokens", window="week", limit=9, used=9, queues=("llm:opus",))
    owner = Meter(account="o:alice", resource="requests", window="day", limit=2, used=1, reserved=1)
    both = seat("m.a", "llm:opus", ANY, meters=(family,))
    forecast = look(both, ask=StageRequest("llm:opus"))
    assert (forecast.position, forecast.bottleneck) == (
        None,
        "the budgets of the seats of llm:opus: family opus has 0 tokens left of 9 tokens a week",
    )
    assert look(both, ask=StageRequest(ANY)).position == 1
    in_cooldown = look(seat("m.a", back_in=60.0, meters=(owner,)))
    assert in_cooldown.bottleneck == (
        "the budgets of the seats of llm:any: owner alice has 0 requests left of 2 requests a day"
    )


HOUR = 3_600_000


def test_a_budget_too_small_for_the_estimate_waits_for_its_reset() -> None:
    """As in the claim: one cent of three is left, and the stage is expected to cost two."""
    meters = (money(limit=30_000, used=20_001, resets_at=HOUR),)
    rates = SeatRates(prices=(1_000_000, 1_000_000))
    small, large = (StageRequest(ANY, expects=UsageEstimate(tokens, tokens)) for tokens in (4_000, 10_000))
    poor = seat(busy=0, meters=meters, rates=rates)
    assert look(poor, ask=small).is_now
    forecast = look(poor, ask=large)
    assert (forecast.position, forecast.p50, forecast.resets_in) == (1, 3600.0, 3600.0)
    assert forecast.bottleneck.startswith(
        "the budgets of the seats of llm:any: m.a has $0.009999 left of $0.03"
    )
    assert look(poor, seat("m.b", busy=0), ask=large).is_now
    huge = StageRequest(
        ANY, expects=UsageEstimate(1_000_000, 1_000_000)
    )  # more than a whole window: it may run in an empty one
    assert look(poor, ask=huge).resets_in == 3600.0
    assert look(poor, ask=StageRequest(ANY, cost=30_001)).position is None, "but no stage that says so itself"


def test_stages_that_wait_for_the_same_reset_go_first() -> None:
    poor = seat(busy=0, meters=(money(limit=2_000, used=1_500, resets_at=HOUR),))
    lines = (PendingStages(ANY, "ann", 5, cost=1000),)
    assert look(poor, lines=lines).is_now
    assert look(poor, lines=lines, ask=StageRequest(ANY, "ann", cost=1000)).position == 6


def test_released_reservations_may_start_a_stage_sooner() -> None:
    """Two of four slots run, and their estimates fill the budget: the third waits for one of them."""
    meters = (money(limit=30_000, used=0, reserved=20_000, resets_at=HOUR),)
    asks = StageRequest(ANY, expects=UsageEstimate(15_000, 0))
    rates = SeatRates(prices=(1_000_000, 0))
    forecast = look(seat(concurrency=4, busy=2, elapsed=4.0, meters=meters, rates=rates), ask=asks)
    assert (forecast.p50, forecast.resets_in) == (pytest.approx(6.0), 0.0)
    assert forecast.bottleneck.startswith("the budgets of the seats of llm:any: m.a has $0.01 left")
    other = look(seat(concurrency=4, busy=0, meters=meters, rates=rates), ask=asks)  # another seat holds it
    assert (other.is_now, other.low, other.resets_in) == (False, 0.0, 0.0)
    once = Meter(account="own", resource="requests", window="day", limit=1, used=1, resets_at=2 * HOUR)
    turns = look(seat(concurrency=4, busy=0, meters=(*meters, once), rates=rates), ask=asks)
    assert (turns.low, turns.resets_in) == (7200.0, 7200.0)  # but not before the other's window turns


def test_a_seat_with_an_hourly_price_is_estimated_by_run_time() -> None:
    meters = (money(limit=30_000, used=20_001, resets_at=HOUR),)
    for ms, now in ((9_999, True), (10_001, False)):
        rates = SeatRates(hourly=3_600_000, timeout_ms=60_000, stage_ms={ANY: ms})
        assert look(seat(busy=0, meters=meters, rates=rates)).is_now is now


def test_a_queue_shared_with_other_seats_counts_in_part() -> None:
    both = seat("m.a", "llm:opus", ANY)
    other = seat("m.b", ANY)
    found = look(both, other, lines=(PendingStages(ANY, "ann", 10),), ask=StageRequest("llm:opus", "ann"))
    assert found.position == 6
    assert found.concurrency == 1


def test_a_seat_with_nothing_earlier_serves_first() -> None:
    busy, other = seat("m.a", "llm:opus", ANY), seat("m.b", ANY, busy=0)
    lines = (PendingStages("llm:opus", "ann", 10),)
    assert look(busy, other, lines=lines).is_now
    assert look(busy, seat("m.b", ANY, elapsed=6.0), lines=lines).p50 == pytest.approx(4.0)


def test_paused_seats_return() -> None:
    found = look(seat(busy=0, back_in=30.0))
    assert found.p50 == pytest.approx(30.0)
    assert found.bottleneck == "every seat of llm:any pauses"
    assert look(seat(busy=0, back_in=None)).bottleneck == "no seat of llm:any takes work now"


def test_a_rate_limit_is_named_as_the_bottleneck() -> None:
    found = look(seat(took=1.0, requests_per_minute=6), lines=(PendingStages(ANY, "ann", 3),))
    assert found.bottleneck == "requests_per_minute of m.a"
    assert found.p50 == pytest.approx(31.0)
    assert look(seat(busy=0, took=1.0, requests_per_minute=6, rate_in=9.0)).p50 == pytest.approx(9.0)


def test_a_queue_without_a_seat_has_no_forecast() -> None:
    found = look(seat(), ask=StageRequest("llm:none"))
    assert (found.concurrency, found.p50, found.bottleneck) == (0, None, "no live seat serves llm:none")
    assert found.position is None, "there is no line to stand in"


def test_a_faster_family_or_any_queue_is_suggested() -> None:
    busy, free = seat("m.a", "llm:opus", "llm:claude", ANY), seat("m.b", "llm:gpt", ANY, busy=0)
    assert find_faster_queue(QueueSnapshot((busy, free)), StageRequest("llm:opus")) == ANY
    sonnet = seat("m.c", "llm:sonnet", "llm:claude", ANY, busy=0)
    assert find_faster_queue(QueueSnapshot((busy, free, sonnet)), StageRequest("llm:opus")) == "llm:claude"
    own = "llm:any%2Fembeddings"
    embedding = seat("m.a", "llm:opus", ANY, own), seat("m.b", ANY, own, busy=0)
    assert find_faster_queue(QueueSnapshot(embedding), StageRequest("llm:opus")) == ANY
    assert find_faster_queue(QueueSnapshot((busy,)), StageRequest("llm:opus")) is None
    assert (
        find_faster_queue(QueueSnapshot((busy, seat("m.d", "gpu:any", busy=0))), StageRequest("llm:opus"))
        is None
    )
