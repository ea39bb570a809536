"""The Celery task of workers and routers: `run_stage`, the wake-up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery import Task

from gridq.app import app
from gridq.messaging.wake_ups import STAGE_TASK


class RunStage(Task):  # type: ignore[misc]
    """A process that serves a seat sets `answer()`; in any other process a wake-up does nothing."""

    abstract = True
    answer: Callable[[], None] | None = None


@app.task(bind=True, base=RunStage, name=STAGE_TASK, ignore_result=True, send_events=False)  # type: ignore[untyped-decorator]
def run_stage(self: Any) -> None:
    """Look for stages to run on this worker's seat."""
    if self.answer is not None:
        self.answer()
