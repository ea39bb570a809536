"""Each error's HTTP status, and each API format's words for it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import pytest
from fastapi import FastAPI, Query, Request
from fastapi.testclient import TestClient

from gridq import errors
from gridq.errors import (
    AgentMoneyExceeded,
    AttemptsExhausted,
    BrokerError,
    BrokerUnreachable,
    GridError,
    GridFull,
    IdempotencyConflict,
    JobBudgetExceeded,
    KeyRateExceeded,
    NoLiveSeat,
    QueueFull,
    StageError,
    StreamCut,
)
from gridq.gateway.http import errors as faults
from gridq.submission.refusal_details import DEFAULT_RETRY_SECONDS, explain_refusal

ERRORS: list[type[GridError]] = [
    cls
    for name in errors.__all__
    if isinstance(cls := getattr(errors, name), type) and issubclass(cls, GridError)
]


@pytest.mark.parametrize("cls", ERRORS)
def test_every_error_has_a_status(cls: type[GridError]) -> None:
    own = [base.code for base in cls.__mro__ if issubclass(base, GridError) and base is not GridError]
    assert cls is GridError or any(code in faults.STATUSES for code in own), f"no status for {cls.code}"
    assert 400 <= faults.find_status(cls("so")) < 600


def test_every_status_belongs_to_an_error() -> None:
    assert faults.STATUSES.keys() <= {cls.code for cls in ERRORS}


@pytest.mark.parametrize(
    ("code", "status"),
    [
        *(("graph.missing_field", 400), ("config.invalid", 400), ("graph.not_json", 400)),
        *(("auth.key_missing", 401), ("auth.key_invalid", 401), ("auth.key_revoked", 401)),
        *(("auth.scope", 403), ("job.not_found", 404), ("job.idempotency_conflict", 409)),
        *(("input.too_large", 413), ("quota.agent_jobs", 429), ("key.parallel", 429)),
        *(("seat.unavailable", 502), ("stage.attempts_exhausted", 502), ("grid.full", 503)),
        *(("broker.unreachable", 503), ("seat.none_live", 503), ("job.deadline", 504)),
        *(("job.queue_timeout", 504), ("stage.timeout", 504)),
    ],
)
def test_each_error_code_has_its_http_status(code: str, status: int) -> None:
    cls = next(cls for cls in ERRORS if cls.code == code)
    assert faults.find_status(cls("so")) == status


def test_a_model_that_no_seat_ever_served_is_not_found() -> None:
    assert faults.find_status(NoLiveSeat("so", {"served": False})) == 404
    assert faults.find_status(NoLiveSeat("so", {"served": True})) == 503


@pytest.mark.parametrize(
    ("endpoint_status", "status"), [(400, 400), (404, 404), (422, 422), (302, 502), ("400", 502)]
)
def test_an_endpoints_own_refusal_keeps_its_status(endpoint_status: Any, status: int) -> None:
    assert faults.find_status(StageError("refused", {"status": endpoint_status})) == status


def test_rate_limits_of_all_seats_are_a_429() -> None:
    error = AttemptsExhausted("so", {"status": 429, "retry_after": 7.2})
    assert faults.find_status(error) == 429
    assert faults.compute_retry_after(error) == 8
    assert faults.find_status(AttemptsExhausted("so", {"status": 500})) == 502


@pytest.mark.parametrize("cls", ERRORS)
@pytest.mark.parametrize("after", [None, 0, 2.1, 1e12, float("nan"), True, "3"])
def test_every_429_and_503_says_when_to_retry(cls: type[GridError], after: Any) -> None:
    error = cls("so", {} if after is None else {"retry_after": after})
    header = faults.make_headers(error, "r").get("retry-after")
    if faults.find_status(error) in (429, 503):
        assert header is not None
        assert 1 <= int(header) <= faults.MAX_RETRY_AFTER_SECONDS
        if after == 2.1:
            assert header == "3"
    else:
        assert header is None


def test_a_quota_says_when_its_window_resets() -> None:
    at = (datetime.now(UTC) + timedelta(seconds=100)).isoformat()
    assert faults.compute_retry_after(AgentMoneyExceeded("so", {"retry_at": at})) in (100, 101)
    assert faults.compute_retry_after(AgentMoneyExceeded("so", {"retry_at": "soon"})) == DEFAULT_RETRY_SECONDS


SAYS = {"code", "bottleneck", "capability", "position", "starts_in", "retry_after", "fix"}


@pytest.mark.parametrize("cls", ERRORS)
def test_every_429_and_503_has_the_same_fields_in_every_format(cls: type[GridError]) -> None:
    error = cls("So it was", {"fix": "wait"})
    if faults.find_status(error) not in (429, 503):
        return
    fix = explain_refusal(error)["fix"]
    for path in ("/v1/messages", "/v1/models", "/jobs"):
        body: Any = faults.format_error(path, error, "r1")
        assert body["error"].keys() >= SAYS
        assert body["error"]["bottleneck"]
        # What may be said of the server's faults is the same of all.
        assert body["error"]["fix"] == ("try again in 5 s" if issubclass(cls, BrokerError) else fix)
        assert (body["error"]["position"], body["error"]["starts_in"]) == (None, None)


def test_wait_details_of_an_admission_are_kept() -> None:
    details = {
        "position": 7,
        "starts_in": {"low": 1.0, "p50": 2.0, "high": 3.0},
        "retry_after": 6.5,
        "fix": "x",
    }
    body: Any = faults.format_grid_error(
        QueueFull("so", {**details, "pending": 3, "limit": 3, "needed": 1}), "r"
    )
    assert {name: body["error"][name] for name in details} == details


def test_rate_limits_of_all_seats_are_the_bottleneck() -> None:
    error = AttemptsExhausted("so", {"status": 429, "retry_after": 7.2, "worker": "m.api"})
    body: Any = faults.format_openai_error(error, "r")
    assert body["error"]["bottleneck"] == "the rate limit of m.api"
    assert body["error"]["fix"] == "try again in 8 s"


def test_options_are_named_as_the_door_takes_them() -> None:
    fix = "start a worker that serves it, or submit with wait_for_seat"
    error = NoLiveSeat("none", {"path": "pin", "queue": "llm:a", "fix": fix})
    for path in ("/v1/chat/completions", "/v1/messages"):
        body = faults.format_error(path, error, "r")["error"]
        assert body["fix"].endswith("submit with the header x-gridq-wait-for-seat: 1")  # type: ignore[index,call-overload]
        assert body["path"] == "x-gridq-pin"  # type: ignore[index,call-overload]
        assert "wait_for_seat" not in json.dumps(body)
    own = faults.format_error("/jobs", error, "r")["error"]
    assert (own["fix"], own["path"]) == (fix, "pin")  # type: ignore[index,call-overload]


def test_final_errors_tell_clients_not_to_retry() -> None:
    assert faults.make_headers(IdempotencyConflict("so"), "r")["x-should-retry"] == "false"
    assert faults.make_headers(AgentMoneyExceeded("so"), "r")["x-should-retry"] == "false"
    assert "x-should-retry" not in faults.make_headers(KeyRateExceeded("so"), "r")


FULL = GridFull(
    "The server is full", {"retry_after": 3, "path": "server", "fix": "wait", "used": 9, "type": "x"}
)


def test_openai_errors_have_type_param_and_code() -> None:
    body: Any = faults.format_openai_error(FULL, "r1")
    assert body == {
        "error": {
            "message": "The server is full. Fix: wait",
            "type": "server_error",
            "param": "server",
            "code": "grid.full",
            "gridq_code": "grid.full",
            "request_id": "r1",
            **{"retry_after": 3, "path": "server", "fix": "wait", "used": 9},
            **{"bottleneck": "the server's memory", "capability": None, "position": None, "starts_in": None},
        }
    }
    assert faults.format_openai_error(AgentMoneyExceeded("so"), "r")["error"]["type"] == "insufficient_quota"
    assert faults.format_openai_error(KeyRateExceeded("so"), "r")["error"]["type"] == "rate_limit_error"


def test_a_vendors_code_type_and_param_are_kept() -> None:
    stated = {"endpoint_code": "context_length_exceeded", "endpoint_type": "some_error", "param": "messages"}
    error = StageError("refused", {"status": 400, "path": "root", **stated})
    body: Any = faults.format_openai_error(error, "r")["error"]
    assert (body["code"], body["type"], body["param"]) == (
        "context_length_exceeded",
        "some_error",
        "messages",
    )
    assert body["gridq_code"] == "stage.failed"
    assert not body.keys() & {"endpoint_code", "endpoint_type"}
    body = faults.format_anthropic_error(error, "r")["error"]
    assert (body["code"], body["type"]) == ("context_length_exceeded", "invalid_request_error")
    assert faults.format_grid_error(error, "r")["error"]["code"] == "stage.failed"


@pytest.mark.parametrize("cls", [AttemptsExhausted, StreamCut])
def test_an_overloaded_model_is_overloaded_to_the_client(cls: type[GridError]) -> None:
    error = cls("so", {"status": 529})
    assert faults.find_status(error) == 503
    body: Any = faults.format_anthropic_error(error, "r")["error"]
    assert body["type"] == "overloaded_error"


def test_anthropic_errors_have_their_types() -> None:
    body: Any = faults.format_anthropic_error(FULL, "r1")
    assert (body["type"], body["request_id"]) == ("error", "r1")
    assert body["error"]["type"] == "overloaded_error"
    assert body["error"]["message"] == "The server is full. Fix: wait"
    assert body["error"]["code"] == "grid.full"
    assert body["error"]["used"] == 9
    types = {cls.code: faults.format_anthropic_error(cls("so"), "r")["error"]["type"] for cls in ERRORS}
    assert types["auth.key_invalid"] == "authentication_error"
    assert types["auth.scope"] == "permission_error"
    assert types["job.not_found"] == "not_found_error"
    assert types["input.too_large"] == "request_too_large"
    assert types["key.rate"] == "rate_limit_error"
    assert types["graph.invalid"] == "invalid_request_error"
    assert types["gateway.internal"] == "api_error"


def test_grid_error_and_noethers_money_fields() -> None:
    body: Any = faults.format_grid_error(FULL, "r1")
    assert body["error"]["code"] == "grid.full"
    assert body["error"]["message"] == "The server is full"
    assert body["error"]["fix"] == "wait"
    details = {"limit": 1_000_000, "used": 700_000, "reserved": 50_000, "needed": 255_000}
    body = faults.format_grid_error(AgentMoneyExceeded("so", details), "r1")
    assert (body["remaining_cents"], body["requested_cents"]) == (25, 26)


def test_an_endpoints_address_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    error = AttemptsExhausted("so", {"endpoint": "http://10.0.0.7:8000/v1", "reason": "why"})
    request = Request({"type": "http", "path": "/jobs", "headers": [], "query_string": b"", "state": {}})
    with caplog.at_level(logging.INFO):
        body = bytes(faults.make_error_response(request, error).body)
    for shown in (body, faults.format_openai_error(error, "r"), faults.format_anthropic_error(error, "r")):
        assert "why" in str(shown)
        assert "10.0.0.7" not in str(shown)
    assert [record.gridq["endpoint"] for record in caplog.records] == ["http://10.0.0.7:8000/v1"]


def test_no_retry_after_if_waiting_does_not_help() -> None:
    for error, status in (
        (JobBudgetExceeded("so", {"limit": 1, "needed": 2}), 402),
        (QueueFull("so", {"pending": 0, "limit": 2, "needed": 3}), 400),
        (AgentMoneyExceeded("so", {"limit": 1, "needed": 2, "retry_at": None}), 429),
        (NoLiveSeat("so", {"served": False, "retry_after": 5.0}), 404),
    ):
        assert faults.find_status(error) == status
        assert "retry-after" not in faults.make_headers(error, "r")
        body: Any = faults.format_grid_error(error, "r")
        assert body["error"].get("retry_after") is None
    assert faults.find_status(QueueFull("so", {"pending": 3, "limit": 3, "needed": 3})) == 429


def test_the_servers_address_is_not_disclosed() -> None:
    error = BrokerUnreachable(
        "Nothing answers at redis://10.1.2.3:6379", {"reason": "10.1.2.3", "fix": "start it"}
    )
    for path in ("/v1/messages", "/v1/models", "/jobs"):
        text = json.dumps(faults.format_error(path, error, "r1"))
        assert "10.1.2.3" not in text
        assert "broker.unreachable" in text


@pytest.mark.parametrize(
    "details", [{"a": float("nan")}, {"a": {1, 2}}, {"reason": "x" * 10_000_000}, {1: 2}]
)
def test_error_bodies_are_json_of_bounded_length(details: Any) -> None:
    for path in ("/v1/messages", "/v1/models", "/jobs"):
        text = json.dumps(faults.format_error(path, StageError("so", details), "r1"), allow_nan=False)
        assert len(text) < 200_000


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "é", "a\n", "-a", "<script>"])
def test_an_invalid_request_id_is_replaced(given: str) -> None:
    made = faults.make_request_id(given)
    assert made != given
    assert faults.make_request_id(made) == made


SECRET = "a prompt that nobody may log"


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    app = FastAPI()
    faults.install(app)

    async def failing(error: str) -> None:
        raise next(cls for cls in ERRORS if cls.code == error)("so it was", {"path": "here"})

    async def broken() -> None:
        raise KeyError(SECRET)

    async def typed(limit: Annotated[int, Query(ge=1)]) -> int:
        return limit

    for prefix in ("/v1/messages", "/v1", ""):
        app.get(prefix + "/failing/{error}")(failing)
        app.get(prefix + "/broken")(broken)
        app.get(prefix + "/typed")(typed)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def code_of(path: str, body: Any) -> Any:
    """The stable code in an error's body, whose shape must be that of the path's API format."""
    if path.startswith("/v1/messages"):
        assert set(body) == {"type", "error", "request_id"}
        assert body["type"] == "error"
        assert {"type", "message"} <= set(body["error"])
    elif path.startswith("/v1"):
        assert set(body) == {"error"}
        assert {"message", "type", "param"} <= set(body["error"])
    else:
        assert {"message", "request_id"} <= set(body["error"])
    return body["error"]["code"]


@pytest.mark.parametrize("prefix", ["/v1/messages", "/v1", ""])
@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/failing/auth.scope", 403, "auth.scope"),
        ("GET", "/failing/grid.full", 503, "grid.full"),
        ("GET", "/broken", 500, "gateway.internal"),
        ("GET", "/nowhere", 404, "request.not_found"),
        ("DELETE", "/typed", 405, "request.method"),
        ("GET", "/typed?limit=0", 400, "request.invalid"),
        ("GET", "/typed?limit=x", 400, "request.invalid"),
    ],
)
def test_every_error_has_the_format_of_its_path(
    client: TestClient, prefix: str, method: str, path: str, status: int, code: str
) -> None:
    answer = client.request(method, prefix + path, headers={"x-request-id": "mine-1"})
    assert answer.status_code == status
    assert code_of(prefix + path, answer.json()) == code
    assert answer.headers["x-request-id"] == "mine-1"
    assert answer.headers["x-gridq-code"] == code
    assert "mine-1" in answer.text
    if status == 405:
        assert answer.headers["allow"] == "GET"


def test_an_unexpected_error_is_logged_with_the_request_id_and_not_disclosed(
    client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "gridq.gateway.http.errors"):
        answer = client.get("/broken", headers={"x-request-id": "mine-2"})
    assert SECRET not in answer.text
    assert "KeyError" not in answer.text
    (record,) = [each for each in caplog.records if each.name == "gridq.gateway.http.errors"]
    assert record.__dict__["gridq"] == {"request": "mine-2"}
    assert SECRET not in record.getMessage()
