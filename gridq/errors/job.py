"""A job ended without an answer, or does not exist."""

from __future__ import annotations

from gridq.errors.base import GridError


class DeadlineExceeded(GridError):
    """The job's deadline passed before it finished."""

    code = "job.deadline"
    remedy = "Submit it with a later deadline, or when the grid is less busy."


class DeadlineUnreachable(GridError):
    """The job was not admitted, because it is not expected to start within its deadline or `queue_timeout`.

    `details`: `queue`, `seconds` (the time that you allowed), and the estimated wait
    (`gridq.submission.refusal_details`).
    """

    code = "job.deadline_unreachable"
    remedy = "Allow more time, or submit it again after `retry_after`."


class QueueTimeout(GridError):
    """The job, or one of its stages, waited longer than the job's `queue_timeout`.

    `details`: `path` of the stage (empty if no router admitted the job), `queue`, `seconds`, and `reason`:
    why no seat took it, as far as the grid knows.
    """

    code = "job.queue_timeout"
    remedy = "Read `reason`; add seats for `queue`, or raise the `queue_timeout`."


class IdempotencyConflict(GridError):
    """This idempotency key or job id was used before with another graph, input or options.

    `details`: `job`, the id of the job that has it.
    """

    code = "job.idempotency_conflict"
    remedy = "Use a new key, or send the same request again to get that job."


class NotAdmitted(GridError):
    """A fault in gridq kept the job from being admitted."""

    code = "job.not_admitted"
    remedy = "Read the traceback in the router's log, and report it."


class JobDamaged(GridError):
    """Something other than gridq has changed a record of the job, so that it cannot go on."""

    code = "job.damaged"
    remedy = "Submit the job again. The router's log names the record."


class JobCancelled(GridError):
    """The job was cancelled."""

    code = "job.cancelled"
    remedy = "Submit it again if you still want its answer."


class JobNotFound(GridError):
    """The grid has no job with this id, or its result has expired."""

    code = "job.not_found"
    remedy = "Check the id with `gridq jobs`; GRIDQ_RESULT_TTL says how long results are kept."


class AmbiguousJob(GridError):
    """Several jobs have an id that begins with this text."""

    code = "job.ambiguous"
    remedy = "Give more characters of the id."


class NotQuarantined(GridError):
    """The stage is not in quarantine."""

    code = "stage.not_quarantined"
    remedy = "List the stages in quarantine with `gridq quarantine`."


class NotStreamed(GridError):
    """The job keeps no pieces for `stream`, because it was submitted without `stream=True`."""

    code = "job.not_streamed"
    remedy = "Submit it with `stream=True`, or wait for its answer with `result`."


class WaitTimeout(GridError, TimeoutError):
    """The caller's own timeout passed while it waited; the job goes on."""

    code = "job.wait_timeout"
    remedy = "Wait again for the same job, with a longer timeout."
