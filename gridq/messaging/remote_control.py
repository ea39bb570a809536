"""Celery's remote control with a durable `revoke`: it cancels gridq's jobs itself.

Celery's own is a broadcast, which is lost if no worker listens.
"""

from __future__ import annotations

import logging
from typing import Any

from celery.app.control import Control
from celery.utils.functional import maybe_list
from kombu.exceptions import KombuError

from gridq.errors import JobCancelled
from gridq.messaging import answers
from gridq.store.connection import translate_errors
from gridq.submission import inbox

log = logging.getLogger(__name__)


class JobControl(Control):  # type: ignore[misc]
    """`app.control` of gridq's app, which `AsyncResult.revoke()` and `terminate` use too."""

    def revoke(self, task_id: str | list[str], *args: Any, **options: Any) -> Any:
        """Cancel jobs by their ids, then tell Celery's workers as Celery does.

        A job that has ended stays as it is. BrokerUnreachable: a job may not have been cancelled; calling
        again is safe.
        """
        scripts = inbox.get_default_inbox().scripts
        error = JobCancelled("The job was revoked").to_json()
        jobs = maybe_list(task_id) or []
        with translate_errors():
            ends = {job: scripts.stop(job, "cancelled", error) for job in jobs}
        for job, end in ends.items():
            if end == "celery":
                answers.publish_answer(self.app, scripts, job)
        try:
            return super().revoke(task_id, *args, **options)
        except (KombuError, OSError) as exc:
            if "unknown" in ends.values():  # not a job of gridq: Celery's broadcast is all there is
                raise
            log.warning("Celery's workers could not be told that jobs were revoked: %s", exc)
            return None
