"""enqueue.lua: a submitted job is kept until a router has admitted it."""

from __future__ import annotations

import pytest

from gridq.protocol.states import JobState
from gridq.store.replies import Accepted, AlreadyKnown
from tests.unit.store.plans import HOUR, Grid, one

pytestmark = pytest.mark.usefixtures("key_hygiene")


def test_an_enqueued_job_is_in_the_inbox_with_its_deadline(grid: Grid) -> None:
    assert grid.enqueue("j1", deadline_ms=5000) == Accepted()
    assert grid.client.zscore(grid.keys("inbox"), "j1") is not None
    due: float = grid.client.zscore(grid.keys("deadlines"), "j1")
    assert 0 < due - grid.now() <= 5000
    life: int = grid.client.pttl(grid.keys("submitted", "j1"))
    assert HOUR < life <= HOUR + 5000


def test_the_same_id_is_enqueued_once(grid: Grid) -> None:
    assert grid.enqueue("j1", value=b"1") == Accepted()
    assert grid.enqueue("j1", value=b"2") == AlreadyKnown()
    assert grid.client.hget(grid.keys("submitted", "j1"), "input") == b"1"


def test_a_value_written_for_an_ended_job_is_dropped(grid: Grid) -> None:
    grid.seat()
    grid.job(one(), "j1")
    grid.done(grid.take())
    grid.client.set(grid.keys("value", "j1:in"), b"[]", px=HOUR)
    assert grid.enqueue("j1", value=b"@j1:in") == AlreadyKnown()
    assert not grid.client.exists(grid.keys("value", "j1:in"))


def test_a_job_stopped_in_the_inbox_leaves_only_its_end(grid: Grid) -> None:
    grid.client.set(grid.keys("value", "j1:in"), b"[]", px=HOUR)
    grid.enqueue("j1", value=b"@j1:in")
    assert grid.scripts.stop("j1", "cancelled", "{}") == "celery"
    end = grid.ended("j1")
    assert end.state is JobState.CANCELLED
    assert grid.own() == {"wake_ups", "schema", "result:j1", "answers", "summary:j1", "jobs", "ended_jobs"}
    assert grid.enqueue("j1") == AlreadyKnown()


def test_an_admitted_job_enqueued_again_is_answered_through_celery(grid: Grid) -> None:
    grid.seat()
    grid.job(one(), "j1")
    grid.job(one(), "j2")
    assert grid.enqueue("j1") == AlreadyKnown()
    grid.done(grid.take())
    grid.done(grid.take())
    assert grid.client.zrange(grid.keys("answers"), 0, -1) == [b"j1"]
    assert grid.enqueue("j2") == AlreadyKnown()  # it has ended, and is answered now
    assert grid.client.zrange(grid.keys("answers"), 0, -1) == [b"j1", b"j2"]
