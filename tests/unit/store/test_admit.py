"""admit.lua: a plan is written all or nothing, once."""

from __future__ import annotations

import pytest

from gridq.store.replies import Accepted, AlreadyKnown, NoSeat
from tests.unit.store.plans import ANY, HOUR, Grid, chain, one, plan, step

pytestmark = pytest.mark.usefixtures("key_hygiene")


def test_only_the_first_steps_are_ready(grid: Grid) -> None:
    grid.seat()
    grid.job(plan(step(), step(), step(0), step(1, 2)), "j1")
    assert grid.pending() == ["j1:0", "j1:1"]
    assert grid.field("j1", "unfinished") == "4"
    assert grid.field("j1", "dependencies:3") == "2"


def test_a_repeated_call_changes_nothing(grid: Grid) -> None:
    grid.seat()
    grid.job(chain(2), "j1")
    before = grid.client.hgetall(grid.keys("job", "j1"))
    assert grid.admit(chain(3), "j1") == AlreadyKnown()
    assert grid.client.hgetall(grid.keys("job", "j1")) == before
    assert grid.pending() == ["j1:0"]


def test_a_refused_job_without_live_seat_writes_nothing(grid: Grid) -> None:
    grid.seat("m.a", "bench:one")
    grid.client.set(grid.keys("value", "j1:in"), b"[]", px=HOUR)
    before = grid.own()
    given = plan(step(queue="bench:one"), step(0, queue="bench:two"), step(1, queue="bench:three"))
    assert grid.admit(given, "j1", wait=False, value=b"@j1:in") == NoSeat(
        (
            "bench:three",
            "bench:two",
        )
    )
    assert grid.own() == before - {"value:j1:in"}


def test_a_job_may_wait_for_a_seat(grid: Grid) -> None:
    grid.job(one(), "j1", wait=True)
    grid.seat()
    assert grid.take().job == "j1"


def test_a_queued_job_keeps_its_own_deadline_input_and_answer(grid: Grid) -> None:
    grid.seat()
    grid.enqueue("j1", deadline_ms=60_000, value=b'"kept"')
    assert grid.admit(one(), "j1", deadline_ms=None, value=b"") == Accepted()
    claim = grid.take()
    assert claim.input == b'"kept"'
    assert 0 < claim.remaining_ms <= 60_000
    assert not grid.client.exists(grid.keys("submitted", "j1"), grid.keys("inbox"))
    assert grid.done(claim) == "celery"


def test_a_refused_queued_job_stays_in_the_inbox(grid: Grid) -> None:
    grid.client.set(grid.keys("value", "j1:in"), b"[]", px=HOUR)
    grid.enqueue("j1", value=b"@j1:in")
    assert grid.admit(one(), "j1", deadline_ms=None, wait=False, value=b"") == NoSeat((ANY,))
    assert grid.client.zscore(grid.keys("inbox"), "j1") is not None
    assert grid.client.exists(grid.keys("value", "j1:in"))


def test_a_job_that_left_the_inbox_is_not_admitted(grid: Grid) -> None:
    grid.seat()
    assert grid.admit(one(), "j1", deadline_ms=None) == AlreadyKnown()
    grid.enqueue("j2")
    grid.scripts.stop("j2", "cancelled", "{}")
    assert grid.admit(one(), "j2", deadline_ms=None) == AlreadyKnown()
    assert grid.claim() == "none"


def test_a_plan_of_20_000_steps_is_admitted(grid: Grid) -> None:
    grid.seat()
    grid.job(chain(20_000), "j1")
    assert grid.client.hlen(grid.keys("job", "j1")) > 59_000
    assert grid.field("j1", "dependencies:19999") == "1"
    assert grid.take().job == "j1"
    grid.scripts.stop("j1", "cancelled", "{}")
