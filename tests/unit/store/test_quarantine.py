"""quarantine.lua, and whatever else takes a stage into quarantine or out of it."""

from __future__ import annotations

from typing import Any

import pytest

from gridq.graph.plan import Plan, Scope
from gridq.protocol.states import JobState
from gridq.store.replies import Claim, Drop
from tests.conftest import GridEnv
from tests.pieces import emit
from tests.unit.store.plans import Grid, one, plan, step, wide

pytestmark = pytest.mark.usefixtures("key_hygiene")


def _in_quarantine(grid: Grid) -> list[str]:
    return [member.decode() for member in grid.client.zrange(grid.keys("quarantine"), 0, -1)]


def _step_0(grid: Grid, seat: str) -> Claim:
    """Return a seat's claim of step 0; other stages are returned."""
    grid.seat(seat, concurrency=3)
    claims = [grid.claim(seat, slot=str(slot)) for slot in range(2)]
    found = [claim for claim in claims if isinstance(claim, Claim)]
    for claim in found[:]:
        if claim.lease.split(":")[1] != "0":
            grid.fail(claim, "back")
            found.remove(claim)
    return found[0]


def _poison(grid: Grid, job: str) -> None:
    """Let the job's step 0 kill a child process on two seats."""
    for seat in ("m.a", "m.b"):
        grid.fail(_step_0(grid, seat), "died")
    assert _in_quarantine(grid) == [f"{job}:0"]


def _details(grid: Grid, job: str) -> dict[str, Any]:
    error = grid.ended(job).to_error()
    assert error is not None
    return error.details


def _retried() -> Plan:
    """Two steps side by side in a Retry of three tries, one that joins them."""
    scope = Scope("root", None, 3, 0, ((0, 0), (1, 0), (2, 2)))
    return plan(step(scope=0), step(scope=0), step(0, 1, scope=0), scopes=[scope])


def test_other_stages_run_during_a_quarantine(grid: Grid) -> None:
    job = grid.job(wide(2))
    _poison(grid, job)
    assert grid.pending() == [f"{job}:1"]
    grid.done(grid.take("m.a"))
    assert grid.end(job) is None
    assert grid.claim("m.a") == "none"


def test_a_released_stage_may_run_on_any_seat(grid: Grid) -> None:
    job = grid.job(one())
    _poison(grid, job)
    assert grid.scripts.quarantine("release", job, 0, "ann") == "released"
    assert _in_quarantine(grid) == []
    assert (grid.field(job, "deaths:0"), grid.field(job, "excluded:0")) == (None, None)
    assert grid.client.zcard(grid.keys("delays")) == 0
    assert grid.classes() == {"0/0|": 1}
    assert grid.done(grid.take("m.a")) == "plain"


def test_a_released_stage_may_die_twice_again(grid: Grid) -> None:
    job = grid.job(one())
    _poison(grid, job)
    grid.scripts.quarantine("release", job, 0, "ann")
    assert grid.fail(grid.take("m.a"), "died") == "again"
    assert grid.fail(grid.take("m.b"), "died") == "quarantined"
    assert grid.scripts.quarantine("release", job, 0, "ann") == "released"


def test_a_release_keeps_unfit_seats_excluded(grid: Grid) -> None:
    job = grid.job(one())
    grid.client.hset(grid.keys("job", job), "unfit:0", "m.small")
    _poison(grid, job)
    grid.scripts.quarantine("release", job, 0, "ann")
    assert grid.field(job, "excluded:0") == "m.small"
    assert grid.classes() == {"0/0|m.small": 1}


def test_a_released_stage_sends_a_wake_up(grid: Grid) -> None:
    job = grid.job(one())
    _poison(grid, job)
    grid.clear("seat:m.a", "seat:m.b", "bench:any")
    grid.scripts.quarantine("release", job, 0, "ann")
    assert grid.wake_ups("seat:m.a") + grid.wake_ups("seat:m.b") == 1


def test_a_dropped_stage_ends_its_job(grid: Grid) -> None:
    job = grid.job(wide(2), celery=True)
    _poison(grid, job)
    assert grid.scripts.quarantine("drop", job, 0, 'an "odd" \\ name') == "celery"
    assert grid.ended(job).state is JobState.FAILED
    details = _details(grid, job)
    assert (details["attempts"], details["deaths"], details["dropped_by"]) == (2, 2, 'an "odd" \\ name')
    assert _in_quarantine(grid) == []
    assert grid.pending() == []


def test_a_retry_does_not_catch_a_drop(grid: Grid) -> None:
    job = grid.job(_retried())
    _poison(grid, job)
    assert grid.scripts.quarantine("drop", job, 0, "ann") == "plain"
    assert grid.ended(job).state is JobState.FAILED


def test_repeated_release_and_drop_change_nothing(grid: Grid) -> None:
    job = grid.job(one())
    assert grid.scripts.quarantine("release", job, 0, "ann") == "not"
    assert grid.scripts.quarantine("drop", job, 0, "ann") == "not"
    _poison(grid, job)
    assert grid.scripts.quarantine("release", job, 0, "ann") == "released"
    assert grid.scripts.quarantine("release", job, 0, "ann") == "before"
    assert grid.scripts.quarantine("drop", job, 0, "ann") == "not"
    assert grid.pending() == [f"{job}:0"]
    grid.done(grid.take("m.a"))
    for verb in ("release", "drop"):
        assert grid.scripts.quarantine(verb, job, 0, "ann") == "over"
        assert grid.scripts.quarantine(verb, "nope", 0, "ann") == "unknown"


def test_a_quarantine_ends_after_its_time(grid: Grid) -> None:
    job = grid.job(_retried(), name="briefing", celery=True)
    _poison(grid, job)
    assert grid.sweep().dropped == []
    grid.age("quarantine", f"{job}:0")
    assert grid.sweep().dropped == [Drop(job, "briefing", "root")]
    assert _in_quarantine(grid) == []
    assert "time" in _details(grid, job)["dropped_by"]
    assert grid.client.zscore(grid.keys("answers"), job) is not None
    assert grid.sweep().dropped == []


def test_the_quarantine_time_is_the_setting(grid: Grid) -> None:
    job = grid.job(one())
    _poison(grid, job)
    left = grid.client.zscore(grid.keys("quarantine"), f"{job}:0") - grid.now()
    assert 290_000 < left <= 300_000


def test_quarantines_are_ended_in_batches(grid: Grid) -> None:
    grid.seat("m.a", concurrency=5)
    grid.seat("m.b", concurrency=5)
    jobs = [grid.job(one()) for _ in range(5)]
    for seat in ("m.a", "m.b"):
        for claim in [grid.take(seat, slot=str(slot)) for slot in range(5)]:
            grid.fail(claim, "died")
    assert len(_in_quarantine(grid)) == 5
    for job in jobs:
        grid.age("quarantine", f"{job}:0")
    assert [len(grid.sweep(2).dropped) for _ in range(4)] == [2, 2, 1, 0]


def test_quarantine_entries_of_vanished_jobs_are_removed(grid: Grid) -> None:
    grid.client.zadd(grid.keys("quarantine"), {"gone:0": 1})
    assert grid.sweep().dropped == []
    assert _in_quarantine(grid) == []


@pytest.mark.parametrize("how", ["cancel", "deadline", "sibling"])
def test_the_end_of_the_job_ends_the_quarantine(grid: Grid, how: str) -> None:
    job = grid.job(wide(2))
    _poison(grid, job)
    if how == "cancel":
        assert grid.scripts.stop(job, "cancelled", "{}") == "plain"
    elif how == "deadline":
        grid.age("deadlines", job)
        assert grid.sweep().found["expired"] == 1
    else:
        assert grid.fail(grid.take("m.a"), "stage") == "plain"
    assert _in_quarantine(grid) == []
    assert grid.scripts.quarantine("release", job, 0, "ann") == "over"


def test_the_deadline_error_names_the_quarantined_stage(grid: Grid) -> None:
    job = grid.job(one())
    _poison(grid, job)
    grid.age("deadlines", job)
    grid.sweep()
    details = _details(grid, job)
    assert details["path"] == "root"
    assert "quarantine" in details["reason"]


def test_a_queue_timeout_does_not_run_in_quarantine(grid: Grid) -> None:
    grid.seat("m.a")
    grid.seat("m.b")
    job = grid.job(one(), queue_timeout_ms=60_000)
    grid.fail(grid.take("m.a"), "died")
    late = grid.take("m.b")
    grid.lapse(late)  # it stands ready again, and its time runs
    grid.fail(late, "died")
    grid.wait_over()
    assert grid.end(job) is None
    grid.scripts.quarantine("release", job, 0, "ann")
    assert [m for m in grid.client.zrange(grid.keys("delays"), 0, -1) if m.startswith(b"queue_timeout:")]


def test_a_retry_ends_the_quarantine(grid: Grid) -> None:
    job = grid.job(_retried())
    _poison(grid, job)
    assert grid.fail(grid.take("m.a"), "stage") == "again"
    assert _in_quarantine(grid) == []
    assert grid.pending() == [f"{job}:0", f"{job}:1"]
    assert grid.scripts.quarantine("release", job, 0, "ann") == "not"


def test_a_retry_forgets_a_release_too(grid: Grid) -> None:
    job = grid.job(_retried())
    _poison(grid, job)
    grid.scripts.quarantine("release", job, 0, "ann")
    assert grid.fail(_step_0(grid, "m.a"), "stage") == "again"
    assert grid.scripts.quarantine("release", job, 0, "ann") == "not"


def test_a_late_report_may_quarantine_the_stage(grid: Grid) -> None:
    grid.seat("m.a")
    grid.seat("m.b")
    job = grid.job(one())
    grid.fail(grid.take("m.a"), "died")
    late = grid.take("m.b")
    grid.lapse(late)
    assert grid.pending() == [f"{job}:0"]
    assert grid.fail(late, "died") == "quarantined"
    assert grid.pending() == []
    assert grid.complete(late)[0] == -1
    assert grid.fail(late, "died") == "fenced"


def test_a_stage_alone_on_a_dying_worker_counts_as_its_killer(grid: Grid) -> None:
    job = grid.job(one())
    for seat in ("m.a", "m.b"):
        claim = _step_0(grid, seat)
        assert grid.scripts.leave(seat, "i1", "died")
    assert _in_quarantine(grid) == [f"{job}:0"]
    assert grid.complete(claim)[0] == -1  # the process is dead: nothing of it counts
    assert grid.scripts.quarantine("drop", job, 0, "op")
    details = _details(grid, job)
    assert (details["deaths"], details["worker"], details["reason"]) == (2, "m.b", "the worker died")
    losses = grid.scripts.sweep().losses  # the worker cannot tell of it
    assert [(loss.worker, loss.after) for loss in losses] == [("m.a", "again"), ("m.b", "quarantined")]
    assert grid.scripts.sweep().losses == []


@pytest.mark.parametrize(("stages", "how"), [(2, "died"), (1, "go")])
def test_no_stage_is_blamed_if_several_ran_or_the_worker_was_stopped(
    grid: Grid, stages: int, how: str
) -> None:
    job = grid.job(wide(stages))
    for seat in ("m.a", "m.b", "m.c"):
        grid.seat(seat, concurrency=2)
        claims = [grid.claim(seat, slot=str(slot)) for slot in range(stages)]
        assert all(isinstance(claim, Claim) for claim in claims)
        assert grid.scripts.leave(seat, "i1", how)
    assert _in_quarantine(grid) == []
    assert grid.field(job, "deaths:0") is None
    assert grid.field(job, "losses:0") == "3"


def test_a_streamed_stage_fails_instead_of_being_quarantined(grid: Grid) -> None:
    grid.seat("m.a")
    grid.seat("m.b")
    job = grid.job(one(), stream=True)
    grid.fail(grid.take("m.a"), "died")
    claim = grid.take("m.b")
    emit(grid.scripts, claim.lease, "root", ["1"], 0)
    assert grid.fail(claim, "died") == "plain"
    assert grid.ended(job).state is JobState.FAILED


def test_a_quarantine_of_zero_fails_the_job_in_spite_of_a_retry(grid_env: GridEnv, grid: Grid) -> None:
    none = Grid(grid_env.client, grid_env.settings.model_copy(update={"quarantine": 0.0}))
    job = none.job(_retried())
    for seat, word in (("m.a", "again"), ("m.b", "plain")):
        assert none.fail(_step_0(none, seat), "died") == word
    assert _details(none, job)["deaths"] == 2


# -- told apart --------------------------------------------------------------------------------------------


def test_a_claim_counts_earlier_failures_losses_and_deaths(grid: Grid) -> None:
    for seat in ("m.a", "m.b", "m.c", "m.d"):
        grid.seat(seat)
    grid.job(one())
    grid.fail(grid.take("m.a"), "seat")
    grid.lapse(grid.take("m.b"))
    grid.fail(grid.take("m.c"), "died")
    last = grid.take("m.d")
    assert (last.attempt, last.failures, last.losses, last.deaths) == (4, 1, 1, 1)


def test_the_final_error_counts_failures_and_losses(grid: Grid) -> None:
    for seat in ("m.a", "m.b", "m.c", "m.d"):
        grid.seat(seat)
    job = grid.job(one())
    grid.lapse(grid.take("m.a"))
    for seat in ("m.b", "m.c", "m.d"):
        grid.fail(grid.take(seat), "seat")
    assert _details(grid, job) == {"attempts": 4, "failures": 3, "losses": 1}
