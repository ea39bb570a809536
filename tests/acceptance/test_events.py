"""A monitor of Celery's sees each stage and each job of a whole grid as one task, whoever submitted it."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest

import gridq
from gridq.app import app
from gridq.protocol.models import Json
from tests.acceptance.grids import WholeGrid
from tests.acceptance.test_grid import graph, stage
from tests.monitor import Monitor
from tests.waiting import wait_for

CANARY = "canary-7f3a"


@pytest.fixture(scope="module")
def monitor(whole_grid: WholeGrid) -> Iterator[Monitor]:
    """A monitor that has switched the events of every worker on, and is listened for."""
    with Monitor(app) as listening:
        listening.enable()
        wait_for(lambda: whole_grid.client.redis.exists(whole_grid.client.keys("monitored_by")))
        yield listening


def sequence(*stages: dict[str, Any]) -> dict[str, Any]:
    return graph({"op": "Sequential", "stages": list(stages)})


def test_jobs_of_celery_and_of_the_client_are_shown(whole_grid: WholeGrid, monitor: Monitor) -> None:
    two = {**sequence(stage("bench_echo"), stage("text_template", template="{{text}}!")), "name": "two"}
    value: Json = {"text": CANARY}
    task = gridq.run_graph.delay(two, value)
    assert task.get(timeout=20) == f"{CANARY}!"
    jobs = [task.id, whole_grid.client.submit(two, value, name="mine")]
    for job, name in zip(jobs, ("two", "mine"), strict=True):
        assert monitor.task(job, "SUCCESS").name == name
        first = monitor.task(f"{job}.0", "SUCCESS")
        assert (first.name, first.args, first.root_id) == (f"{name}/bench_echo", "bench:any", job)
        assert first.worker.hostname.startswith("bench@")
        assert monitor.task(f"{job}.1", "SUCCESS").name == f"{name}/text_template"
    assert CANARY not in json.dumps(monitor.heard)


def test_a_stage_that_runs_is_shown_while_it_runs(whole_grid: WholeGrid, monitor: Monitor) -> None:
    job = whole_grid.client.submit(graph(stage("bench_sleep")), {"ms": 60_000})
    assert monitor.task(f"{job}.0", "STARTED").name == "bench_sleep/bench_sleep"
    whole_grid.client.cancel(job)
    monitor.task(f"{job}.0", "REVOKED")
    monitor.task(job, "REVOKED")


def test_a_stage_that_fails(whole_grid: WholeGrid, monitor: Monitor) -> None:
    job = whole_grid.client.submit(sequence(stage("bench_echo"), stage("bench_fail")), {"message": CANARY})
    assert monitor.task(job, "FAILURE").exception == "stage.failed"
    assert monitor.task(f"{job}.0", "SUCCESS").name == "graph/bench_echo"
    assert monitor.task(f"{job}.1", "FAILURE").exception == "stage.failed"
    assert CANARY not in json.dumps(monitor.heard)


def test_a_refused_graph_is_shown_as_a_failure(monitor: Monitor) -> None:
    task = gridq.run_graph.delay(graph(stage("bench_ecko")), None)
    with pytest.raises(gridq.errors.UnknownStage):
        task.get(timeout=20)
    assert monitor.task(task.id, "FAILURE").exception == "stage.not_found"


def test_a_stage_whose_worker_is_killed(whole_grid: WholeGrid, monitor: Monitor) -> None:
    job = whole_grid.client.submit(graph(stage("bench_sleep")), {"ms": 2500})
    monitor.task(f"{job}.0", "STARTED")
    child = whole_grid.home.children["bench"]
    child.send_signal(signal.SIGKILL)
    child.wait()
    whole_grid.home.spawn("bench")
    assert whole_grid.client.result(job, 60) == {"ms": 2500}
    # The new worker's events are off until a monitor asks for them again, as Flower does every few seconds.
    monitor.task(job, "SUCCESS")


def test_only_live_workers_are_named(whole_grid: WholeGrid, monitor: Monitor) -> None:
    answered = {name for reply in app.control.ping(timeout=2) for name in reply}
    assert {worker.hostname for worker in monitor.state.workers.values()} - {"probe"} <= answered
