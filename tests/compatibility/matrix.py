"""The fixture by which a test states the outcomes of cells."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import anthropic
import openai
import pytest

from tests.compatibility import results
from tests.compatibility.results import FEATURES, SEATS, WORKED, Refused

WRITES = bool(os.environ.get("WRITE_COMPATIBILITY"))
"""True if outcomes are written instead of compared."""

HINTS_HEADER = "x-gridq-dropped-fields"

VAGUE = ("", "stage.failed", "invalid_request_error", "request.invalid", "seat.unavailable")
"""Codes that say nothing of what is refused."""


class Matrix:
    """States the outcomes of one test."""

    def __init__(self, test: str) -> None:
        self._test = test

    def state(self, client: str, feature: str, seat: str, outcome: str | Refused) -> None:
        """Compare an outcome with the one in the results; with WRITE_COMPATIBILITY=1, write it there.

        `client` is the client's name on the page, `feature` one of FEATURES, `seat` a key of SEATS. `outcome`
        is WORKED, or Refused with the field that the client's error names.
        """
        assert feature in FEATURES, f"add {feature!r} to FEATURES in {results.__file__}"
        assert seat in SEATS, seat
        if isinstance(outcome, Refused):
            assert outcome.name not in VAGUE, f"the refusal names nothing: {outcome.name!r}"
            stated: str | dict[str, str] = outcome.to_json()
        else:
            assert outcome == WORKED
            stated = outcome
        if WRITES:
            results.write_cell(client, feature, seat, stated, self._test)
            return
        row = results.load().get(client, {}).get(feature, {"test": None, "cells": {}})
        assert row["cells"].get(seat) == stated, "run `make compatibility` if this outcome is right"
        assert row["test"] == self._test, "run `make compatibility`: another test has stated this row"

    @contextmanager
    def cell(self, client: str, feature: str, seat: str) -> Iterator[None]:
        """State the outcome of a block that uses the `openai` or `anthropic` package.

        If it ends, the feature worked: the block must assert what the endpoint got and what came back. An
        error of the package with status 4xx or 501 that names a field is a refusal. Any other exception is
        raised.
        """
        outcome: str | Refused = WORKED
        try:
            yield
        except (openai.APIStatusError, anthropic.APIStatusError) as error:
            name = find_refused_name(error)
            if name in VAGUE:
                raise
            outcome = Refused(name)
        self.state(client, feature, seat, outcome)


def find_refused_name(error: openai.APIStatusError | anthropic.APIStatusError) -> str:
    """Return the field that a refusal names, else its code, else "". Other errors than refusals have none."""
    return read_refused_name(error.status_code, error.body)


def read_refused_name(status: int, body: object) -> str:
    """Return the same for the status and the JSON of an error, as a program shows them."""
    if status not in (400, 413, 422, 501):
        return ""
    whole = body if isinstance(body, dict) else {}
    details = whole.get("error", whole)  # the openai package unwraps it
    return str(details.get("param") or details.get("code") or "")


def find_hints(headers: Mapping[str, str]) -> list[str]:
    """Return the fields that the seat could not use, as the answer's header names them.

    A field that only advises the model may be left out if the answer says so.
    """
    return headers.get(HINTS_HEADER, "").replace(" ", "").split(",")


@pytest.fixture
def matrix(request: pytest.FixtureRequest) -> Matrix:
    """The matrix, for one test."""
    path = request.node.path.relative_to(results.ROOT)
    return Matrix(f"{path.as_posix()}::{request.node.originalname}")
