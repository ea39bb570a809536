"""Celery's remote control with a `revoke` that is durable: it cancels gridq's jobs itself.

Celery's own is a broadcast, lost where no worker listens just then.
"""

from __future__ import annotations

import logging
from typing import Any

from celery.app.control import Control
from celery.utils.functional import maybe_list
from kombu.exceptions import KombuError

from gridq.errors import JobCancelled
from gridq.messaging import answers
from gridq.store.connection import translated
from gridq.submission import inbox

log = logging.getLogger(__name__)


class JobControl(Control):  # type: ignore[misc]
    """`app.control` of gridq's app; `AsyncResult.revoke()` and `terminate` come here too."""

    def revoke(self, task_id: str | list[str], *args: Any, **options: Any) -> Any:
        """Cancel jobs in this process, by their ids, then tell Celery's workers as Celery does.

        One that has ended stays as it is. BrokerUnreachable: it may not have been cancelled; again is safe.
        """
        scripts = inbox.default().scripts
        error = JobCancelled("The job was revoked").to_json()
        jobs = maybe_list(task_id) or []
        with translated():
            ends = {job: scripts.stop(job, "cancelled", error) for job in jobs}
        for job, end in ends.items():
            if end == "celery":
                answers.write(self.app, scripts, job)
        try:
            return super().revoke(task_id, *args, **options)
        except (KombuError, OSError) as exc:
            if "unknown" in ends.values():  # no job of gridq's: Celery's word is all there is
                raise
            log.warning("Celery's workers were not told that jobs were revoked: %s", exc)
            return None
