"""A stage failed for good: no other seat would do better."""

from __future__ import annotations

from gridq.errors.base import GridError


class StageError(GridError):
    """A stage failed by its own fault; running it again elsewhere would not help."""

    code = "stage.failed"


class StageTimeout(StageError):
    """A stage ran longer than its time limit."""

    code = "stage.timeout"


class StreamCut(StageError):
    """A streamed answer broke off after its first piece was handed on; another run would contradict what was
    read.
    """

    code = "stage.stream_cut"


class StageQuarantined(StageError):
    """A stage killed the process that ran it, twice; it is not tried again."""

    code = "stage.quarantined"


class AttemptsExhausted(StageError):
    """Every attempt of a stage failed for reasons of its seats."""

    code = "stage.attempts_exhausted"


class HostNotAllowed(StageError):
    """A stage asked for a host that the operator's allow-list lacks."""

    code = "http.host_not_allowed"
