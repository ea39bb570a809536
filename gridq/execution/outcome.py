"""Outcomes of an attempt: an output, or a failure with the party at fault and the back-off that follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gridq.errors import (
    AttemptsExhausted,
    ChildDied,
    GridError,
    ModelFileError,
    ModelInCooldown,
    RequestRefused,
    SeatDegraded,
    SeatError,
    SeatUnreachable,
    StageQuarantined,
    StreamCut,
)
from gridq.execution.back_off import back_off, bounded_seconds
from gridq.protocol.models import Json

STREAM_CUT = "The answer broke off after it had begun"

OWNER_DETAILS = frozenset({"reason", "endpoint_code", "endpoint_type", "param"})
"""Details in which a vendor speaks of the account or machine behind a degraded seat. They are for its owner:
the worker's log has them, the error of the job does not.
"""

VENDOR_DETAILS = ("status", "endpoint_code", "endpoint_type", "param", "retry_after")
"""Details in which a vendor says what kind of error it is. A stream that breaks off keeps them."""

FailureKind = Literal["stage", "seat", "unreached", "died", "lost", "back"]
"""Whose fault a failure is, as `fail.lua` reads it: the stage's own, the seat's, the seat's before its
endpoint got anything of the request, the runner's child process died, the attempt was lost, or the stage is
handed back. `unreached` and `back` leave the stage's attempts unspent.
"""


@dataclass(frozen=True, slots=True)
class Completed:
    """The attempt has an output: encoded JSON."""

    output: bytes


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt has no output.

    `error` ends the job if this was the last attempt. For `pause_seconds` the stage is not given to this seat
    again. `code` is what logs and monitors may see, if it is not that of `error`. `seat_error` is set
    if the seat is at fault, for its circuit breaker. `answered`: the seat's endpoint is well, it refused what
    the stage asked for.
    """

    kind: FailureKind
    error: GridError
    pause_seconds: float = 0.0
    code: str = ""
    seat_error: SeatError | None = None
    answered: bool = False


Outcome = Completed | Failed


def classify_failure(
    exc: BaseException, place: Mapping[str, Json], *, emitted: bool, failures: int, backoff: float
) -> Failed:
    """Return what `exc`, raised by the runner, means for the stage.

    `place` is added to the error's details and says where it happened. `emitted`: part of the answer has been
    streamed. `failures`: earlier attempts of the stage that failed through their seats. `backoff`:
    GRIDQ_RETRY_BACKOFF, in seconds.
    """
    if not isinstance(exc, GridError):
        exc = SeatError("The seat's runner failed", {"reason": f"{type(exc).__name__}: {_get_text(exc)}"})
    if isinstance(exc, SeatDegraded):
        known = {name: value for name, value in exc.details.items() if name not in OWNER_DETAILS}
        exc = SeatDegraded(exc.message, known)
    why = f"{exc.code}: {exc.message}" + (f": {exc.reason}" if exc.reason else "")
    if not isinstance(exc, SeatError):
        exc.details = {**exc.details, **place}
        return Failed("stage", exc)
    if emitted:  # a second attempt would repeat what has been streamed
        stated = {name: exc.details[name] for name in VENDOR_DETAILS if name in exc.details}
        return Failed("stage", StreamCut(STREAM_CUT, {**stated, **place, "reason": why}))
    details = {**exc.details, **place, "reason": why}
    if isinstance(exc, ChildDied) and exc.details.get("alone", True):
        return Failed("died", StageQuarantined("The stage killed the process that ran it, twice", details))
    final: GridError = AttemptsExhausted("Every attempt failed at its seat", details)
    if isinstance(exc, ModelFileError):  # the operator must replace the file, whatever else was tried
        final = ModelFileError(exc.message, {**exc.details, **place})
    if isinstance(exc, ChildDied):  # other stages ran in that process: any of them may be at fault
        return Failed("lost", final)
    retry_after = bounded_seconds(exc.details.get("retry_after"))
    if isinstance(exc, RequestRefused):  # the seat takes other work meanwhile: the stage must not wait long
        retry_after = None
    kind: FailureKind = "unreached" if isinstance(exc, SeatUnreachable) else "seat"
    if isinstance(exc, ModelInCooldown):  # its failure has counted before, and the seat itself is well
        kind = "back"
    return Failed(kind, final, back_off(failures + 1, backoff) if retry_after is None else retry_after)


def _get_text(exc: BaseException) -> str:
    try:
        return str(exc)
    except BaseException as fault:  # code of a stage's author may raise anything, also here
        return f"its text cannot be read ({type(fault).__name__})"
