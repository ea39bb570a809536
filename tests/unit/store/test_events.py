"""Events that the scripts publish, received by Celery's own receiver."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from gridq.app import app
from gridq.graph.plan import load_step
from gridq.messaging.monitor_events import encode_events, stage_task_id, started_events, success_events
from gridq.protocol.models import Usage
from gridq.store.replies import Accepted, Claim
from tests.monitor import Monitor
from tests.unit.store.limits import limit
from tests.unit.store.plans import ANY, Grid, chain, one, plan, step, wide

pytestmark = pytest.mark.usefixtures("key_hygiene")

ROUTER = "router0@host"


@pytest.fixture
def monitor(grid: Grid) -> Iterator[Monitor]:
    """A monitor that listens, as a router has said."""
    with Monitor(app) as listening:
        grid.client.set(grid.keys("monitored_by"), ROUTER, px=60_000)
        yield listening


def encode_attempt(claim: Claim, **row: object) -> str:
    """Encode the events of an attempt of `claim`."""
    events = started_events(claim, load_step(claim.spec), "a@m")
    rows = [{"state": "done", "run_ms": 12.5, "tokens_in": 0, "tokens_out": 0, **row}] if row else []
    return encode_events([*events, *success_events(claim, rows, "a@m", time.time())])


def complete(grid: Grid, claim: Claim, **row: object) -> None:
    seat, inc, slot = grid.holders[claim.lease]
    grid.scripts.complete(
        claim.lease, b'"secret"', used=Usage(), rows="[]", seat=seat, incarnation=inc, slot=slot,
        nonce=grid.nonce(), go_on=False, events=encode_attempt(claim, **row),
    )  # fmt: skip


def fail(grid: Grid, claim: Claim, kind: str, error: str = '{"code":"stage.failed"}') -> str:
    return grid.scripts.fail(
        claim.lease, kind, pause_ms=0, used=Usage(), error=error, row="", seat="m.a",
        events=encode_attempt(claim), uuid=stage_task_id(claim, 0), why="stage.failed",
    )  # fmt: skip


def test_a_stage_and_its_job_are_tasks_with_their_own_ids(grid: Grid, monitor: Monitor) -> None:
    grid.seat()
    grid.job(one(), "j1", name="briefing")
    job = monitor.task("j1", "STARTED")
    assert (job.name, job.args, job.kwargs, job.worker.hostname) == ("briefing", "ann", "1 stages", ROUTER)
    complete(grid, grid.take(), state="done", tokens_in=3, tokens_out=40)
    stage = monitor.task("j1.0", "SUCCESS")
    assert (stage.name, stage.args, stage.kwargs) == ("briefing/s", "bench:any", "root")
    assert (stage.root_id, stage.parent_id, stage.worker.hostname) == ("j1", "j1", "a@m")
    assert (stage.runtime, stage.result, stage.retries) == (0.0125, "3 tokens in, 40 out", 0)
    assert stage.received <= stage.started <= stage.succeeded
    assert monitor.task("j1", "SUCCESS").runtime >= 0
    assert "secret" not in json.dumps(monitor.heard)


def test_a_failed_attempt_is_retried_and_a_failed_stage_has_failed(grid: Grid, monitor: Monitor) -> None:
    grid.seat()
    grid.job(one(), "j1")
    assert fail(grid, grid.take(), "back") == "again"
    assert monitor.task("j1.0", "RETRY").name == "graph/s"
    again = grid.take()
    assert fail(grid, again, "stage", '{"code":"stage.failed","message":"a prompt"}') == "plain"
    assert monitor.task("j1.0", "FAILURE").exception == "stage.failed"
    assert monitor.task("j1.0", "FAILURE").retries == 1
    assert monitor.task("j1", "FAILURE").exception == "stage.failed"
    assert "a prompt" not in json.dumps(monitor.heard)


def test_a_repeated_report_publishes_no_event_twice(grid: Grid, monitor: Monitor) -> None:
    grid.seat(concurrency=2)
    grid.job(one(), "j1")
    first = grid.take()
    assert fail(grid, first, "back") == "again"
    assert fail(grid, first, "back") == "fenced"
    second = grid.take()
    grid.scripts.stop("j1", "cancelled", '{"code":"job.cancelled"}')
    assert fail(grid, second, "back") == "fenced"
    assert fail(grid, second, "back") == "fenced"
    grid.job(one(), "j2")
    complete(grid, grid.take(), state="done")
    monitor.task("j2.0", "SUCCESS")  # all before it has been heard
    types = [event["type"] for event in monitor.heard if event.get("uuid") == "j1.0"]
    assert types.count("task-started") == 2


def test_a_stage_lost_with_its_worker_is_retried(grid: Grid, monitor: Monitor) -> None:
    grid.seat()
    grid.job(one(), "j1")
    grid.lapse(grid.take())
    grid.wait_over()
    complete(grid, grid.take(), state="done")
    assert monitor.task("j1.0", "SUCCESS").retries == 1
    retried = next(event for event in monitor.heard if event["type"] == "task-retried")
    assert (retried["uuid"], retried["hostname"]) == ("j1.0", "m.a")
    assert retried["exception"] == "lost: its lease lapsed"


def test_a_quarantined_stage_is_retried_until_it_is_dropped(grid: Grid, monitor: Monitor) -> None:
    grid.job(one(), "j1")
    for seat in ("m.a", "m.b"):
        grid.seat(seat)
        fail(grid, grid.take(seat), "died", '{"code":"stage.quarantined"}')
    assert monitor.task("j1.0", "RETRY").name == "graph/s"
    assert grid.scripts.quarantine("drop", "j1", 0, "ann") == "plain"
    stage = monitor.task("j1.0", "FAILURE")
    assert (stage.exception, stage.worker.hostname) == ("stage.quarantined", ROUTER)
    assert monitor.task("j1", "FAILURE").exception == "stage.quarantined"


def test_a_cancelled_job_and_its_running_stages_are_revoked(grid: Grid, monitor: Monitor) -> None:
    grid.seat(concurrency=2)
    grid.job(wide(3), "j1")
    claims = [grid.take(slot=slot) for slot in "01"]
    grid.scripts.stop("j1", "cancelled", '{"code":"job.cancelled"}')
    assert monitor.task("j1", "REVOKED").exception == "job.cancelled"
    assert fail(grid, claims[0], "back") == "fenced"
    assert fail(grid, claims[1], "back") == "fenced"
    for claim in claims:
        assert monitor.task(stage_task_id(claim, 0), "REVOKED").name == "graph/s"
    assert "j1.2" not in monitor.state.tasks  # it never ran


def test_a_dropped_batch_job_has_failed_and_its_stages_are_revoked(grid: Grid, monitor: Monitor) -> None:
    limit(grid, f'[queues."{ANY}"]\nmax_pending = 1\npolicy = "drop-oldest-batch"')
    grid.seat()
    grid.job(plan(step(), step(queue="bench:two"), step(0, 1)), "b1", prio=1)
    running = grid.take()
    grid.job(one(), "b2", prio=1)
    assert grid.admit(one(), "i1") == Accepted(("b2",))
    assert monitor.task("b2", "FAILURE").exception == "queue.dropped"
    limit(grid, '[queues."bench:two"]\nmax_pending = 1\npolicy = "drop-oldest-batch"')
    assert grid.admit(one(queue="bench:two"), "i2") == Accepted(("b1",))
    assert monitor.task("b1", "FAILURE").exception == "queue.dropped"
    assert fail(grid, running, "back") == "fenced"
    assert monitor.task("b1.0", "REVOKED").name == "graph/s"


def test_a_job_ended_in_the_inbox_is_published_at_its_end(grid: Grid, monitor: Monitor) -> None:
    grid.enqueue("j1")
    assert "j1" not in monitor.state.tasks
    grid.scripts.stop("j1", "failed", '{"code": "graph.unknown_stage"}')
    job = monitor.task("j1", "FAILURE")
    assert (job.name, job.args, job.exception) == ("graph", "ann", "graph.unknown_stage")


def test_a_late_completion_publishes_no_event(grid: Grid, monitor: Monitor) -> None:
    grid.seat()
    grid.job(one(), "j1")
    late = grid.take()
    grid.lapse(late)
    grid.wait_over()
    current = grid.take()
    complete(grid, late, state="done")
    complete(grid, current, state="done")
    monitor.task("j1", "SUCCESS")
    assert [event["uuid"] for event in monitor.heard if event["type"] == "task-succeeded"] == ["j1.0", "j1"]


def test_each_stage_of_a_fused_step_is_a_task(grid: Grid, monitor: Monitor) -> None:
    grid.seat()
    grid.job(chain(2), "j1")
    claim = grid.take()
    two = step()
    fused = load_step(claim.spec)
    events = started_events(claim, type(fused)("root", "q", (*two.ops, *two.ops), ["op", 1]), "a@m")
    assert [event["uuid"] for event in events] == ["j1.0", "j1.0", "j1.0.1", "j1.0.1"]


def test_without_a_monitor_no_event_is_sent(grid: Grid) -> None:
    with Monitor(app) as monitor:
        grid.seat()
        grid.job(one(), "j1")
        grid.done(grid.take())
        grid.job(one(), "j2")
        grid.scripts.stop("j2", "cancelled", "{}")
        grid.client.set(grid.keys("monitored_by"), ROUTER, px=60_000)
        grid.job(one(), "j3")
        monitor.task("j3", "STARTED")
        assert list(monitor.state.tasks) == ["j3"]
