"""stop.lua, and the one end that every script gives a job."""

from __future__ import annotations

import pytest

from gridq.graph.plan import Scope
from gridq.protocol.states import JobState
from tests.unit.store.plans import HOUR, Grid, chain, one, plan, step, wide

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


def test_an_end_from_outside_empties_everything(grid: Grid) -> None:
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


def test_the_end_is_set_once(grid: Grid) -> None:
    grid.seat()
    grid.job(one(), "j1", celery=True)
    assert grid.scripts.stop("j1", "cancelled", "{}") == "celery"
    assert grid.scripts.stop("j1", "failed", "{}") == "over"
    end = grid.ended("j1")
    assert end.state is JobState.CANCELLED
    assert grid.client.llen(grid.keys("result", "j1")) == 1
    assert grid.client.zcard(grid.keys("answers")) == 1


def test_an_unknown_job(grid: Grid) -> None:
    assert grid.scripts.stop("nobody", "cancelled", "{}") == "unknown"
    assert grid.own() == {"wake_ups", "schema"}


def test_what_a_stopped_attempt_used_is_charged_to_its_seat_once(grid: Grid) -> None:
    grid.seat(budget=50_000)
    grid.job(one(cost=900), "j1")
    claim = grid.take()
    grid.scripts.stop("j1", "cancelled", "{}")
    assert grid.left() == 50_000
    assert grid.complete(claim, used=700)[0] == -1
    assert grid.complete(claim, used=700)[0] == -1
    assert grid.left() == 49_300


def test_the_worker_learns_at_its_next_beat(grid: Grid) -> None:
    grid.seat()
    grid.job(chain(2), "j1")
    claim = grid.take()
    grid.scripts.stop("j1", "cancelled", "{}")
    assert grid.scripts.renew("m.a", "i1", [claim.lease]) == [claim.lease]
    assert grid.claim() == "none"


def test_a_delayed_retry_does_not_come_back(grid: Grid) -> None:

    grid.seat()
    grid.job(plan(step(scope=0), scopes=[Scope("root", None, 3, 60_000, ((0, 0),))]), "j1")
    assert grid.fail(grid.take(), "stage") == "again"
    assert grid.pending() == []
    grid.scripts.stop("j1", "cancelled", "{}")
    grid.wait_over()
    assert grid.pending() == []


def test_the_answer_lives_for_its_ttl(grid: Grid) -> None:
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
    assert grid.scripts.emit(claim.lease, "root", ['"a"'], 0)
    grid.scripts.stop("j1", "cancelled", "{}")
    entries = grid.client.xrange(grid.keys("stream", "j1"))
    assert entries[-1][1] == {b"end": b"cancelled"}
    assert grid.client.pttl(grid.keys("stream", "j1")) <= 5000


def test_a_refusal_comes_too_late_for_a_job_that_was_admitted(grid: Grid) -> None:
    """Of two routers one admits the job while the other still splits it, and finds that it cannot."""
    grid.seat()
    grid.enqueue("j1")
    grid.job(one(), "j1", deadline_ms=None)
    assert grid.scripts.stop("j1", "failed", "{}", inbox_only=True) == "over"
    grid.done(grid.take())
    assert grid.ended("j1").state is JobState.DONE
    grid.enqueue("j2")
    assert grid.scripts.stop("j2", "failed", "{}", inbox_only=True) == "celery"
