"""The party at fault for a failure, and the back-off of its seat."""

from __future__ import annotations

from typing import Any

import pytest

from gridq.errors import (
    AttemptsExhausted,
    ChildDied,
    GridError,
    ModelFileError,
    SeatError,
    SeatRateLimited,
    SeatUnavailable,
    StageError,
    StageQuarantined,
    StreamCut,
)
from gridq.execution.back_off import BACK_OFF_MAX_SECONDS, RETRY_AFTER_MAX_SECONDS, back_off
from gridq.execution.outcome import Failed, classify_failure

PLACE: dict[str, Any] = {"path": "root", "worker": "cpu@m", "attempt": 2}


def classify(exc: BaseException, *, emitted: bool = False, failures: int = 0, backoff: float = 2.0) -> Failed:
    return classify_failure(exc, PLACE, emitted=emitted, failures=failures, backoff=backoff)


@pytest.mark.parametrize(
    ("exc", "kind", "final"),
    [
        (StageError("no"), "stage", StageError),
        (SeatUnavailable("away"), "seat", AttemptsExhausted),
        (ModelFileError("torn"), "seat", ModelFileError),
        (ValueError("odd"), "seat", AttemptsExhausted),
        (SystemExit(3), "seat", AttemptsExhausted),
        (ChildDied("dead"), "died", StageQuarantined),
        (ChildDied("dead", {"alone": False}), "lost", AttemptsExhausted),
    ],
)
def test_whose_fault_it_was(exc: BaseException, kind: str, final: type[GridError]) -> None:
    found = classify(exc)
    assert (found.kind, type(found.error)) == (kind, final)
    assert found.error.details.items() >= PLACE.items()


@pytest.mark.parametrize("exc", [SeatUnavailable("away"), ChildDied("dead"), ValueError("odd")])
def test_after_the_first_piece_there_is_no_second_try(exc: BaseException) -> None:
    found = classify(exc, emitted=True)
    assert (found.kind, type(found.error), found.pause_seconds) == ("stage", StreamCut, 0.0)


@pytest.mark.parametrize(
    ("told", "pause"),
    [
        (0, 0.0),
        (7.25, 7.25),
        ("90", 90.0),
        (-3, 0.0),
        (1e9, RETRY_AFTER_MAX_SECONDS),
        (float("inf"), RETRY_AFTER_MAX_SECONDS),
    ],
)
def test_what_a_provider_says_is_obeyed_exactly(told: Any, pause: float) -> None:
    for failures in (0, 5):
        found = classify(SeatRateLimited("slow down", {"retry_after": told}), failures=failures)
        assert (found.kind, found.pause_seconds) == ("seat", pause)


@pytest.mark.parametrize("told", [None, "soon", float("nan"), [1], {}])
def test_what_is_no_time_is_none_told(told: Any) -> None:
    assert 1.0 <= classify(SeatError("no", {"retry_after": told})).pause_seconds <= 2.0


@pytest.mark.parametrize(
    ("failures", "longest"), [(0, 2.0), (1, 4.0), (2, 8.0), (4, 32.0), (5, 60.0), (5000, 60.0)]
)
def test_without_it_the_back_off_grows_with_the_failures(failures: int, longest: float) -> None:
    pauses = [classify(SeatUnavailable("away"), failures=failures).pause_seconds for _ in range(100)]
    assert longest / 2 <= min(pauses) < longest * 0.7
    assert longest * 0.8 < max(pauses) <= longest


def test_one_that_is_set_long_does_not_grow_and_none_is_none() -> None:
    assert BACK_OFF_MAX_SECONDS < 50 * 2
    assert 100 <= back_off(5, 200.0) <= 200
    assert back_off(3, 0.0) == 0.0
