"""Jobs of very many steps: no call does more than a part of the work, and what is left is done by further
calls, whoever makes them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gridq.graph.plan import Arms, Plan, Scope
from gridq.protocol.states import JobState
from gridq.store.replies import Accepted, AlreadyKnown, Claim
from gridq.store.scripts import Scripts
from gridq.views.audit import find_breaches
from tests.unit.store.plans import ERROR, HOUR, Grid, one, plan, step, wide

MANY = 1000

pytestmark = pytest.mark.usefixtures("key_hygiene")


@pytest.fixture
def alone(grid: Grid, monkeypatch: pytest.MonkeyPatch) -> Grid:
    """A grid whose callers die after their first call: only sweeps go on."""
    monkeypatch.setattr(Scripts, "advance", lambda *_: None)
    return grid


def sweep_up(grid: Grid) -> int:
    """Sweep until nothing is left to do; what must always hold is checked after each. Return how often."""
    for number in itertools.count(1):
        assert not find_breaches(grid.client, grid.keys)
        if not grid.sweep().more:
            return number
    raise AssertionError


def run_all(grid: Grid, outputs: Callable[[Claim], bytes] = lambda claim: b"1") -> Iterator[Claim]:
    """Run all that waits on the seat m.a, and sweep; yield what was run."""
    while True:
        claim = grid.claim()
        if isinstance(claim, Claim):
            yield claim
            assert grid.complete(claim, outputs(claim))[0] == 1
        elif not grid.client.exists(grid.keys("long_work")):
            return
        else:
            grid.sweep()


def step_of(claim: Claim) -> int:
    return int(claim.lease.split(":")[1])


def test_a_large_plan_is_written_in_parts(grid: Grid) -> None:
    """The job is there once all of it is, with each of its fields."""
    given = wide(2 * MANY)
    assert grid.admit(given, "j1") == Accepted()
    assert len(grid.pending()) == 2 * MANY
    assert grid.field("j1", f"spec:{2 * MANY}") is not None
    assert not grid.client.exists(grid.keys("long_work"))
    assert not list(grid.client.scan_iter(grid.keys("plan", "*")))


def test_a_large_plan_that_is_refused_leaves_nothing(grid: Grid) -> None:
    assert grid.admit(wide(2 * MANY), "j1", wait=False) != Accepted()
    assert grid.own() <= {"schema", "wake_ups"}


def test_a_large_plan_of_a_known_job_leaves_nothing(grid: Grid) -> None:
    """Whoever submits a large job again and again does not fill the server."""
    grid.job(wide(2 * MANY), "j1")
    assert grid.admit(wide(2 * MANY), "j1") == AlreadyKnown()
    grid.scripts.stop("j1", "cancelled", ERROR)
    assert grid.admit(wide(2 * MANY), "j1") == AlreadyKnown()
    assert not list(grid.client.scan_iter(grid.keys("plan", "*")))


def test_a_staged_plan_that_has_expired_is_staged_again(grid: Grid, monkeypatch: pytest.MonkeyPatch) -> None:
    stage, staged = grid.scripts._stage_plan, []

    def expire(fields: Any) -> str:
        staged.append(stage(fields))
        if len(staged) == 1:
            grid.client.delete(grid.keys("plan", staged[0]))
        return staged[-1]

    monkeypatch.setattr(grid.scripts, "_stage_plan", expire)
    grid.job(wide(2 * MANY), "j1")
    assert len(staged) == 2
    assert len(grid.pending()) == 2 * MANY


def test_sweeps_make_the_rest_of_the_steps_ready(alone: Grid) -> None:
    alone.job(wide(MANY), "j1")
    assert 0 < len(alone.pending()) < MANY
    assert sweep_up(alone) > 1
    assert len(alone.pending()) == MANY
    assert alone.field("j1", "ready") is None


def test_each_dependent_runs_once(alone: Grid) -> None:
    middle = range(1, MANY)
    alone.job(plan(step(), *(step(0) for _ in middle), step(*middle)), "j1")
    alone.seat()
    ran = [step_of(claim) for claim in run_all(alone)]
    assert sorted(ran) == list(range(MANY + 1))
    assert alone.ended("j1").state is JobState.DONE


def branching() -> Plan:
    """A gate whose arm for false has very many steps, each with two dependents in it and one after it."""
    arm = range(1, MANY)
    steps = [step(), *(step(0, *((number - 1,) if number > 1 else ())) for number in arm), step(0)]
    return plan(*steps, step(*arm, MANY, refs=(0, MANY)), arms=[Arms(0, (MANY,), tuple(arm))])


@pytest.mark.parametrize("taken", [True, False])
def test_a_large_arm_is_skipped_or_runs(alone: Grid, taken: bool) -> None:
    alone.job(branching(), "j1")
    alone.seat()
    ran = {step_of(claim) for claim in run_all(alone, lambda claim: str(taken).lower().encode())}
    assert ran == ({0, MANY, MANY + 1} if taken else {*range(MANY), MANY + 1})
    assert alone.ended("j1").state is JobState.DONE


def looped(delay_ms: int = 0) -> Plan:
    """A step, then a Retry of very many around steps of which the last waits for all others."""
    inside = range(1, MANY)
    steps = [step(), *(step(0, scope=0) for _ in inside), step(*inside, refs=(), scope=0)]
    counts = (*((number, 0) for number in inside), (MANY, MANY - 1))
    return plan(*steps, scopes=[Scope("root", None, 3, delay_ms, counts)])


@pytest.mark.parametrize("delay_ms", [0, HOUR])
def test_a_large_scope_restarts(alone: Grid, delay_ms: int) -> None:
    """Steps whose restart is to come are not claimed, and what still ends there counts for nothing."""
    alone.job(looped(delay_ms), "j1")
    alone.seat(concurrency=4)
    alone.done(alone.take())
    failed, running, broken = (alone.take(slot=str(slot)) for slot in range(3))
    assert alone.fail(failed, "stage") == "again"
    assert alone.fail(broken, "stage") == "again", "which is not another try"
    assert alone.claim(slot="3") in ("none", "again"), "all that waits will be restarted"
    assert alone.complete(running)[0] in (1, -1)
    sweep_up(alone)
    if delay_ms:
        assert not alone.pending()
        alone.wait_over()
        sweep_up(alone)
    assert len(alone.pending()) == MANY - 1
    assert alone.field("j1", "tries:0") == "1"
    assert alone.field("j1", "unfinished") == str(MANY)
    ran = [step_of(claim) for claim in run_all(alone)]
    assert sorted(ran) == list(range(1, MANY + 1))
    assert alone.ended("j1").state is JobState.DONE


def cancel(grid: Grid) -> None:
    assert grid.scripts.stop("j1", "cancelled", ERROR) == "plain"


def fail(grid: Grid) -> None:
    assert grid.fail(next(iter(grid.held().values())), "stage") == "plain"


def expire(grid: Grid) -> None:
    grid.age("deadlines", "j1")
    grid.sweep()


@pytest.mark.parametrize("end", [cancel, fail, expire])
def test_a_large_job_has_ended_at_once(alone: Grid, end: Callable[[Grid], None]) -> None:
    """Whatever of it still waits or runs: nobody gets it, and what runs is charged as after any end."""
    alone.seat(concurrency=3, budget=1_000_000)
    alone.job(plan(*(step(cost=1) for _ in range(MANY))), "j1")
    while len(alone.pending()) < MANY:
        alone.sweep()
    claims = [alone.take(slot=str(slot)) for slot in range(3)]
    end(alone)
    assert alone.end("j1") is not None
    assert alone.client.exists(alone.keys("remains", "j1"))
    assert not alone.client.exists(alone.keys("job", "j1"))
    assert alone.complete(claims[-1], used=5)[0] in (0, -1)
    assert not isinstance(alone.claim(slot="2"), Claim)
    sweep_up(alone)
    assert alone.pending() == []
    assert not alone.client.exists(alone.keys("remains", "j1"), alone.keys("leases"), alone.keys("long_work"))
    assert alone.complete(claims[1], used=7)[0] in (0, -1), "late"
    assert alone.left() == 1_000_000 - 5 - 7
    assert [meter.reserved for meter in alone.meters()] == [0]


def test_a_job_is_forgotten_once_its_steps_are_stopped(alone: Grid) -> None:
    """So that another job of the same id finds nothing of it."""
    alone.job(plan(*(step() for _ in range(MANY))), "j1")
    sweep_up(alone)
    cancel(alone)
    assert alone.scripts.forget("j1")
    assert alone.pending() == []
    assert not alone.client.exists(alone.keys("remains", "j1"))


def test_long_values_are_deleted_in_parts(alone: Grid) -> None:
    alone.job(plan(*(step() for _ in range(MANY))), "j1")
    alone.seat()
    sweep_up(alone)
    for _ in range(MANY - 1):
        claim = alone.take()
        assert alone.complete(claim, f"@{claim.lease}".encode(), long=b'"long"')[0] == 1
    cancel(alone)
    sweep_up(alone)
    assert not list(alone.client.scan_iter(alone.keys("value", "*"), count=1000))


@pytest.mark.parametrize("how", ["go", "dead", "anew"])
def test_a_seat_that_is_gone_loses_all_its_leases(alone: Grid, how: str) -> None:
    """Its next worker may fill the same slots meanwhile."""
    alone.job(wide(MANY), "j1")
    sweep_up(alone)
    alone.seat(concurrency=MANY)
    claims = [alone.take(slot=str(slot)) for slot in range(MANY)]
    if how == "go":
        assert alone.scripts.leave("m.a", "i1", "go")
    elif how == "dead":
        alone.age("seats", "m.a")
        alone.sweep()
    alone.seat(concurrency=MANY, inc="i2")
    alone.keep_seats(["m.a"])
    kept = [claim for claim in claims if alone.client.zscore(alone.keys("leases"), claim.lease)]
    assert 0 < len(kept) < MANY
    assert alone.complete(kept[0])[0] == 1, "it still counts"
    alone.job(one(), "j2")
    claim = alone.take(inc="i2")
    assert claim.lease.startswith("j2:")
    alone.keep_leases([claim.lease])
    sweep_up(alone)
    assert len(alone.held()) == 1
    assert len(alone.pending()) == MANY - 1
