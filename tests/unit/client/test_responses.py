"""Answers of a gateway are parsed to the grid's types and errors."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import httpx
import pytest

from gridq import errors
from gridq.client import responses
from gridq.client.gateway_calls import parse_reply
from gridq.errors import GatewayUnreachable, GridError, StageError
from gridq.gateway.http.errors import RETRYABLE_STATUSES, find_status, format_grid_error
from gridq.protocol.models import HistoryRow
from gridq.protocol.states import JobState, StageState
from gridq.submission.refusal_details import explain_refusal
from gridq.views.jobs import JobSummary, JobView, StageView

ERRORS = [
    cls
    for name in errors.__all__
    if isinstance(cls := getattr(errors, name), type) and issubclass(cls, GridError)
]
SECRETIVE = (errors.BrokerError,)
"""Of which a gateway tells no details: where its server is is nobody's business."""


@pytest.mark.parametrize("cls", ERRORS)
def test_every_error_survives_the_round_trip(cls: type[GridError]) -> None:
    details = {"path": "root.stages[2]", "stage": "s", "fix": "do this", "worker": "w", "n": [1, {"a": None}]}
    sent = cls("what is wrong", details)
    reply = httpx.Response(400, json=format_grid_error(sent, "req_1"))
    with pytest.raises(GridError) as caught:
        parse_reply(reply)
    received = caught.value
    assert type(received) is cls
    if issubclass(cls, SECRETIVE):
        return
    added: dict[str, Any] = {"request_id": "req_1"} if cls.code.startswith("gateway.") else {}
    if find_status(sent) in RETRYABLE_STATUSES:  # the gateway says more of these than they do themselves
        added |= explain_refusal(sent)
    assert (received.message, received.details) == (sent.message, {**details, **added})
    assert (received.path, received.stage, received.worker) == (sent.path, sent.stage, sent.worker)
    assert received.fix == added.get("fix", sent.fix)


def test_an_unknown_error_code_is_a_grid_error() -> None:
    reply = httpx.Response(418, json={"error": {"code": "tea.pot", "message": "short", "path": "spout"}})
    with pytest.raises(GridError) as caught:
        parse_reply(reply)
    assert type(caught.value) is GridError
    assert (caught.value.message, caught.value.path) == ("short", "spout")


def _status(**more: Any) -> dict[str, Any]:
    row = HistoryRow(path="root", stage="s", queue="q", worker="m.a")
    stage = StageView("root", "s", "q", StageState.DONE, "a@m", excluded=("m.b",), wait_ms=1.5)
    view = JobView("j", JobState.DONE, "n", "ann", submitted=1.0, ended=2.0, now=3.0, done=1, of=1)
    view.stages, view.rows = [stage], [row]
    return {**json.loads(json.dumps(view.to_json())), "waits_for": "", "result": {"output": [1]}, **more}


def test_a_jobs_view_ignores_unknown_fields() -> None:
    answer = _status(job_id="j", status="ok", novelty={"a": 1})
    answer["stages"][0]["novelty"] = 1
    view = responses.read_view(answer)
    assert view.state is JobState.DONE
    assert view.stages == [
        StageView("root", "s", "q", StageState.DONE, "a@m", excluded=("m.b",), wait_ms=1.5)
    ]
    assert view.rows == [HistoryRow(path="root", stage="s", queue="q", worker="m.a")]
    assert {each.name: getattr(view, each.name) for each in fields(JobView)}.keys() <= answer.keys()
    assert responses.read_result(answer) == [1]


def test_a_job_that_failed_raises_its_error() -> None:
    sent = StageError("it broke", {"path": "root", "attempt": 2})
    with pytest.raises(StageError) as caught:
        responses.read_result(_status(state="failed", error=sent.to_record(), result={"output": None}))
    assert (caught.value.message, caught.value.details) == (sent.message, sent.details)


def test_a_page_of_jobs_is_parsed() -> None:
    line = {"job_id": "j", "status": "ok", **json.loads(json.dumps(JobSummary("j", JobState.DONE).to_json()))}
    assert responses.read_job_page({"jobs": [line], "next": "5:j"}) == (
        [JobSummary("j", JobState.DONE)],
        "5:j",
    )


@pytest.mark.parametrize(
    ("read", "answer"),
    [
        (responses.read_job_id, {"id": "j"}),
        (responses.read_state, {"state": "perplexed"}),
        (responses.read_state, []),
        (responses.read_view, {"state": "done"}),
        (responses.read_view, {**_status(), "stages": 5}),
        (responses.parse_rows, {"rows": [{"path": 1}]}),
        (responses.read_job_page, {"jobs": [{}]}),
        (responses.read_seats, [{"seat": "a"}]),
        (responses.read_queues, [1]),
        (responses.read_result, {"state": "failed", "error": None}),
        (responses.read_result, {"state": "done"}),
        (responses.read_piece, b'{"path": "root"}'),
        (responses.read_piece, b"no json"),
        (responses.read_stream_error, b'{"error": "e"}'),
    ],
)
def test_a_malformed_answer_raises_gateway_unreachable(read: Any, answer: Any) -> None:
    with pytest.raises(GatewayUnreachable, match="The answer is not one"):
        read(answer)
