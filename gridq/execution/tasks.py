"""The Celery task of workers and routers: `run_stage`, the wake-up."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Any

from celery import Celery, Task
from celery.worker import state

from gridq.app import app
from gridq.messaging import transport
from gridq.messaging.wake_ups import STAGE_TASK

log = logging.getLogger(__name__)


def begin_wake_up() -> Callable[[], None]:
    """Begin what a wake-up asks for, and return the rest for a slot's thread: while Celery hands the message
    to that thread, the server claims a stage.
    """
    try:
        return run_stage.begin()  # type: ignore[no-any-return]
    except Exception:  # whatever it is: the sweep sends another wake-up
        log.exception("a wake-up failed")
        return _do_nothing


def _do_nothing() -> None:
    """Do nothing: the rest of a wake-up that has no more to do."""


def deliver(task: RunStage, _: Celery, consumer: Any) -> Callable[..., None]:
    """Return what Celery's consumer calls with each wake-up: run it on a thread of the pool.

    Stands in for Celery's own strategy, which would decode the message and trace the task first. A wake-up
    has no arguments, result, events or limits, and every stage waits for one.
    """

    def handle(message: Any, _body: Any, acknowledge: Callable[..., None], *_: Any) -> None:
        begun = getattr(message, "begun", None)  # None: it came by another transport
        rest = begin_wake_up() if begun is None else begun.rest
        wake_up = WakeUp(message, task, consumer, acknowledge, rest)
        consumer.pool.apply_async(wake_up.run, callback=_ignore)
        if begun is not None:
            begun.is_taken = True

    return handle


def _ignore(_: None) -> None:
    """Take the result of a wake-up, which Celery's pool gives to somebody."""


class WakeUp:
    """A wake-up in place of Celery's request: what its heartbeats, `inspect` and its shutdown ask of one."""

    acknowledged = False
    time_start: float | None = None

    def __init__(
        self,
        message: Any,
        task: RunStage,
        consumer: Any,
        acknowledge: Callable[..., None],
        rest: Callable[[], None],
    ) -> None:
        self.id = str(message.headers.get("id"))  # a foreign message may have none
        self.name: str = task.name
        self.task = task
        self._delivery_info = message.delivery_info
        self._consumer = consumer
        self._acknowledge = acknowledge
        self._rest = rest

    def run(self) -> None:
        """Do what the wake-up asks for. Acknowledges it after that: until then, the worker takes no other one
        for this slot.
        """
        self.time_start = time.time()
        state.task_accepted(self)
        try:
            self._rest()
        except Exception:  # whatever it is: the sweep sends another wake-up
            log.exception("a wake-up failed")
        finally:
            state.task_ready(self)
            self.acknowledged = True
            self._acknowledge(log, self._consumer.connection_errors)

    def info(self, *, safe: bool = False) -> dict[str, Any]:
        """Return what `celery inspect active` shows."""
        return {
            "id": self.id,
            "name": self.name,
            "args": [],
            "kwargs": {},
            "type": self.name,
            "hostname": self._consumer.hostname,
            "time_start": self.time_start,
            "acknowledged": self.acknowledged,
            "delivery_info": self._delivery_info,
            "worker_pid": os.getpid(),
        }

    def cancel(self, *_: Any, **__: Any) -> None:
        """Do nothing: threads cannot be stopped. A session stops its stages itself."""

    terminate = cancel


class RunStage(Task):  # type: ignore[misc]
    """The task of a wake-up. A process that serves a seat sets `answer`; in any other it does nothing.

    Celery's thread calls `answer`, which only begins the work and returns the rest for a thread of the pool.
    """

    abstract = True
    Strategy = f"{__name__}:deliver"
    answer: Callable[[], Callable[[], None]] | None = None

    def begin(self) -> Callable[[], None]:
        """Begin to look for stages to run on this worker's seat."""
        return self.answer() if self.answer is not None else _do_nothing


@app.task(bind=True, base=RunStage, name=STAGE_TASK, ignore_result=True, send_events=False)  # type: ignore[untyped-decorator]
def run_stage(self: Any) -> None:
    """Look for stages to run on this worker's seat."""
    self.begin()()


transport.on_arrival[STAGE_TASK] = begin_wake_up
