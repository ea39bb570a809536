"""Every error gridq raises, each a class with a stable code; one file holds one family.

`GridError` takes `(message, details)`, both JSON, and keeps them as its `args`. Celery stores the class's
name and its `args` in the result backend and builds the exception again from them, so the caller of `.get()`
catches the same class with the same attributes that the grid raised.
"""

from __future__ import annotations

from gridq.errors.auth import AuthError, KeyInvalid, KeyMissing, KeyNotFound, KeyRevoked, KeyScopeMissing
from gridq.errors.base import GridError, error_from_record
from gridq.errors.broker import BrokerError, BrokerIsCluster, BrokerRefused, BrokerTooOld, BrokerUnreachable
from gridq.errors.graph import (
    AmbiguousStage,
    CapabilityConflict,
    GraphCycle,
    GraphError,
    GraphTooLarge,
    InvalidField,
    InvalidJson,
    MissingField,
    TypeMismatch,
    UnknownCapability,
    UnknownOperator,
    UnknownStage,
)
from gridq.errors.job import DeadlineExceeded, JobCancelled, JobNotFound, NotAdmitted, WaitTimeout
from gridq.errors.program import (
    AlreadyRunning,
    ConfigError,
    JoinRefused,
    JoinTokenInvalid,
    StartTimeout,
    first_fault,
)
from gridq.errors.quota import (
    AgentJobsExceeded,
    AgentMoneyExceeded,
    QuotaExceeded,
    QuotasFileError,
    TeamJobsExceeded,
    TeamMoneyExceeded,
)
from gridq.errors.seat import (
    ChildDied,
    ModelFileError,
    NoLiveSeat,
    SeatDegraded,
    SeatError,
    SeatInUse,
    SeatRateLimited,
    SeatUnavailable,
)
from gridq.errors.stage import (
    AttemptsExhausted,
    HostNotAllowed,
    StageError,
    StageQuarantined,
    StageTimeout,
    StreamCut,
)
from gridq.errors.value import InputTooLarge, OutputTooLarge, ValueGone, ValueNotJson

__all__ = [
    "AgentJobsExceeded",
    "AgentMoneyExceeded",
    "AlreadyRunning",
    "AmbiguousStage",
    "AttemptsExhausted",
    "AuthError",
    "BrokerError",
    "BrokerIsCluster",
    "BrokerRefused",
    "BrokerTooOld",
    "BrokerUnreachable",
    "CapabilityConflict",
    "ChildDied",
    "ConfigError",
    "DeadlineExceeded",
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
    "JoinRefused",
    "JoinTokenInvalid",
    "KeyInvalid",
    "KeyMissing",
    "KeyNotFound",
    "KeyRevoked",
    "KeyScopeMissing",
    "MissingField",
    "ModelFileError",
    "NoLiveSeat",
    "NotAdmitted",
    "OutputTooLarge",
    "QuotaExceeded",
    "QuotasFileError",
    "SeatDegraded",
    "SeatError",
    "SeatInUse",
    "SeatRateLimited",
    "SeatUnavailable",
    "StageError",
    "StageQuarantined",
    "StageTimeout",
    "StartTimeout",
    "StreamCut",
    "TeamJobsExceeded",
    "TeamMoneyExceeded",
    "TypeMismatch",
    "UnknownCapability",
    "UnknownOperator",
    "UnknownStage",
    "ValueGone",
    "ValueNotJson",
    "WaitTimeout",
    "error_from_record",
    "first_fault",
]
