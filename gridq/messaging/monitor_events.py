"""What Celery's monitors (Flower) are shown: each stage and each job as one task with its own id and state.

`gridq.run_stage` is a wake-up and sends no events. The scripts publish what became of a stage or a job in the
same step that records it; that a stage has begun is published by its worker, within a second. Nothing is sent
and next to nothing done while no monitor has events on. No event holds a value, a prompt or an error's
message.
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
from gridq.messaging.envelopes import EVENTS, broadcast, topic
from gridq.store.replies import Claim
from gridq.store.scripts import Scripts

Event = dict[str, Any]

WATCHED_MS = 5000
"""For how long the scripts take a router's word that a monitor listens; it says so each second."""

LOOK = 1.0
"""Seconds between two looks of a process at that word."""


def uuid_of(claim: Claim, op: int) -> str:
    """The task id of a stage: the job's id and its step, and its place in a run of several stages but the
    first.
    """
    step = claim.lease.split(":", 2)[1]
    return f"{claim.job}.{step}.{op}" if op else f"{claim.job}.{step}"


def begun(claim: Claim, step: Step, worker: str) -> list[Event]:
    """The events of an attempt that has begun: its stages were received when they became ready, and started
    when they were claimed. All times are the server's, as those of what the scripts tell.
    """
    at = claim.claimed_ms / 1000
    events: list[Event] = []
    for number, op in enumerate(step.ops):
        about = {"uuid": uuid_of(claim, number), "hostname": worker, "pid": os.getpid()}
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
                **about,
            }
        )
        events.append({"type": "task-started", "timestamp": at, **about})
    return events


def succeeded(claim: Claim, rows: Iterable[Mapping[str, Any]], worker: str, at: float) -> list[Event]:
    """The events of those stages of an attempt that came to an output, recorded at the server's time `at`."""
    return [
        {
            "type": "task-succeeded",
            "uuid": uuid_of(claim, number),
            "hostname": worker,
            "pid": os.getpid(),
            "result": f"{row['tokens_in']} tokens in, {row['tokens_out']} out" if row["tokens_out"] else "",
            "runtime": row["run_ms"] / 1000,
            "timestamp": at,
        }
        for number, row in enumerate(rows)
        if row["state"] == "done"
    ]


def text(events: Sequence[Event]) -> str:
    """The events as the scripts publish them."""
    return json.dumps(events, separators=(",", ":"))


class Monitors:
    """Celery's monitors as one worker or router sees them: whether they listen, and the way to them.

    `worker` is this process's Celery name, which its events bear. A router (`router=True`) also says in the
    store that they listen, for the events that no worker can send.
    """

    def __init__(self, app: Celery, scripts: Scripts, worker: str, *, router: bool = False) -> None:
        self.worker = worker
        self._client = scripts.client
        self._watched = scripts.keys("monitored_by")
        self._message = broadcast(app)
        self._topic = topic(scripts.client, scripts.keys)
        self._router = router
        self._consumer: Any = None
        self._looked = float("-inf")
        self._told = False
        signals.worker_ready.connect(self._ready)

    def _ready(self, sender: Any = None, **_: Any) -> None:
        self._consumer = sender

    @property
    def listen(self) -> bool:
        """Whether a monitor listens: task events are on in this process, by `-E` or by a monitor's word, or a
        router says so. A monitor gives its word every few seconds only, and what runs until then in a process
        that has just started or connected anew would never be shown to end.
        """
        return self._asked or self._hears_of_one()

    @property
    def _asked(self) -> bool:
        # Looked up each time: Celery makes a new dispatcher with each new connection.
        dispatcher = getattr(self._consumer, "event_dispatcher", None)
        if dispatcher is None or not dispatcher.enabled:
            return False
        return not dispatcher.groups or "task" in dispatcher.groups

    def _hears_of_one(self) -> bool:
        now = time.monotonic()
        if now - self._looked >= LOOK:
            self._looked = now
            with suppress(RedisError):  # what is recorded matters more than who is told of it
                self._told = bool(self._client.exists(self._watched))
        return self._told

    def beat(self, events: Sequence[Event]) -> None:
        """Each second: publish `events`; in a router that was asked for them say that monitors listen."""
        if self._router and self._asked:
            self._client.set(self._watched, self.worker, px=WATCHED_MS)
        if events:
            message = self._message.replace(EVENTS, json.dumps(text(events)))
            self._client.publish(self._topic, message)
