"""Job options in a request's body and their precedence."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gridq.errors import GridError
from gridq.gateway.http.schemas import JobStatus, format_time, make_job_result, make_job_status, to_cents
from gridq.gateway.routes.job_spec import JobSpec, read_spec
from gridq.jobs.record import JobOptions
from gridq.protocol.states import JobState, StageState
from gridq.views.jobs import JobView, StageView


def spec(**body: Any) -> JobSpec:
    return read_spec(json.dumps({"graph": {}, **body}).encode(), depth=20)


def test_the_body_may_set_every_job_option() -> None:
    options: dict[str, Any] = {
        "agent": "ann", "name": "n", "priority": "batch", "deadline": 5, "queue_timeout": 2.5,
        "budget_cents": 0, "wait_for_seat": True, "session": "s", "stream": True, "idempotency_key": "k",
        "avoid": ["a"], "prefer": "b",
    }  # fmt: skip
    assert set(JobOptions.model_fields) - {"key", "pin"} == set(options)
    about = spec(**options).options(JobOptions())
    for name, value in options.items():
        assert getattr(about, name) == (tuple(value) if isinstance(value, list) else value), name


def test_options_missing_in_the_body_keep_their_value() -> None:
    base = JobOptions(agent="bob", priority="batch", deadline=9)
    about = spec(name="n", deadline_secs=3).options(base)
    assert (about.agent, about.priority, about.deadline, about.name) == ("bob", "batch", 3, "n")
    assert about.stream == "end"
    assert spec(stream="end").options(base).stream == "end"


def test_both_names_of_an_option_may_have_the_same_value() -> None:
    assert spec(queue_timeout=3, queue_timeout_secs=3).options(JobOptions()).queue_timeout == 3


@pytest.mark.parametrize(
    "body",
    [{"key": "gq_1"}, {"deadline": True}, {"avoid": "a"}, {"wait_for_seat": 1}, {"budget_cents": 1e300}],
)
def test_an_unknown_option_is_named(body: dict[str, Any]) -> None:
    with pytest.raises(GridError) as caught:
        spec(**body)
    assert caught.value.path is not None
    assert caught.value.path.partition(".")[0] in body
    assert "gq_1" not in str(caught.value)


def test_money_and_times_for_noether_clients() -> None:
    assert [to_cents(micro) for micro in (0, 1, 10_000, 10_001)] == [0, 1, 1, 2]
    assert format_time(1.5) == "1970-01-01T00:00:01.500Z"
    assert format_time(None) is None


@pytest.mark.parametrize(
    ("state", "stage", "expected"),
    [
        (JobState.QUEUED, None, "queued"),
        (JobState.RUNNING, StageView("p", "s", "q", StageState.READY), "queued"),
        (JobState.RUNNING, StageView("p", "s", "q", StageState.RUNNING, attempts=1), "running"),
        (JobState.RUNNING, None, "running"),
        (JobState.DONE, None, "ok"),
        (JobState.CANCELLED, None, "failed"),
        (JobState.EXPIRED, None, "abandoned"),
    ],
)
def test_status_for_noether_clients(state: JobState, stage: StageView | None, expected: str) -> None:
    view = JobView("j", state, stages=[stage] if stage else [])
    status = make_job_status(view, "", 7)
    assert (status["status"], status["spent_cents"]) == (expected, 1)
    if state.is_final:
        status["result"] = make_job_result(view, 7)
    JobStatus.model_validate({"result": None, **status})
