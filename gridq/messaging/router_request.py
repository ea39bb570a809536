"""The router's message as its Celery worker sees it, and Celery's word for ending it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.utils.functional import maybe_list
from celery.worker.control import Panel
from celery.worker.request import Request

from gridq.errors import JobCancelled
from gridq.store.scripts import Scripts


class AdmissionRequest(Request):  # type: ignore[misc]
    """A received `gridq.run_graph`. Its body's end is not the job's: that is told by whoever ends the job."""

    def revoked(self) -> bool:
        """Never: a wake-up that is not looked at ends no job. A cancel does, and its state is what Celery
        is told.
        """
        return False


def revoke_cancels(scripts: Scripts, ended: Callable[[str], None]) -> None:
    """In this worker or router, let Celery's `revoke` from elsewhere (another app, Flower's button) cancel
    a job.

    Celery's own would write REVOKED for a job that goes on. `ended(job)` writes a job's answer.
    """

    def revoke(state: Any, task_id: str | list[str], **_: Any) -> dict[str, str]:
        jobs = maybe_list(task_id) or []
        for job in jobs:
            if scripts.stop(job, "cancelled", JobCancelled("The job was revoked").to_json()) == "celery":
                ended(job)
        return {"ok": f"cancelled {', '.join(jobs)}"}

    def terminate(state: Any, signal: str, task_id: str | list[str], **_: Any) -> dict[str, str]:
        return revoke(state, task_id)

    Panel.data.update(revoke=revoke, terminate=terminate)
