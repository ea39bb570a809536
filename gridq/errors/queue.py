"""A capability's queue holds as much as it may."""

from __future__ import annotations

from gridq.errors.base import GridError


class QueueFull(GridError):
    """As many stages stand ready in a queue as it may hold; nothing of the job was admitted.

    `details`: `queue`, `pending` (stages that stand there), `limit`, `needed` (by this job), beside what
    every refused admission says of the wait (`gridq.submission.live_forecast.explain`).
    """

    code = "queue.full"


class QueueDropped(GridError):
    """The oldest batch job of a full queue gave way to an interactive one, as the operator's policy has it.

    `details`: `queue`, `limit`, `path` of the stage that stood ready.
    """

    code = "queue.dropped"
