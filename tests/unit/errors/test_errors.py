"""Errors as JSON: whatever one says, it is told, and read again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gridq.errors import GridError, StageError, error_from_record
from gridq.errors.base import LONGEST


class Particular(StageError):
    """An error that is made in another way than gridq's."""

    def __init__(self) -> None:
        super().__init__("so it was")


CYCLE: dict[str, Any] = {}
CYCLE["self"] = CYCLE


@pytest.mark.parametrize(
    "details", [{"a": b"x"}, {"a": float("nan")}, {"a": object()}, {("a", 1): 2}, {"a": CYCLE}, {"a": {1, 2}}]
)
def test_what_is_no_json_is_told_in_words(details: dict[str, Any]) -> None:
    text = StageError("it failed", {**details, "path": "root"}).to_json()
    record = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    error = error_from_record(record)
    assert type(error) is StageError
    assert error.path == "root"
    assert set(error.details) == {str(key) for key in details} | {"path"}


@pytest.mark.parametrize(
    ("message", "more"),
    [
        ("x" * 10_000_000, {}),
        ("\x00" * 60_000, {}),
        ("it failed", {"n": 10**10_000}),
        ("\x00" * 60_000, dict.fromkeys(("reason", "fix", "worker", "stage", "expected"), "\x00" * 60000)),
        ("it failed", {"reason": "é" * 1_000_000}),
        ("it failed", {"rows": [["x"] * 1000] * 100}),
        ("it failed", {"x" * 100_000: 1, "odd": float("nan")}),
        ("it failed", {str(number): "x" * 100 for number in range(10_000)}),
    ],
)
def test_what_is_too_long_is_cut(message: str, more: dict[str, Any]) -> None:
    text = StageError(message, {**more, "path": "root", "retry_after": 1.5}).to_json()
    assert len(text) <= LONGEST
    error = error_from_record(json.loads(text))
    assert error.message[:500] == message[:500]
    assert error.path == "root"
    assert error.details["retry_after"] == 1.5


def test_json_stays_as_it_is() -> None:
    error = StageError("it failed", {"path": "root", "more": [1, {"a": None}]})
    assert error_from_record(json.loads(error.to_json())).details == error.details


def test_an_error_that_cannot_be_made_again_is_a_plain_one() -> None:
    error = error_from_record(json.loads(Particular().to_json()))
    assert type(error) is GridError
    assert error.message == "so it was"
