"""stop.lua: jobs ended from outside."""

from __future__ import annotations

import pytest

from gridq.graph.plan import Scope
from gridq.protocol.states import JobState
from tests.pieces import emit
from tests.unit.store.plans import HOUR, Grid, one, plan, step, wide

pytestmark = pytest.mark.usefixtures("key_hygiene")

STAY = {
    "schema",
    "wake_ups",
    "wake_up_number",
    "concurrency",
    "queues",
    "seats",
    "seat:m.a",
    "serving:bench:any",
    "virtual_time:bench",
}
"""What a grid with one seat has anyway."""


def test_cancelling_a_job_removes_all_its_keys(grid: Grid) -> None:
    grid.seat("m.a", concurrency=2, budget=50_000)
    grid.job(wide(5, cost=900), "j1")
    first, second = grid.take(), grid.take(slot="1")
    grid.client.set(grid.keys("value", "j1:0"), b"[]", px=HOUR)
    grid.complete(first, b"@j1:0")
    grid.fail(second, "seat", pause_ms=5000)
    grid.take()
    assert grid.left() == 49_000
    assert grid.scripts.stop("j1", "cancelled", '{"code":"job.cancelled"}') == "plain"
    assert grid.left() == 50_000
    assert grid.pending() == []
    assert grid.held() == {}
    late = {
        name for name in grid.own() if name.startswith(("closed_lease:", "idle:"))
    }  # what it used may be told yet
    assert grid.own() - late == STAY | {"result:j1", "rows:j1", "summary:j1", "jobs", "ended_jobs", "ledger"}


def test_a_job_ends_once(grid: Grid) -> None:
    grid.seat()
    grid.job(one(), "j1", celery=True)
    assert grid.scripts.stop("j1", "cancelled", "{}") == "celery"
    assert grid.scripts.stop("j1", "failed", "{}") == "over"
    assert grid.ended("j1").state is JobState.CANCELLED
    assert grid.client.llen(grid.keys("result", "j1")) == 1
    assert grid.client.zcard(grid.keys("answers")) == 1


def test_an_unknown_job_cannot_be_stopped(grid: Grid) -> None:
    assert grid.scripts.stop("nobody", "cancelled", "{}") == "unknown"
    assert grid.own() == {"wake_ups", "schema"}


def test_cancelling_a_job_cancels_its_delayed_retry(grid: Grid) -> None:
    grid.seat()
    grid.job(plan(step(scope=0), scopes=[Scope("root", None, 3, 60_000, ((0, 0),))]), "j1")
    assert grid.fail(grid.take(), "stage") == "again"
    assert grid.pending() == []
    grid.scripts.stop("j1", "cancelled", "{}")
    grid.wait_over()
    assert grid.pending() == []


def test_a_result_lives_for_its_ttl(grid: Grid) -> None:
    grid.seat()
    grid.job(one(), "j1", ttl_ms=5000)
    claim = grid.take()
    assert grid.complete(claim, b"@j1:0:out", long=b"[1]")[0] == 1
    for key in (grid.keys("result", "j1"), grid.keys("rows", "j1"), grid.keys("value", "j1:0:out")):
        life: int = grid.client.pttl(key)
        assert 0 < life <= 5000


def test_a_stream_ends_with_the_job(grid: Grid) -> None:
    grid.seat()
    grid.job(one(), "j1", stream=True, ttl_ms=5000)
    claim = grid.take()
    assert claim.stream
    assert emit(grid.scripts, claim.lease, "root", ['"a"'], 0)
    grid.scripts.stop("j1", "cancelled", "{}")
    entries = grid.client.xrange(grid.keys("stream", "j1"))
    assert entries[-1][1] == {b"end": b"cancelled"}
    assert grid.client.pttl(grid.keys("stream", "j1")) <= 5000


def test_an_admitted_job_can_no_longer_be_refused(grid: Grid) -> None:
    """One router admits the job while another still compiles it and refuses it."""
    grid.seat()
    grid.enqueue("j1")
    grid.job(one(), "j1", deadline_ms=None)
    assert grid.scripts.stop("j1", "failed", "{}", inbox_only=True) == "over"
    grid.done(grid.take())
    assert grid.ended("j1").state is JobState.DONE
    grid.enqueue("j2")
    assert grid.scripts.stop("j2", "failed", "{}", inbox_only=True) == "celery"
