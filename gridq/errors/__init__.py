"""Every error that gridq raises, each a class with a stable code; a module holds one family.

In: a message, and details as JSON.
Out: an exception that survives Celery's result backend, HTTP and Redis with its class and fields.
Imported by: everything. Celery stores an exception's class name and its `args`, and builds it again from
them. GridError's `args` are `(message, details)`, so whoever calls `.get()` catches the same class that was
raised.
"""

from __future__ import annotations

from gridq.errors.auth import (
    AuthError,
    GatewayOpen,
    KeyInvalid,
    KeyMissing,
    KeyNotFound,
    KeyRevoked,
    KeyScopeMissing,
    OriginRefused,
    TooManyAttempts,
)
from gridq.errors.base import GridError, error_from_record, quote
from gridq.errors.broker import (
    BrokerError,
    BrokerEvicts,
    BrokerIsCluster,
    BrokerRefused,
    BrokerTooOld,
    BrokerUnreachable,
    GatewayUnreachable,
    GridFull,
    SchemaMismatch,
)
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
from gridq.errors.job import (
    AmbiguousJob,
    DeadlineExceeded,
    DeadlineUnreachable,
    IdempotencyConflict,
    JobCancelled,
    JobDamaged,
    JobNotFound,
    NotAdmitted,
    NotQuarantined,
    NotStreamed,
    QueueTimeout,
    WaitTimeout,
)
from gridq.errors.model import (
    DigestMismatch,
    DiskFull,
    HubUnreachable,
    ModelGated,
    ModelInUse,
    ModelLoading,
    ModelNotFound,
    ModelPullError,
    ModelReferenceInvalid,
    ModelTooLarge,
)
from gridq.errors.model_file import (
    ModelArchitectureUnknown,
    ModelContextTooLong,
    ModelFileDamaged,
    ModelFileError,
    ModelFileTruncated,
    ModelOutsideFolders,
    ModelPartMissing,
)
from gridq.errors.program import (
    AlreadyRunning,
    ConfigError,
    GridBusy,
    JoinRefused,
    JoinTokenInvalid,
    StartTimeout,
)
from gridq.errors.queue import QueueDropped, QueueFull
from gridq.errors.quota import (
    AgentGpuSecondsExceeded,
    AgentJobsExceeded,
    AgentMoneyExceeded,
    AgentTokensExceeded,
    JobBudgetExceeded,
    KeyBusy,
    KeyLimitReached,
    KeyRateExceeded,
    QuotaExceeded,
    QuotasFileError,
    TeamGpuSecondsExceeded,
    TeamJobsExceeded,
    TeamMoneyExceeded,
    TeamTokensExceeded,
)
from gridq.errors.request import (
    EncodingRefused,
    GatewayBusy,
    GatewayFault,
    GatewayStops,
    HeadersTooLarge,
    MethodNotAllowed,
    NotSupported,
    RequestError,
    RequestTooSlow,
    RouteNotFound,
    WorkersFull,
)
from gridq.errors.seat import (
    ChildDied,
    DemandUnmet,
    ModelInCooldown,
    ModelUnavailable,
    NoLiveSeat,
    RequestRefused,
    SeatDegraded,
    SeatError,
    SeatInUse,
    SeatMemoryShort,
    SeatNotFound,
    SeatRateLimited,
    SeatUnavailable,
    SeatUnreachable,
)
from gridq.errors.stage import (
    AttemptsExhausted,
    HostNotAllowed,
    StageError,
    StageMemoryExceeded,
    StageQuarantined,
    StageTimeout,
    StreamCut,
    WrongType,
)
from gridq.errors.validation import describe_fault, first_fault, suggest_fix
from gridq.errors.value import InputTooLarge, OutputTooLarge, StreamTrimmed, ValueGone, ValueNotJson

__all__ = [
    "AgentGpuSecondsExceeded", "AgentJobsExceeded", "AgentMoneyExceeded", "AgentTokensExceeded",
    "AlreadyRunning", "AmbiguousJob",
    "AmbiguousStage", "AttemptsExhausted", "AuthError", "BrokerError", "BrokerEvicts", "BrokerIsCluster",
    "BrokerRefused", "BrokerTooOld", "BrokerUnreachable", "CapabilityConflict", "ChildDied", "ConfigError",
    "DeadlineExceeded", "DeadlineUnreachable", "DemandUnmet", "DigestMismatch", "DiskFull", "EncodingRefused",
    "GatewayBusy", "GatewayFault", "GatewayOpen", "GatewayStops", "GatewayUnreachable", "GraphCycle",
    "GraphError", "GraphTooLarge", "GridBusy", "GridError", "GridFull", "HeadersTooLarge", "HostNotAllowed",
    "HubUnreachable", "IdempotencyConflict", "InputTooLarge", "InvalidField", "InvalidJson",
    "JobBudgetExceeded", "JobCancelled", "JobDamaged", "JobNotFound", "JoinRefused", "JoinTokenInvalid",
    "KeyBusy", "KeyInvalid", "KeyLimitReached", "KeyMissing", "KeyNotFound", "KeyRateExceeded", "KeyRevoked",
    "KeyScopeMissing", "MethodNotAllowed", "MissingField", "ModelArchitectureUnknown", "ModelContextTooLong",
    "ModelFileDamaged",
    "ModelFileError", "ModelFileTruncated", "ModelGated", "ModelInCooldown", "ModelInUse", "ModelLoading",
    "ModelNotFound", "ModelOutsideFolders", "ModelPartMissing", "ModelPullError", "ModelReferenceInvalid",
    "ModelTooLarge",
    "ModelUnavailable", "NoLiveSeat", "NotAdmitted", "NotQuarantined", "NotStreamed", "NotSupported",
    "OriginRefused", "OutputTooLarge", "QueueDropped", "QueueFull", "QueueTimeout", "QuotaExceeded",
    "QuotasFileError", "RequestError", "RequestRefused", "RequestTooSlow", "RouteNotFound", "SchemaMismatch",
    "SeatDegraded", "SeatError", "SeatInUse", "SeatMemoryShort", "SeatNotFound", "SeatRateLimited",
    "SeatUnavailable", "SeatUnreachable", "StageError", "StageMemoryExceeded", "StageQuarantined",
    "StageTimeout", "StartTimeout", "StreamCut", "StreamTrimmed", "TeamGpuSecondsExceeded",
    "TeamJobsExceeded", "TeamMoneyExceeded", "TeamTokensExceeded",
    "TooManyAttempts", "TypeMismatch", "UnknownCapability", "UnknownOperator", "UnknownStage", "ValueGone",
    "ValueNotJson", "WaitTimeout", "WorkersFull", "WrongType", "describe_fault", "error_from_record",
    "first_fault", "quote", "suggest_fix",
]  # fmt: skip
