"""Errors as JSON, and what the error reference needs of each class."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gridq import errors
from gridq.errors import GridError, ModelNotFound, StageError, error_from_record
from gridq.errors.base import MAX_JSON_CHARACTERS


class OtherConstructor(StageError):
    """An error outside gridq, whose constructor takes no details."""

    def __init__(self) -> None:
        super().__init__("it failed")


CYCLE: dict[str, Any] = {}
CYCLE["self"] = CYCLE


@pytest.mark.parametrize(
    "details", [{"a": b"x"}, {"a": float("nan")}, {"a": object()}, {("a", 1): 2}, {"a": CYCLE}, {"a": {1, 2}}]
)
def test_details_that_are_not_json_become_text(details: dict[str, Any]) -> None:
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
def test_long_texts_are_truncated(message: str, more: dict[str, Any]) -> None:
    text = StageError(message, {**more, "path": "root", "retry_after": 1.5}).to_json()
    assert len(text) <= MAX_JSON_CHARACTERS
    error = error_from_record(json.loads(text))
    assert error.message[:500] == message[:500]
    assert error.path == "root"
    assert error.details["retry_after"] == 1.5


def test_json_details_are_unchanged() -> None:
    error = StageError("it failed", {"path": "root", "more": [1, {"a": None}]})
    assert error_from_record(json.loads(error.to_json())).details == error.details


def test_an_error_with_another_constructor_is_read_as_a_plain_one() -> None:
    error = error_from_record(json.loads(OtherConstructor().to_json()))
    assert type(error) is GridError
    assert error.message == "it failed"


CLASSES = [cls for cls in map(vars(errors).get, errors.__all__) if isinstance(cls, type)]


def test_every_error_has_a_code_of_its_own() -> None:
    assert len({cls.code for cls in CLASSES}) == len(CLASSES)
    assert all("code" in vars(cls) for cls in CLASSES)


@pytest.mark.parametrize("cls", CLASSES)
def test_every_error_says_when_it_is_raised_and_what_to_do(cls: type[GridError]) -> None:
    when = " ".join((cls.__doc__ or "").partition("\n\n")[0].split())
    assert when.endswith(".")
    assert cls.remedy.endswith(".")
    assert cls is GridError or cls.remedy != GridError.remedy


def test_a_place_that_the_message_quotes_is_not_repeated() -> None:
    assert str(ModelNotFound("This machine has no model 'nope'", {"path": "nope"})) == (
        "model.not_found: This machine has no model 'nope'"
    )
    other = str(ModelNotFound("org/repo has no such revision", {"path": "hf:org/repo@v1"}))
    assert other == "model.not_found: org/repo has no such revision (at hf:org/repo@v1)"
    assert str(GridError("The model is missing", {"path": "model"})).endswith("(at model)")
