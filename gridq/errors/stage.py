"""A stage failed for good: another seat would not do better."""

from __future__ import annotations

from gridq.errors.base import GridError


class StageError(GridError):
    """The stage failed by its own fault, so it is not tried again."""

    code = "stage.failed"
    remedy = "Correct the stage's input, config or code, as `reason` says."


class StageTimeout(StageError):
    """The stage ran longer than its time limit."""

    code = "stage.timeout"
    remedy = "Give it less to do, or raise its `timeout` or GRIDQ_STAGE_TIMEOUT."


class StageMemoryExceeded(StageError):
    """A Python stage held more memory of its device than its `Gpu` effect reserves, and was ended."""

    code = "stage.memory_exceeded"
    remedy = "Raise `memory_mb` of its effect, or let it use less."


class WrongType(StageError):
    """A Python stage got an input, or returned an output, of another type than it declares."""

    code = "stage.wrong_type"
    remedy = "Give the stage what `expected` says, or correct its `input` or `output` type."


class StreamCut(StageError):
    """A streamed answer broke off after its first piece was delivered.

    It is not tried again, because another run could contradict what was already read.
    """

    code = "stage.stream_cut"
    remedy = "Submit the job again."


class StageQuarantined(StageError):
    """The stage killed the process that ran it, twice, and is not tried again."""

    code = "stage.quarantined"
    remedy = "Find out why (`gridq quarantine`), then submit the job again."


class AttemptsExhausted(StageError):
    """Every attempt of the stage failed through the fault of its seats."""

    code = "stage.attempts_exhausted"
    remedy = "Read `reason`; repair the seats, or raise GRIDQ_MAX_ATTEMPTS."


class HostNotAllowed(StageError):
    """The stage called a host that the operator does not allow."""

    code = "http.host_not_allowed"
    remedy = "Add the host to GRIDQ_HTTP_ALLOW on the machines that run such stages."
