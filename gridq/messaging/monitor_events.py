"""Task events for Celery's monitors such as Flower: each stage and each job is one task with an id and a
state.

`gridq.run_stage` is a wake-up and sends no events. The scripts publish the end of a stage or a job in the
step that records it; its worker publishes within a second that a stage has begun. Nothing is sent, and next
to nothing done, while no monitor listens. No event contains a value, a prompt or an error's message.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from celery import Celery, signals
from redis.exceptions import RedisError

from gridq.graph.plan import Step
from gridq.messaging.wake_ups import EVENTS, event_channel, make_event_template
from gridq.store.replies import Claim
from gridq.store.scripts import Scripts

Event = dict[str, Any]

WATCHED_TTL_MS = 5000
"""The life of a router's note that a monitor listens. The router repeats it each second."""

POLL_SECONDS = 1.0
"""The time between two reads whether a monitor listens."""


def stage_task_id(claim: Claim, op: int) -> str:
    """Return the task id of a stage: the job's id, the step, and from the second operation on its number."""
    step = claim.lease.split(":", 2)[1]
    return f"{claim.job}.{step}.{op}" if op else f"{claim.job}.{step}"


def started_events(claim: Claim, step: Step, worker: str) -> list[Event]:
    """Return the events of an attempt that has begun: its stages were received when they became ready, and
    started when they were claimed. All times are the server's, like those of the scripts' events.
    """
    at = claim.claimed_ms / 1000
    events: list[Event] = []
    for number, op in enumerate(step.ops):
        task = {"uuid": stage_task_id(claim, number), "hostname": worker, "pid": os.getpid()}
        events.append(
            {
                "type": "task-received",
                "name": f"{claim.name}/{op.name}",
                "args": claim.queue,
                "kwargs": op.path,
                "retries": claim.attempt - 1,
                "root_id": claim.job,
                "parent_id": claim.job,
                "timestamp": at - claim.wait_ms / 1000,
                **task,
            }
        )
        events.append({"type": "task-started", "timestamp": at, **task})
    return events


def success_events(claim: Claim, rows: Iterable[Mapping[str, Any]], worker: str, at: float) -> list[Event]:
    """Return the events of an attempt's stages that have an output, recorded at the server's time `at`."""
    return [
        {
            "type": "task-succeeded",
            "uuid": stage_task_id(claim, number),
            "hostname": worker,
            "pid": os.getpid(),
            "result": f"{row['tokens_in']} tokens in, {row['tokens_out']} out" if row["tokens_out"] else "",
            "runtime": row["run_ms"] / 1000,
            "timestamp": at,
        }
        for number, row in enumerate(rows)
        if row["state"] == "done"
    ]


def encode_events(events: Sequence[Event]) -> str:
    """Return events as the scripts publish them."""
    return json.dumps(events, separators=(",", ":"))


class Monitors:
    """Celery's monitors as one worker or router sees them.

    `worker` is this process's Celery name, which its events carry. A router (`router=True`) also publishes on
    the server that monitors listen, for the events that the scripts send.
    """

    def __init__(self, app: Celery, scripts: Scripts, worker: str, *, router: bool = False) -> None:
        self.worker = worker
        self._client = scripts.client
        self._watched = scripts.keys("monitored_by")
        self._message = make_event_template(app)
        self._topic = event_channel(scripts.client, scripts.keys)
        self._router = router
        self._consumer: Any = None
        self._polled_at = float("-inf")
        self._watched_by_another = False
        signals.worker_ready.connect(self._ready)

    def _ready(self, sender: Any = None, **_: Any) -> None:
        self._consumer = sender

    @property
    def listening(self) -> bool:
        """True if a monitor listens: task events are enabled in this process, by `-E` or by a monitor, or a
        router says so. A monitor enables them every few seconds only; without the router, what runs until
        then in a process that has just started or reconnected would never be shown to end.
        """
        return self._enabled_here or self._enabled_elsewhere()

    @property
    def _enabled_here(self) -> bool:
        # Read each time: Celery makes a new dispatcher with each new connection.
        dispatcher = getattr(self._consumer, "event_dispatcher", None)
        if dispatcher is None or not dispatcher.enabled:
            return False
        return not dispatcher.groups or "task" in dispatcher.groups

    def _enabled_elsewhere(self) -> bool:
        now = time.monotonic()
        if now - self._polled_at >= POLL_SECONDS:
            self._polled_at = now
            with suppress(RedisError):  # recording matters more than monitoring
                self._watched_by_another = bool(self._client.exists(self._watched))
        return self._watched_by_another

    def publish(self, events: Sequence[Event]) -> None:
        """Publish `events`, each second; a router with events enabled also publishes that monitors listen."""
        if self._router and self._enabled_here:
            self._client.set(self._watched, self.worker, px=WATCHED_TTL_MS)
        if events:
            message = self._message.replace(EVENTS, json.dumps(encode_events(events)))
            self._client.publish(self._topic, message)
