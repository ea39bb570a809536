"""The router's Celery messages: how they are received and revoked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.utils.functional import maybe_list
from celery.worker.control import Panel
from celery.worker.request import Request

from gridq.errors import JobCancelled
from gridq.store.scripts import Scripts


class AdmissionRequest(Request):  # type: ignore[misc]
    """A received `gridq.run_graph`. The end of its body is not the end of the job."""

    def revoked(self) -> bool:
        """Return False: discarding a wake-up ends no job. Cancelling a job does, and sets its state."""
        return False


def install_revoke(scripts: Scripts, ended: Callable[[str], None]) -> None:
    """Make Celery's `revoke` from elsewhere (another app, Flower's button) cancel jobs in this process.

    Celery's own would write REVOKED for a job that goes on. `ended(job)` publishes a job's answer.
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
