"""The circuit breaker's states and the cooldowns between them."""

from __future__ import annotations

import time

import pytest

from gridq.errors import (
    ChildDied,
    SeatDegraded,
    SeatError,
    SeatRateLimited,
    SeatUnavailable,
    SeatUnreachable,
)
from gridq.execution.circuit_breaker import CircuitBreaker, seat_state


def degraded(**details: object) -> SeatDegraded:
    return SeatDegraded("It was refused", {"state": "logged out", **details})  # type: ignore[dict-item]


def end_cooldown(breaker: CircuitBreaker) -> None:
    breaker._cooldown_ends = 0.0


def test_a_breaker_opens_goes_half_open_and_closes() -> None:
    breaker = CircuitBreaker()
    assert (breaker.opened, breaker.half_open_reason, breaker.limit_concurrency(4)) == (None, "", 4)
    assert breaker.record_failure(degraded()) == 60.0
    assert breaker.opened is not None
    assert (breaker.opened.state, breaker.opened.reason) == ("logged_out", "It was refused")
    assert breaker.opened.until == pytest.approx(time.time() + 60, abs=5)
    assert not breaker.advance(), "the cooldown is not over"
    end_cooldown(breaker)
    assert breaker.advance()
    assert (breaker.opened, breaker.half_open_reason) == (None, "It was refused")
    assert breaker.limit_concurrency(4) == 1
    breaker.record_success()
    assert breaker.advance()
    assert (breaker.half_open_reason, breaker.limit_concurrency(4)) == ("", 4)
    assert not breaker.advance(), "it is closed"


def test_a_failed_half_open_stage_doubles_the_cooldown_up_to_an_hour() -> None:
    breaker = CircuitBreaker()
    cooldowns = []
    for _ in range(8):
        cooldowns.append(breaker.record_failure(degraded()))
        end_cooldown(breaker)
        breaker.advance()
    assert cooldowns == [60, 120, 240, 480, 960, 1920, 3600, 3600]
    breaker.record_success()
    breaker.advance()
    assert breaker.record_failure(degraded()) == 60


def test_stages_that_fail_side_by_side_count_as_one_failure() -> None:
    breaker = CircuitBreaker()
    assert [breaker.record_failure(degraded()) for _ in range(4)] == [60] * 4


def test_a_repeated_state_keeps_its_start_time() -> None:
    breaker = CircuitBreaker()
    breaker.record_failure(SeatDegraded("first", {"state": "no credit"}))
    assert breaker.opened is not None
    began = breaker.opened.since
    breaker.record_failure(SeatDegraded("again", {"state": "no credit"}))
    assert (breaker.opened.since, breaker.opened.reason) == (began, "again")
    breaker.record_failure(SeatDegraded("other", {"state": "key refused"}))
    assert breaker.opened.since > began


@pytest.mark.parametrize(
    ("kind", "state"),
    [(SeatRateLimited, "rate_limited"), (SeatUnavailable, "failing"), (SeatError, "failing")],
)
def test_only_a_long_wait_opens_the_breaker(kind: type[SeatError], state: str) -> None:
    breaker = CircuitBreaker()
    assert breaker.record_failure(kind("not now"), "j1:0") is None
    assert breaker.record_failure(kind("not now", {"retry_after": 5}), "j1:0") is None
    assert breaker.record_failure(kind("not now", {"retry_after": 90}), "j1:0") == 90
    assert breaker.opened is not None
    assert breaker.opened.state == state


def test_three_overloads_in_a_row_open_the_breaker() -> None:
    breaker = CircuitBreaker()
    busy = SeatUnavailable("HTTP 529", {"state": "overloaded"})
    assert [breaker.record_failure(busy), breaker.record_failure(busy)] == [None, None]
    breaker.record_success()
    assert [breaker.record_failure(busy) for _ in range(3)] == [None, None, 60]


FAILURES = [
    SeatUnavailable("HTTP 503"),
    SeatUnreachable("refused"),
    SeatRateLimited("slow down", {"retry_after": 0}),
    SeatError("The seat's runner failed"),
    ChildDied("dead"),
]


def test_three_failures_in_a_row_of_any_sort_open_the_breaker() -> None:
    for error in FAILURES:
        breaker = CircuitBreaker()
        found = [breaker.record_failure(error, request) for request in ("j1:0", "j2:0", "j3:0")]
        assert found[:2] == [None, None]
        assert found[2] is not None
        assert breaker.opened is not None
    breaker = CircuitBreaker()
    for error in FAILURES[:2]:
        assert breaker.record_failure(error, error.code) is None
    breaker.record_success()
    assert [breaker.record_failure(FAILURES[0], number) for number in "123"] == [None, None, 10]


def test_one_request_that_fails_again_and_again_leaves_the_breaker_closed() -> None:
    breaker = CircuitBreaker()
    assert [breaker.record_failure(FAILURES[0], "j1:0") for _ in range(9)] == [None] * 9


def test_one_request_that_reaches_no_endpoint_opens_the_breaker() -> None:
    breaker = CircuitBreaker()
    assert [breaker.record_failure(SeatUnreachable("refused"), "j1:0") for _ in range(3)] == [None, None, 10]
    assert breaker.opened is not None
    assert breaker.opened.state == "unreachable"


def test_any_failure_of_the_trial_opens_the_breaker_again_for_twice_the_time() -> None:
    breaker = CircuitBreaker()
    for number in range(3):
        breaker.record_failure(FAILURES[0], str(number))
    assert breaker.opened is not None
    began, cooldowns = breaker.opened.since, []
    for number in range(6):
        end_cooldown(breaker)
        assert breaker.advance()
        assert breaker.limit_concurrency(8) == 1
        cooldowns.append(breaker.record_failure(FAILURES[0], str(number)))
        assert breaker.opened.since == began, "it has not been well meanwhile"
    assert cooldowns == [20, 40, 80, 160, 300, 300]


def test_failures_of_stages_that_began_before_the_breaker_opened_change_nothing() -> None:
    breaker = CircuitBreaker()
    found = [breaker.record_failure(FAILURES[0], str(number)) for number in range(8)]
    assert found == [None, None, 10] + [None] * 5


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (SeatDegraded("no", {"state": "no credit"}), "no_credit"),
        (SeatDegraded("no", {"state": "something new"}), "degraded"),
        (SeatDegraded("no"), "degraded"),
        (SeatRateLimited("no"), "rate_limited"),
        (SeatUnreachable("no"), "unreachable"),
        (SeatUnavailable("no"), "failing"),
    ],
)
def test_an_error_determines_the_seat_state(error: SeatError, state: str) -> None:
    assert seat_state(error) == state


def test_the_reason_of_a_cooldown_names_the_fix() -> None:
    breaker = CircuitBreaker()
    breaker.record_failure(SeatDegraded("The key was refused", {"fix": "give the seat a valid key"}))
    assert breaker.opened is not None
    assert breaker.opened.reason == "The key was refused (give the seat a valid key)"


def test_a_trial_that_is_being_answered_closes_the_breaker_and_forgets_no_failure() -> None:
    """An endpoint that breaks off each of its answers goes into cooldown all the same."""
    breaker = CircuitBreaker()
    for _ in range(2):
        assert [breaker.record_failure(FAILURES[0], number) for number in "12"] == [None, None]
        breaker.pass_trial()
    assert [breaker.record_failure(FAILURES[0], "3")] == [10]
    end_cooldown(breaker)
    assert breaker.advance()
    breaker.pass_trial()
    assert breaker.advance()
    assert (breaker.opened, breaker.half_open_reason) == (None, "")
    assert [breaker.record_failure(FAILURES[0], number) for number in "123"] == [None, None, 20]


def test_any_reason_can_be_sent_as_json() -> None:
    breaker = CircuitBreaker()
    breaker.record_failure(SeatDegraded("half a pair: \ud83d"))
    assert breaker.opened is not None
    assert breaker.opened.reason == "half a pair: ?"
