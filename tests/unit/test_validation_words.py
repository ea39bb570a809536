"""What is wrong with a value is said in words of JSON, never in Python's."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from gridq.errors import first_fault
from gridq.gateway.http_workers.enrolment import WorkerAdvertisement
from gridq.gateway.routes.job_spec import JobSpec
from gridq.jobs.record import JobOptions

PYTHON = re.compile(r"\b(dict|dictionary|tuple|str|string|int|integer|bool|None|True|False|Input|pydantic)\b")


def describe(model: type[BaseModel], **given: Any) -> tuple[str, str]:
    with pytest.raises(ValidationError) as caught:
        model(**given)
    return first_fault(caught.value)


@pytest.mark.parametrize(
    ("model", "given", "path", "reason"),
    [
        (JobSpec, {"graph": 5}, "graph", "it must be an object or text"),
        (JobSpec, {}, "graph", "it is missing"),
        (JobOptions, {"stream": "x"}, "stream", "it must be false, true or 'end'"),
        (JobOptions, {"deadline": "x"}, "deadline", "it must be a number"),
        (JobOptions, {"deadline": float("nan")}, "deadline", "it must be a finite number"),
        (JobOptions, {"deadline": -1}, "deadline", "it must be more than 0"),
        (JobOptions, {"avoid": "a"}, "avoid", "it must be a list"),
        (JobOptions, {"avoid": ["a"] * 17}, "avoid", "it must have at most 16 elements"),
        (JobOptions, {"wait_for_seat": "x"}, "wait_for_seat", "it must be true or false"),
        (JobOptions, {"agent": 3}, "agent", "it must be text"),
        (JobSpec, {"graph": {}, "nope": 3}, "nope", "there is no such field"),
        (WorkerAdvertisement, {"worker_id": "a", "url": "http://x", "capabilities": 1}, "capabilities",
         "it must be a list"),
    ],
)  # fmt: skip
def test_a_fault_is_described(model: type[BaseModel], given: dict[str, Any], path: str, reason: str) -> None:
    assert describe(model, **given) == (path, reason)


@pytest.mark.parametrize("model", [JobSpec, JobOptions, WorkerAdvertisement])
@pytest.mark.parametrize("value", [None, 5, -1.5, "x", "", True, [], [None], {}, {"a": 1}, b"x", 1e400])
def test_no_field_of_what_clients_send_is_described_in_python(model: type[BaseModel], value: Any) -> None:
    for name in model.model_fields:
        path, reason = _find_fault(model, {name: value})
        assert not PYTHON.search(f"{path} {reason}"), (name, path, reason)
        assert reason != "it is not valid", name


def _find_fault(model: type[BaseModel], given: dict[str, Any]) -> tuple[str, str]:
    """Return what `first_fault` says of a table; empty texts if it is valid."""
    try:
        model.model_validate(given)
    except ValidationError as exc:
        return first_fault(exc)
    return "", ""
