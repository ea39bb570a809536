"""The router's message as its Celery worker sees it."""

from __future__ import annotations

from typing import Any

from celery.worker.request import Request


class AdmissionRequest(Request):  # type: ignore[misc]
    """A received `gridq.run_graph`. Its body's end is not the job's: that is told by whoever ends the job."""

    def revoked(self) -> bool:
        """Never: a bell that is not looked at ends no job. That is for `gridq.cancel`, and the state it
        sets is the one that Celery is told.
        """
        return False

    def send_event(self, type: str, **fields: Any) -> None:
        if type != "task-succeeded":
            super().send_event(type, **fields)
