"""Errors as JSON: whatever one says, it is told, and read again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gridq.errors import GridError, StageError, error_from_record


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


def test_json_stays_as_it_is() -> None:
    error = StageError("it failed", {"path": "root", "more": [1, {"a": None}]})
    assert error_from_record(json.loads(error.to_json())).details == error.details


def test_an_error_that_cannot_be_made_again_is_a_plain_one() -> None:
    error = error_from_record(json.loads(Particular().to_json()))
    assert type(error) is GridError
    assert error.message == "so it was"
