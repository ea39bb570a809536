"""Before any monitor asks for events a grid sends none of its jobs and stages; then it does."""

from __future__ import annotations

import base64
import json
from typing import Any

from tests.acceptance.grids import WholeGrid
from tests.acceptance.test_grid import ECHO, graph, stage
from tests.flower_process import FlowerProcess, read_task
from tests.waiting import wait_for


def test_no_task_event_is_sent_before_a_monitor_asks(whole_grid: WholeGrid) -> None:
    client = whole_grid.client
    listening = client.redis.pubsub(ignore_subscribe_messages=True)
    listening.psubscribe(f"*{whole_grid.config.prefix}*celeryev*")
    for root in (ECHO, graph({"op": "Sequential", "stages": [stage("bench_echo"), stage("bench_fail")]})):
        job = client.submit(root, {"message": "x"})
        assert client.wait(job, 20)
    job = client.submit(graph(stage("bench_sleep")), {"ms": 60_000})
    wait_for(lambda: client.redis.zcard(client.keys("leases")) == 1)
    client.cancel(job)
    heard = sent_until(listening, "worker-heartbeat")
    assert not [kind for kind in heard if kind.startswith("task-")]
    assert not client.redis.exists(client.keys("monitored_by"))

    environ = {
        "GRIDQ_BROKER_URL": whole_grid.config.broker_url.get_secret_value(),
        "GRIDQ_PREFIX": whole_grid.config.prefix,
        "GRIDQ_HOME": str(whole_grid.config.home),
    }
    with FlowerProcess(environ) as flower:
        wait_for(lambda: client.redis.exists(client.keys("monitored_by")))
        job = client.submit(ECHO, 1)
        client.result(job, 20)
        wait_for(lambda: read_task(flower, f"{job}.0").get("state") == "SUCCESS")
        assert "task-succeeded" in sent_until(listening, "task-succeeded")
    listening.close()


def sent_until(listening: Any, last: str) -> list[str]:
    """The kinds of the events that have come, and of those that come until one is of the kind `last`."""
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
