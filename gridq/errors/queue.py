"""A capability's queue is full."""

from __future__ import annotations

from gridq.errors.base import GridError


class QueueFull(GridError):
    """A queue already holds as many ready stages as it may, so the job was not admitted.

    `details`: `queue`, `pending` (stages in the queue), `limit`, `needed` (by this job), `has_seat` (a live
    seat could take them; stages that none could take are counted apart), and the estimated wait
    (`gridq.submission.refusal_details`).
    """

    code = "queue.full"
    remedy = "Submit again after `retry_after`, or add seats for `queue`."


class QueueDropped(GridError):
    """The oldest batch job of a full queue was dropped to make room for an interactive job.

    `details`: `queue`, `limit`, `path` of the stage that was ready.
    """

    code = "queue.dropped"
    remedy = "Submit it again when the queue is shorter."
