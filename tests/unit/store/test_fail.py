"""fail.lua: attempts that end without an output; exclusion, limits and Retry."""

from __future__ import annotations

import pytest

from gridq.graph.plan import Plan, Scope
from gridq.protocol.states import JobState
from tests.unit.store.plans import Grid, branch, chain, one, plan, step, wide

pytestmark = pytest.mark.usefixtures("key_hygiene")


def _state(grid: Grid, job: str) -> JobState | None:
    end = grid.end(job)
    return None if end is None else end.state


# -- whose fault -------------------------------------------------------------------------------------------


def test_a_stage_s_own_fault_fails_the_job_at_once(grid: Grid) -> None:
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


def test_a_back_off_lets_the_seat_in_again(grid: Grid) -> None:
    grid.seat("m.a")
    grid.seat("m.b")
    job = grid.job(one())
    grid.fail(grid.take("m.a"), "seat", pause_ms=60_000)
    grid.sweep()
    assert grid.claim("m.a") == "none"
    grid.wait_over()
    assert grid.classes() == {"0/0|": 1}
    assert grid.take("m.a").job == job


def test_the_only_seat_s_back_off_holds_too(grid: Grid) -> None:
    grid.seat("m.a")
    grid.job(one())
    grid.fail(grid.take(), "seat", pause_ms=60_000)
    assert grid.sweep()[0]["readmitted"] == 0
    assert grid.claim() == "none"
    grid.wait_over()
    grid.take()


def test_a_seat_that_joins_meanwhile_need_not_wait_for_it(grid: Grid) -> None:
    grid.seat("m.a")
    job = grid.job(one())
    grid.fail(grid.take(), "seat", pause_ms=60_000)
    grid.seat("m.b")
    assert grid.wake_ups("seat:m.b") == 1
    assert grid.take("m.b").job == job


def test_without_a_pause_the_only_seat_is_let_in_by_the_sweep(grid: Grid) -> None:
    grid.seat("m.a")
    grid.job(one())
    grid.fail(grid.take(), "died")
    assert grid.claim() == "none"
    assert grid.sweep()[0]["readmitted"] == 1
    grid.take()


def test_a_shorter_wait_does_not_cut_a_back_off_short(grid: Grid) -> None:
    grid.seat("m.a")
    grid.seat("m.b")
    job = grid.job(one())
    grid.fail(grid.take("m.a"), "seat", pause_ms=60_000)
    assert grid.client.zscore(grid.keys("delays"), f"backoff:{job}:0:m.a") is not None
    grid.client.zadd(grid.keys("delays"), {f"loss:{job}:0:m.a": 1})
    grid.sweep()
    assert grid.claim("m.a") == "none"


def test_handed_back_is_nobody_s_fault(grid: Grid) -> None:
    grid.seat()
    job = grid.job(one())
    for _ in range(12):
        assert grid.fail(grid.take(), "back") == "again"
    assert grid.pending() == [f"{job}:0"]
    assert grid.classes() == {"0/0|": 1}


# -- limits ------------------------------------------------------------------------------------------------


def _fail_on_each(grid: Grid, kind: str, number: int) -> list[str]:
    """One attempt on each of `number` seats; the words that `fail` gave."""
    words = []
    for seat in (f"m.s{n}" for n in range(number)):
        grid.seat(seat)
        words.append(grid.fail(grid.take(seat), kind))
    return words


def test_three_attempts_and_the_job_has_failed(grid: Grid) -> None:
    job = grid.job(one())
    assert _fail_on_each(grid, "seat", 3) == ["again", "again", "plain"]
    assert _state(grid, job) is JobState.FAILED


def test_two_dead_children_and_it_is_in_quarantine(grid: Grid) -> None:
    job = grid.job(one())
    assert _fail_on_each(grid, "died", 2) == ["again", "quarantined"]
    assert _state(grid, job) is None
    assert grid.pending() == []


def test_ten_lost_leases_and_no_more(grid: Grid) -> None:
    grid.seat()
    job = grid.job(one())
    for lost in range(1, 11):
        assert _state(grid, job) is None
        grid.lapse(grid.take())
        assert grid.field(job, "losses:0") == (str(lost) if lost < 10 else None)
        grid.sweep()
    end = grid.ended(job)
    assert end.state is JobState.FAILED
    assert b"stage.attempts_exhausted" in end.payload
    assert b"m.a" in end.payload


def test_the_sorts_are_counted_apart(grid: Grid) -> None:
    job = grid.job(one())
    grid.seat("m.x")
    grid.seat("m.y")
    grid.lapse(grid.take("m.x"))
    grid.fail(grid.take("m.y"), "died")
    assert _fail_on_each(grid, "seat", 2) == ["again", "again"]
    assert _state(grid, job) is None


# -- repeated and late -------------------------------------------------------------------------------------


def test_a_repeated_call_counts_and_charges_once(grid: Grid) -> None:
    grid.seat(budget=50_000)
    job = grid.job(one(cost=900))
    claim = grid.take()
    assert grid.fail(claim, used=40, row="[]") == "again"
    assert grid.fail(claim, used=40, row="[]") == "fenced"
    assert grid.field(job, "failures:0") == "1"
    assert grid.left() == 49_960
    assert grid.client.llen(grid.keys("rows", job)) == 1


def test_an_earlier_report_that_comes_again_takes_nothing_back(grid: Grid) -> None:
    """An attempt hands its stage back, runs on for a while and says so; the first call is sent once more."""
    grid.seat(budget=50_000)
    grid.job(one(cost=900))
    claim = grid.take()
    assert grid.fail(claim, "back", used=40) == "again"
    for used in (90, 40, 90):
        assert grid.fail(claim, "back", used=used) == "fenced"
        assert grid.left() == 49_910
        assert grid.complete(claim, used=used)[0] == -1
        assert grid.left() == 49_910


def test_the_repeat_of_the_call_that_ended_the_job(grid: Grid) -> None:
    grid.seat(budget=50_000)
    grid.job(one(cost=900), "j1", celery=True)
    claim = grid.take()
    assert grid.fail(claim, "stage", used=40) == "celery"
    assert grid.fail(claim, "stage", used=40) == "fenced"
    assert grid.left() == 49_960
    assert grid.client.llen(grid.keys("result", "j1")) == 1


def test_a_lapsed_attempt_may_still_say_that_it_failed(grid: Grid) -> None:
    grid.seat(budget=50_000)
    job = grid.job(one(cost=900))
    claim = grid.take()
    grid.lapse(claim)
    assert grid.fail(claim, "seat", used=40) == "again"
    assert grid.pending() == [f"{job}:0"]
    assert grid.left() == 49_960


def test_such_a_seat_is_excluded_even_where_it_had_been_let_in_again(grid: Grid) -> None:
    grid.seat()
    grid.job(one())
    claim = grid.take()
    grid.lapse(claim)
    grid.wait_over()
    assert grid.classes() == {"0/0|": 1}
    grid.fail(claim, "seat", pause_ms=60_000)
    assert grid.classes() == {"0/0|m.a": 1}


def test_a_superseded_attempt_s_failure_touches_nothing_but_its_seat(grid: Grid) -> None:
    grid.seat("m.a", budget=50_000)
    grid.seat("m.b")
    job = grid.job(one(cost=900))
    old = grid.take("m.a")
    grid.lapse(old)
    new = grid.take("m.b")
    assert grid.fail(old, "stage", used=40) == "fenced"
    assert grid.left("m.a") == 49_960
    assert grid.held("m.b") == {"0": new.lease}
    assert _state(grid, job) is None


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


def test_its_siblings_are_withdrawn_and_fenced_off(grid: Grid) -> None:
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


def test_it_gives_up_after_its_tries(grid: Grid) -> None:
    grid.seat()
    job = grid.job(plan(step(scope=0), scopes=[_scope(3, (0, 0))]))
    assert [grid.fail(grid.take(), "stage") for _ in range(3)] == ["again", "again", "plain"]
    assert _state(grid, job) is JobState.FAILED


def test_each_try_has_its_attempts(grid: Grid) -> None:
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


def test_a_delay_holds_it_back(grid: Grid) -> None:
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
    """In an outer Retry 0, then in an inner one 1; 2 last."""
    steps = (step(scope=0), step(0, scope=1), step(1, scope=0), step(2))
    return plan(*steps, scopes=[_scope(2, (0, 0), (1, 1), (2, 1)), _scope(2, (1, 0), parent=0)])


def test_nested_retries(grid: Grid) -> None:
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


def test_an_inner_delay_is_void_when_the_outer_one_starts_again(grid: Grid) -> None:
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


def test_a_branch_in_a_retry_decides_anew(grid: Grid) -> None:
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


def test_a_failed_chain_leaves_no_stage_behind(grid: Grid) -> None:
    grid.seat()
    job = grid.job(chain(3))
    grid.done(grid.take())
    grid.fail(grid.take(), "stage")
    assert _state(grid, job) is JobState.FAILED
    assert grid.pending() == []
    assert grid.claim() == "none"


def test_no_back_off_outlives_its_job(grid: Grid) -> None:
    for seat in ("m.a", "m.b"):
        grid.seat(seat)
    job = grid.job(one())
    grid.fail(grid.take("m.a"), "seat", pause_ms=60_000)
    assert grid.client.zcard(grid.keys("delays")) == 1
    grid.complete(grid.take("m.b"))
    assert grid.ended(job).state is JobState.DONE
    assert not grid.client.exists(grid.keys("delays"))
