"""How a job ends other than by an answer, and what its caller may meet."""

from __future__ import annotations

from gridq.errors.base import GridError


class DeadlineExceeded(GridError):
    """The job's deadline passed before it was finished."""

    code = "job.deadline"


class DeadlineUnreachable(GridError):
    """By all that is known now, the job could not begin within its deadline or `queue_timeout`; nothing of it
    was admitted.

    `details`: `queue`, `seconds` (what the submitter allows), beside what every refused admission says of the
    wait (`gridq.submission.live_forecast.explain`).
    """

    code = "job.deadline_unreachable"


class QueueTimeout(GridError):
    """A stage, or the job itself before its admission, waited for longer than the job's `queue_timeout`.

    `details`: `path` of the stage (empty: no router admitted the job), `queue`, `seconds`, `reason`: why
    nobody took it, as far as the grid knows.
    """

    code = "job.queue_timeout"


class IdempotencyConflict(GridError):
    """Another body (graph, input, options) was submitted under this idempotency key or this id before.

    `details`: `job`, the id of the job that has it.
    """

    code = "job.idempotency_conflict"


class NotAdmitted(GridError):
    """A fault of gridq itself kept a job from being admitted; the router's log has its traceback."""

    code = "job.not_admitted"


class JobCancelled(GridError):
    """The job was cancelled."""

    code = "job.cancelled"


class JobNotFound(GridError):
    """No such job, or its result has expired."""

    code = "job.not_found"


class AmbiguousJob(GridError):
    """Several jobs' ids begin with what was given."""

    code = "job.ambiguous"


class NotQuarantined(GridError):
    """The stage that an operator names stands in no quarantine."""

    code = "stage.not_quarantined"


class WaitTimeout(GridError, TimeoutError):
    """The caller's own waiting time passed; the job goes on."""

    code = "job.wait_timeout"
