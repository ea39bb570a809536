"""fail.lua: attempts that end without an output; exclusion, limits and Retry."""

from __future__ import annotations

import pytest

from gridq.errors import AttemptsExhausted
from gridq.graph.plan import Plan, Scope
from gridq.protocol.models import Limit
from gridq.protocol.states import JobState
from tests.unit.store.plans import Grid, branch, one, plan, step, wide

pytestmark = pytest.mark.usefixtures("key_hygiene")


def _state(grid: Grid, job: str) -> JobState | None:
    end = grid.end(job)
    return None if end is None else end.state


# -- whose fault -------------------------------------------------------------------------------------------


def test_a_stage_error_fails_the_job_at_once(grid: Grid) -> None:
    grid.seat(concurrency=2)
    job = grid.job(wide(3))
    claim = grid.take()
    other = grid.take(slot="1")
    assert grid.fail(claim, "stage") == "plain"
    assert _state(grid, job) is JobState.FAILED
    assert grid.ended(job).to_error() is not None
    assert grid.pending() == []
    assert grid.scripts.renew("m.a", "i1", [other.lease]) == [other.lease]


def test_only_the_seat_at_fault_is_excluded(grid: Grid) -> None:
    grid.seat("m.a")
    grid.seat("m.b")
    grid.job(one(), "j1")
    grid.fail(grid.take("m.a"), "seat", pause_ms=60_000)
    grid.job(one(), "j2")
    assert grid.take("m.a").job == "j2"
    assert grid.take("m.b").job == "j1"


@pytest.mark.parametrize("kind", ["seat", "unreached"])
def test_a_seat_is_readmitted_after_its_back_off_if_it_is_the_only_one(grid: Grid, kind: str) -> None:
    grid.seat("m.a")
    job = grid.job(one())
    grid.fail(grid.take("m.a"), kind, pause_ms=60_000)
    grid.sweep()
    assert grid.claim("m.a") == "none"
    grid.wait_over()
    assert grid.classes() == {"0/0|": 1}
    assert grid.take("m.a").job == job


@pytest.mark.parametrize("kind", ["seat", "unreached"])
def test_a_seat_does_not_get_a_stage_again_while_another_is_live(grid: Grid, kind: str) -> None:
    grid.seat("m.a")
    grid.seat("m.b")
    grid.job(one(), "busy")
    grid.take("m.b")
    job = grid.job(one())
    grid.fail(grid.take("m.a"), kind, pause_ms=60_000)
    for _ in range(3):
        grid.wait_over()
        assert grid.claim("m.a") == "none", "m.b is busy, which is live"
    grid.scripts.leave("m.b", "i1", "drain")
    assert grid.sweep()[0]["readmitted"] == 1, "m.b backs off"
    assert grid.take("m.a").job == job


def test_a_seat_whose_requests_of_the_minute_or_slots_are_used_up_is_busy(grid: Grid) -> None:
    grid.seat("m.a")
    grid.seat("m.b", limits=[Limit(resource="parallel", window="-", amount=1)], concurrency=2)
    grid.job(one(), "busy")
    grid.take("m.b")
    job = grid.job(one())
    assert grid.claim("m.b", slot="1") == "none"
    grid.fail(grid.take("m.a"), "seat", pause_ms=60_000)
    grid.wait_over()
    assert grid.claim("m.a") == "none"
    assert grid.field(job, "excluded:0") == "m.a"


def test_a_seat_that_is_lent_to_others_or_lacks_the_budget_is_not_another_one(grid: Grid) -> None:
    grid.seat("m.a")
    grid.seat("m.lent", lent_to=["team:x"])
    grid.seat("m.poor", budget=0)
    job = grid.job(one(cost=1000))
    grid.fail(grid.take("m.a"), "seat", pause_ms=60_000)
    grid.wait_over()
    assert grid.take("m.a").job == job


def test_an_attempt_that_reached_no_endpoint_is_not_counted(grid: Grid) -> None:
    grid.seat()
    job = grid.job(one())
    for _ in range(9):
        assert grid.fail(grid.take(), "unreached", pause_ms=1) == "again"
        grid.wait_over()
    assert grid.field(job, "failures:0") is None
    for _ in range(2):
        assert grid.fail(grid.take(), "seat", pause_ms=1) == "again"
        grid.wait_over()
    assert _state(grid, job) is None


def test_three_seats_share_the_attempts_of_a_stage(grid: Grid) -> None:
    for seat in ("m.a", "m.b", "m.c"):
        grid.seat(seat)
    job = grid.job(one())
    for seat in ("m.a", "m.b"):
        grid.fail(grid.take(seat), "seat", pause_ms=1)
        grid.wait_over()
        assert grid.claim(seat) == "none"
    claim = grid.take("m.c")
    assert (claim.job, claim.failures) == (job, 2)


def test_a_joining_seat_does_not_wait_for_anothers_back_off(grid: Grid) -> None:
    grid.seat("m.a")
    job = grid.job(one())
    grid.fail(grid.take(), "seat", pause_ms=60_000)
    grid.seat("m.b")
    assert grid.wake_ups("seat:m.b") == 1
    assert grid.take("m.b").job == job


def test_a_shorter_delay_does_not_end_a_back_off(grid: Grid) -> None:
    grid.seat("m.a")
    grid.seat("m.b")
    job = grid.job(one())
    grid.fail(grid.take("m.a"), "seat", pause_ms=60_000)
    assert grid.client.zscore(grid.keys("delays"), f"backoff:{job}:0:m.a") is not None
    grid.client.zadd(grid.keys("delays"), {f"loss:{job}:0:m.a": 1})
    grid.sweep()
    assert grid.claim("m.a") == "none"


def test_returning_a_stage_excludes_no_seat(grid: Grid) -> None:
    grid.seat()
    job = grid.job(one())
    for _ in range(12):
        assert grid.fail(grid.take(), "back") == "again"
    assert grid.pending() == [f"{job}:0"]
    assert grid.classes() == {"0/0|": 1}


# -- limits ------------------------------------------------------------------------------------------------


def test_a_stage_fails_after_ten_lost_leases(grid: Grid) -> None:
    grid.seat()
    job = grid.job(one())
    for lost in range(1, 11):
        assert _state(grid, job) is None
        grid.lapse(grid.take())
        assert grid.field(job, "losses:0") == (str(lost) if lost < 10 else None)
        grid.sweep()
    error = grid.ended(job).to_error()
    assert isinstance(error, AttemptsExhausted)
    assert error.worker == "m.a"
    assert (error.details["attempts"], error.details["losses"], error.path) == (10, 10, "root")


# -- repeated and late -------------------------------------------------------------------------------------


def test_a_late_failure_excludes_a_seat_that_was_readmitted(grid: Grid) -> None:
    grid.seat()
    grid.job(one())
    claim = grid.take()
    grid.lapse(claim)
    grid.wait_over()
    assert grid.classes() == {"0/0|": 1}
    grid.fail(claim, "seat", pause_ms=60_000)
    assert grid.classes() == {"0/0|m.a": 1}


# -- Retry -------------------------------------------------------------------------------------------------


def _scope(most: int, *steps: tuple[int, int], delay: int = 0, parent: int | None = None) -> Scope:
    return Scope("root", parent, most, delay, steps)


def _retried(most: int = 3, delay: int = 0) -> Plan:
    """0, then in a Retry 1 and beside it 2, joined by 3; 4 last."""
    steps = (step(), step(0, scope=0), step(0, scope=0), step(1, 2, scope=0), step(3))
    return plan(*steps, scopes=[_scope(most, (1, 0), (2, 0), (3, 2), delay=delay)])


def test_a_retry_starts_all_its_steps_again(grid: Grid) -> None:
    grid.seat(concurrency=2)
    job = grid.job(_retried())
    grid.done(grid.take())
    one_, two = grid.take(slot="0"), grid.take(slot="1")
    grid.done(one_)
    assert grid.field(job, "unfinished") == "3"
    assert grid.fail(two, "stage") == "again"
    assert grid.field(job, "unfinished") == "4"
    assert grid.field(job, "output:1") is None
    assert (grid.field(job, "dependencies:1"), grid.field(job, "dependencies:3")) == ("0", "2")
    assert grid.pending() == [f"{job}:1", f"{job}:2"]
    for _ in range(4):
        grid.done(grid.take())
    assert _state(grid, job) is JobState.DONE


def test_a_retry_fences_the_running_siblings(grid: Grid) -> None:
    grid.seat(concurrency=2, budget=50_000)
    job = grid.job(_retried())
    grid.done(grid.take())
    first, second = grid.take(slot="0"), grid.take(slot="1")
    grid.fail(first, "stage")
    assert grid.held() == {}
    assert grid.scripts.renew("m.a", "i1", [second.lease]) == [second.lease]
    assert grid.complete(second, used=60)[0] == -1
    assert grid.left() == 49_940
    again = grid.take()
    assert again.lease.split(":")[2] == "1"
    assert again.attempt == 2
    assert grid.complete(f"{job}:1:0:1:{first.lease.split(':')[4]}")[0] == -1


def test_each_try_of_a_retry_has_its_own_attempts(grid: Grid) -> None:
    grid.seat()
    job = grid.job(plan(step(scope=0), scopes=[_scope(2, (0, 0))]))
    for tried in range(1, 3):
        assert _state(grid, job) is None
        for attempt in range(1, 4):
            grid.fail(grid.take(), "seat")
            assert grid.field(job, "failures:0") == (str(attempt) if attempt < 3 else None)
            grid.sweep()
        assert grid.field(job, "tries:0") == (str(tried) if tried < 2 else None)
    assert _state(grid, job) is JobState.FAILED


def test_a_retry_delay_holds_its_steps_back(grid: Grid) -> None:
    grid.seat(concurrency=2)
    job = grid.job(_retried(delay=60_000))
    grid.done(grid.take())
    grid.fail(grid.take(), "stage")
    assert grid.sweep()[0]["due"] == 0
    assert grid.claim() == "none"
    grid.wait_over()
    assert grid.pending() == [f"{job}:1", f"{job}:2"]
    grid.wait_over()
    assert len(grid.pending()) == 2


def _nested() -> Plan:
    """Return an outer Retry of step 0 and an inner Retry of step 1; step 2 is last."""
    steps = (step(scope=0), step(0, scope=1), step(1, scope=0), step(2))
    return plan(*steps, scopes=[_scope(2, (0, 0), (1, 1), (2, 1)), _scope(2, (1, 0), parent=0)])


def test_nested_retries_start_the_inner_one_first(grid: Grid) -> None:
    grid.seat()
    job = grid.job(_nested())
    grid.done(grid.take())
    assert grid.fail(grid.take(), "stage") == "again"
    assert grid.pending() == [f"{job}:1"]
    assert grid.field(job, "output:0") == "1"  # the inner one starts alone
    assert grid.fail(grid.take(), "stage") == "again"
    assert grid.pending() == [f"{job}:0"]
    assert (grid.field(job, "tries:0"), grid.field(job, "tries:1")) == ("1", None)
    grid.done(grid.take())
    assert grid.fail(grid.take(), "stage") == "again"  # the inner one has its tries again
    assert grid.fail(grid.take(), "stage") == "plain"
    assert _state(grid, job) is JobState.FAILED


def test_an_outer_retry_cancels_the_delay_of_an_inner_one(grid: Grid) -> None:
    grid.seat(concurrency=2)
    steps = (step(scope=0), step(scope=1), step(0, 1, scope=0), step(2))
    scopes = [_scope(2, (0, 0), (1, 0), (2, 2)), _scope(2, (1, 0), delay=60_000, parent=0)]
    job = grid.job(plan(*steps, scopes=scopes))
    first, second = grid.take(slot="0"), grid.take(slot="1")
    assert grid.fail(second, "stage") == "again"
    assert grid.fail(first, "stage") == "again"
    assert sorted(grid.pending()) == [f"{job}:0", f"{job}:1"]
    claims = [grid.take(slot="0"), grid.take(slot="1")]
    grid.wait_over()
    assert grid.pending() == []
    for claim in claims:
        grid.done(claim)
    assert grid.pending() == [f"{job}:2"]


def test_a_branch_in_a_retry_is_decided_again(grid: Grid) -> None:
    given = branch()
    steps = [step(*made.after, refs=made.refs, scope=0) for made in given.steps[:4]]
    last = given.steps[4]
    grid.seat()
    counts = ((0, 0), (1, 1), (2, 1), (3, 1), (4, 2))
    job = grid.job(
        plan(*steps, step(*last.after, refs=last.refs, scope=0), arms=given.arms, scopes=[_scope(2, *counts)])
    )
    grid.done(grid.take(), b"false")
    assert grid.field(job, "unfinished") == "2"
    assert grid.fail(grid.take(), "stage") == "again"
    assert grid.field(job, "unfinished") == "5"
    ran = []
    while _state(grid, job) is None:
        claim = grid.take()
        ran.append(int(claim.lease.split(":")[1]))
        grid.done(claim, b"true")
    assert ran == [0, 1, 2, 4]


def test_no_back_off_outlives_its_job(grid: Grid) -> None:
    for seat in ("m.a", "m.b"):
        grid.seat(seat)
    job = grid.job(one())
    grid.fail(grid.take("m.a"), "seat", pause_ms=60_000)
    assert grid.client.zcard(grid.keys("delays")) == 1
    grid.complete(grid.take("m.b"))
    assert grid.ended(job).state is JobState.DONE
    assert not grid.client.exists(grid.keys("delays"))
