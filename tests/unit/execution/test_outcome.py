"""The party at fault for a failure, and the back-off of its seat."""

from __future__ import annotations

from typing import Any

import pytest

from gridq.errors import (
    AttemptsExhausted,
    ChildDied,
    GridError,
    ModelFileError,
    ModelInCooldown,
    RequestRefused,
    SeatDegraded,
    SeatError,
    SeatMemoryShort,
    SeatRateLimited,
    SeatUnavailable,
    SeatUnreachable,
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
        (SeatUnreachable("refused"), "unreached", AttemptsExhausted),
        (ModelInCooldown("it is in cooldown"), "back", AttemptsExhausted),
        (SeatMemoryShort("too little"), "back", AttemptsExhausted),
        (ModelFileError("torn"), "seat", ModelFileError),
        (ValueError("odd"), "seat", AttemptsExhausted),
        (SystemExit(3), "seat", AttemptsExhausted),
        (ChildDied("dead"), "died", StageQuarantined),
        (ChildDied("dead", {"alone": False}), "lost", AttemptsExhausted),
    ],
)
def test_a_failure_is_attributed_to_seat_stage_or_child(
    exc: BaseException, kind: str, final: type[GridError]
) -> None:
    found = classify(exc)
    assert (found.kind, type(found.error)) == (kind, final)
    assert found.error.details.items() >= PLACE.items()


@pytest.mark.parametrize("emitted", [False, True])
def test_what_a_vendor_says_of_its_owners_account_is_not_in_the_error(emitted: bool) -> None:
    details = {
        "reason": "key of ada",
        "endpoint_code": "of-ada",
        "param": "of-ada",
        "status": 401,
        "fix": "renew",
    }
    error = classify(SeatDegraded("The endpoint rejected the key", details), emitted=emitted).error
    assert error.reason == "seat.degraded: The endpoint rejected the key"
    assert "ada" not in error.to_json()
    assert error.code == ("stage.stream_cut" if emitted else "stage.attempts_exhausted")


@pytest.mark.parametrize("exc", [SeatUnavailable("away"), ChildDied("dead"), ValueError("odd")])
def test_a_stage_is_not_retried_after_its_first_piece(exc: BaseException) -> None:
    found = classify(exc, emitted=True)
    assert (found.kind, type(found.error), found.pause_seconds) == ("stage", StreamCut, 0.0)


@pytest.mark.parametrize(
    ("retry_after", "pause"),
    [
        (0, 0.0),
        (7.25, 7.25),
        ("90", 90.0),
        (-3, 0.0),
        (1e9, RETRY_AFTER_MAX_SECONDS),
        (float("inf"), RETRY_AFTER_MAX_SECONDS),
    ],
)
def test_a_providers_retry_after_is_obeyed_exactly(retry_after: Any, pause: float) -> None:
    for failures in (0, 5):
        found = classify(SeatRateLimited("slow down", {"retry_after": retry_after}), failures=failures)
        assert (found.kind, found.pause_seconds) == ("seat", pause)


def test_a_refusal_that_blames_nobody_is_repeated_soon() -> None:
    """The seat goes on meanwhile, so nothing would tell the client that its stage waits for an hour."""
    found = classify(RequestRefused("no", {"retry_after": 3600}))
    assert 1.0 <= found.pause_seconds <= 2.0


@pytest.mark.parametrize("retry_after", [None, "soon", float("nan"), [1], {}])
def test_an_invalid_retry_after_is_ignored(retry_after: Any) -> None:
    assert 1.0 <= classify(SeatError("no", {"retry_after": retry_after})).pause_seconds <= 2.0


@pytest.mark.parametrize(
    ("failures", "longest"), [(0, 2.0), (1, 4.0), (2, 8.0), (4, 32.0), (5, 60.0), (5000, 60.0)]
)
def test_the_default_back_off_grows_with_the_failures(failures: int, longest: float) -> None:
    pauses = [classify(SeatUnavailable("away"), failures=failures).pause_seconds for _ in range(100)]
    assert longest / 2 <= min(pauses) < longest * 0.7
    assert longest * 0.8 < max(pauses) <= longest


def test_a_long_back_off_does_not_grow_and_zero_stays_zero() -> None:
    assert BACK_OFF_MAX_SECONDS < 50 * 2
    assert 100 <= back_off(5, 200.0) <= 200
    assert back_off(3, 0.0) == 0.0
