"""Every error gridq raises, each a class with a stable code.

`GridError` takes `(message, details)`, both JSON, and keeps them as its `args`. Celery stores the class's
name and its `args` in the result backend and builds the exception again from them, so the caller of `.get()`
catches the same class with the same attributes that the grid raised.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar, TypeVar

__all__ = [
    "AmbiguousStage",
    "AttemptsExhausted",
    "BrokerError",
    "BrokerIsCluster",
    "BrokerRefused",
    "BrokerTooOld",
    "BrokerUnreachable",
    "CapabilityConflict",
    "ChildDied",
    "ConfigError",
    "DeadlineExceeded",
    "DuplicateKey",
    "GraphCycle",
    "GraphError",
    "GraphTooLarge",
    "GridError",
    "HostNotAllowed",
    "InputTooLarge",
    "InvalidField",
    "InvalidJson",
    "JobCancelled",
    "JobNotFound",
    "MissingField",
    "ModelFileError",
    "NoLiveSeat",
    "OutputTooLarge",
    "SeatDegraded",
    "SeatError",
    "SeatInUse",
    "SeatRateLimited",
    "SeatUnavailable",
    "StageError",
    "StageQuarantined",
    "StageTimeout",
    "StreamCut",
    "TypeMismatch",
    "UnknownCapability",
    "UnknownOperator",
    "UnknownStage",
    "ValueGone",
    "ValueNotJson",
    "WaitTimeout",
    "error_from_record",
]


class GridError(Exception):
    """The base of every gridq error.

    `message` says in one sentence what is wrong. `details` may hold `path` (the JSON path or file position at
    fault, for a failed stage its path in the graph), `expected`, `fix` (the smallest change that would help),
    `worker`, `reason` (the cause in the failing part's own words), `stage`, `retry_at` (Unix seconds) and
    anything else that is JSON.
    """

    code: ClassVar[str] = "grid.error"

    def __init__(self, message: str = "", details: dict[str, Any] | None = None) -> None:
        super().__init__(message, details or {})
        self.message = message
        self.details: dict[str, Any] = details or {}

    @property
    def path(self) -> str | None:
        return self.details.get("path")

    @property
    def stage(self) -> str | None:
        return self.details.get("stage")

    @property
    def worker(self) -> str | None:
        return self.details.get("worker")

    @property
    def reason(self) -> str | None:
        return self.details.get("reason")

    @property
    def expected(self) -> str | None:
        return self.details.get("expected")

    @property
    def fix(self) -> str | None:
        return self.details.get("fix")

    def __str__(self) -> str:
        text = f"{self.code}: {self.message}"
        if self.path:
            text += f" (at {self.path})"
        if self.worker:
            text += f" (on {self.worker})"
        if self.expected:
            text += f"; expected {self.expected}"
        if self.reason and self.reason not in self.message:
            text += f"; {self.reason}"
        if self.fix:
            text += f". Fix: {self.fix}"
        return text

    def to_record(self) -> dict[str, Any]:
        """The error as JSON: `{"error": class name, "code", "message", "details"}`; `error_from_record` reads
        it.
        """
        return {
            "error": type(self).__name__,
            "code": self.code,
            "message": self.message,
            "details": self.details,
        }

    def to_json(self) -> str:
        return json.dumps(self.to_record(), separators=(",", ":"))


class GraphError(GridError):
    """The graph cannot be run; nothing was queued."""

    code = "graph.invalid"


class InvalidJson(GraphError):
    """The text is not JSON."""

    code = "graph.not_json"


class UnknownOperator(GraphError):
    """A node's `op` is none of the ten operators."""

    code = "graph.unknown_operator"


class MissingField(GraphError):
    """A node lacks a field that its operator needs."""

    code = "graph.missing_field"


class InvalidField(GraphError):
    """A field's value has the wrong type or is out of range."""

    code = "graph.invalid_field"


class GraphCycle(GraphError):
    """A node contains itself by reference."""

    code = "graph.cycle"


class GraphTooLarge(GraphError):
    """The graph is deeper or has more steps than the limit."""

    code = "graph.too_large"


class TypeMismatch(GraphError):
    """A stage's output type does not fit the input type of the stage that reads it."""

    code = "graph.type_mismatch"


class UnknownStage(GraphError):
    """A stage reference resolves to nothing."""

    code = "stage.not_found"


class AmbiguousStage(GraphError):
    """A stage reference resolves to several stages."""

    code = "stage.ambiguous"


class UnknownCapability(GraphError):
    """A stage declares an effect that no enabled profile knows."""

    code = "capability.unknown"


class CapabilityConflict(GraphError):
    """A stage needs two kinds of capability at once."""

    code = "capability.conflict"


class NoLiveSeat(GridError):
    """No live seat serves a capability that the graph needs."""

    code = "seat.none_live"


class InputTooLarge(GridError):
    """The job's input or a stage's input is over the limit."""

    code = "input.too_large"


class OutputTooLarge(GridError):
    """A stage's output is over the limit."""

    code = "output.too_large"


class ValueGone(GridError):
    """A stored value is no longer there."""

    code = "value.gone"


class ValueNotJson(GridError):
    """A value is not JSON (NaN, a set, an object that contains itself …)."""

    code = "value.not_json"


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


class SeatError(GridError):
    """The seat, not the stage, is at fault: the stage is tried again on another seat.

    `details["retry_after"]`, in seconds, says when this seat may be asked again.
    """

    code = "seat.error"


class SeatUnavailable(SeatError):
    """The seat's engine or endpoint cannot be reached or answered with a server error."""

    code = "seat.unavailable"


class SeatRateLimited(SeatError):
    """The seat's provider refused by its rate limit."""

    code = "seat.rate_limited"


class SeatDegraded(SeatError):
    """The seat is logged out, out of credit or its key was refused."""

    code = "seat.degraded"


class ChildDied(SeatError):
    """The child process that ran the stage died under it; twice on one stage and the stage is quarantined.

    `details["alone"]` False: other stages ran in that process too, so the death counts as a loss only.
    """

    code = "seat.child_died"


class SeatInUse(GridError):
    """The seat is already served by another live worker."""

    code = "seat.in_use"


class ModelFileError(SeatError):
    """A model's file is missing, corrupt or does not match its checksum."""

    code = "model.file"


class DeadlineExceeded(GridError):
    """The job's deadline passed before it was finished."""

    code = "job.deadline"


class JobCancelled(GridError):
    """The job was cancelled."""

    code = "job.cancelled"


class JobNotFound(GridError):
    """No such job, or its result has expired."""

    code = "job.not_found"


class DuplicateKey(GridError):
    """An idempotency key was used before with another body."""

    code = "job.duplicate_key"


class WaitTimeout(GridError, TimeoutError):
    """The caller's own waiting time passed; the job goes on."""

    code = "job.wait_timeout"


class ConfigError(GridError):
    """A setting, a configuration file or a command's argument is wrong."""

    code = "config.invalid"


class BrokerError(GridError):
    """The broker cannot be used."""

    code = "broker.error"


class BrokerUnreachable(BrokerError):
    """Nothing answers at the broker's address."""

    code = "broker.unreachable"


class BrokerRefused(BrokerError):
    """The broker refused the login or a command."""

    code = "broker.refused"


class BrokerTooOld(BrokerError):
    """The broker is older than Redis 7.0 or Valkey 7.2."""

    code = "broker.too_old"


class BrokerIsCluster(BrokerError):
    """The broker is a Redis Cluster, which Celery's transport cannot use."""

    code = "broker.is_cluster"


T = TypeVar("T", bound=GridError)


def _tree(cls: type[GridError]) -> dict[str, type[GridError]]:
    found = {cls.__name__: cls}
    for sub in cls.__subclasses__():
        found.update(_tree(sub))
    return found


def error_from_record(record: dict[str, Any]) -> GridError:
    """The exception that `to_record` described; an unknown class becomes a plain `GridError`."""
    cls = _tree(GridError).get(str(record.get("error")), GridError)
    return cls(str(record.get("message", "")), dict(record.get("details") or {}))
