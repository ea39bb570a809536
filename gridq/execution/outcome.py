"""Whose fault it was that an attempt ended without an output, and when its seat is asked again."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from gridq.errors import (
    AttemptsExhausted,
    ChildDied,
    GridError,
    ModelFileError,
    SeatError,
    StageQuarantined,
    StreamCut,
)
from gridq.protocol.models import Json

LONGEST = 24 * 3600.0
"""Seconds that a seat may be left alone at most, whatever its provider says."""

LONGEST_BACKOFF = 60.0
"""Seconds that a back-off grows to at most, where the seat does not say when it may be asked again; a first
one that is set longer stays as long.
"""

CUT = "The answer broke off after it had begun"

_random = secrets.SystemRandom()


@dataclass(frozen=True, slots=True)
class Verdict:
    """`kind` as fail.lua knows it: `stage`, `seat`, `died`, `lost` or `back`. `error` ends the job if this
    was the last try; `pause`: for so many seconds the stage is not given to this seat again.
    """

    kind: str
    error: GridError
    pause: float = 0.0


def judge(
    exc: BaseException, place: Mapping[str, Json], *, emitted: bool, failures: int, backoff: float
) -> Verdict:
    """What `exc`, raised by the runner, means for the stage.

    `place` says in the error's details where it happened. `emitted`: part of the answer is out. `failures`:
    attempts of the stage that failed before by their seats' fault. `backoff`: GRIDQ_RETRY_BACKOFF.
    """
    if not isinstance(exc, GridError):
        exc = SeatError("The seat's runner failed", {"reason": f"{type(exc).__name__}: {exc}"})
    why = f"{exc.code}: {exc.message}" + (f": {exc.reason}" if exc.reason else "")
    if not isinstance(exc, SeatError):
        exc.details = {**exc.details, **place}
        return Verdict("stage", exc)
    if emitted:  # a second try would repeat what is out
        return Verdict("stage", StreamCut(CUT, {**place, "reason": why}))
    details = {**exc.details, **place, "reason": why}
    if isinstance(exc, ChildDied) and exc.details.get("alone", True):
        return Verdict("died", StageQuarantined("The stage killed the process that ran it, twice", details))
    final: GridError = AttemptsExhausted("Every attempt failed for reasons of its seats", details)
    if isinstance(exc, ModelFileError):  # the operator mends the file, whatever else was tried
        final = ModelFileError(exc.message, {**exc.details, **place})
    if isinstance(exc, ChildDied):  # others ran in it too: whose fault it was cannot be told
        return Verdict("lost", final)
    told = seconds_of(exc.details.get("retry_after"))
    return Verdict("seat", final, back_off(failures + 1, backoff) if told is None else told)


def back_off(failure: int, base: float) -> float:
    """Seconds to leave a seat alone after a stage's failure number `failure` (1 the first): `base`, twice as
    long after each further one up to LONGEST_BACKOFF, and of that somewhere in the upper half, so that what
    failed together is not tried again together.
    """
    longest = min(base * 2 ** min(failure - 1, 30), max(base, LONGEST_BACKOFF))
    return _random.uniform(longest / 2, longest)


def seconds_of(told: object) -> float | None:
    """A time that a profile told, within bounds; None where it is none."""
    try:
        seconds = float(told)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return None if math.isnan(seconds) else min(max(seconds, 0.0), LONGEST)
