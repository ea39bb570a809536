"""Celery events of a whole grid: none before a monitor asks, then one task for each stage and each job."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

import gridq
from gridq.app import app
from gridq.protocol.models import Json
from tests.acceptance.grids import WholeGrid
from tests.builders import seq, stage
from tests.flower_process import FlowerProcess, read_task
from tests.grid_environment import environment
from tests.monitor import Monitor
from tests.waiting import wait_for

CANARY = "canary-7f3a"
ECHO = {"root": stage("bench_echo")}


def test_no_task_event_is_sent_before_a_monitor_asks(whole_grid: WholeGrid) -> None:
    client = whole_grid.client
    listening = client.redis.pubsub(ignore_subscribe_messages=True)
    listening.psubscribe(f"*{whole_grid.config.prefix}*celeryev*")
    for root in (ECHO, {"root": seq(stage("bench_echo"), stage("bench_fail"))}):
        job = client.submit(root, {"message": "x"})
        assert client.wait(job, 20)
    job = client.submit({"root": stage("bench_sleep")}, {"ms": 60_000})
    wait_for(lambda: client.redis.zcard(client.keys("leases")) == 1)
    client.cancel(job)
    heard = sent_until(listening, "worker-heartbeat")
    assert not [kind for kind in heard if kind.startswith("task-")]
    assert not client.redis.exists(client.keys("monitored_by"))

    with FlowerProcess(environment(whole_grid.config)) as flower:
        wait_for(lambda: client.redis.exists(client.keys("monitored_by")))
        job = client.submit(ECHO, 1)
        client.result(job, 20)
        wait_for(lambda: read_task(flower, f"{job}.0").get("state") == "SUCCESS")
        assert "task-succeeded" in sent_until(listening, "task-succeeded")
    listening.close()


def sent_until(listening: Any, last: str) -> list[str]:
    """Return the kinds of all events up to the first of the kind `last`."""
    kinds: list[str] = []
    while (message := listening.get_message(timeout=0.1)) is not None:
        kinds += kinds_of(message)

    def came() -> bool:
        message = listening.get_message(timeout=0.1)
        kinds.extend(kinds_of(message) if message else [])
        return last in kinds

    wait_for(came)
    return kinds


def kinds_of(message: dict[str, Any]) -> list[str]:
    envelope = json.loads(message["data"])
    body = envelope["body"]
    if envelope["properties"].get("body_encoding") == "base64":
        body = base64.b64decode(body)
    events = json.loads(body)
    return [event["type"] for event in (events if isinstance(events, list) else [events])]


@pytest.fixture(scope="module")
def monitor(whole_grid: WholeGrid) -> Iterator[Monitor]:
    """A monitor that has enabled the events of every worker."""
    with Monitor(app) as listening:
        listening.enable()
        wait_for(lambda: whole_grid.client.redis.exists(whole_grid.client.keys("monitored_by")))
        yield listening


def test_jobs_of_celery_and_of_the_client_are_shown(whole_grid: WholeGrid, monitor: Monitor) -> None:
    two = {"root": seq(stage("bench_echo"), stage("text_template", template="{{text}}!")), "name": "two"}
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


def test_a_refused_graph_is_shown_as_a_failure(monitor: Monitor) -> None:
    task = gridq.run_graph.delay({"root": stage("bench_ecko")}, None)
    with pytest.raises(gridq.errors.UnknownStage):
        task.get(timeout=20)
    assert monitor.task(task.id, "FAILURE").exception == "stage.not_found"


def test_only_live_workers_are_named(whole_grid: WholeGrid, monitor: Monitor) -> None:
    answered = {name for reply in app.control.ping(timeout=2) for name in reply}
    assert {worker.hostname for worker in monitor.state.workers.values()} - {"probe"} <= answered
