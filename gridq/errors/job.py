"""How a job ends other than by an answer, and what its caller may meet."""

from __future__ import annotations

from gridq.errors.base import GridError


class DeadlineExceeded(GridError):
    """The job's deadline passed before it was finished."""

    code = "job.deadline"


class NotAdmitted(GridError):
    """A fault of gridq itself kept a job from being admitted; the router's log has its traceback."""

    code = "job.not_admitted"


class JobCancelled(GridError):
    """The job was cancelled."""

    code = "job.cancelled"


class JobNotFound(GridError):
    """No such job, or its result has expired."""

    code = "job.not_found"


class WaitTimeout(GridError, TimeoutError):
    """The caller's own waiting time passed; the job goes on."""

    code = "job.wait_timeout"
