"""Errors of providers and how long they hold."""

from __future__ import annotations

import json
import time
from email.utils import formatdate
from typing import Any

import pytest

from gridq.errors import (
    GridError,
    ModelUnavailable,
    RequestRefused,
    SeatDegraded,
    SeatRateLimited,
    SeatUnavailable,
    StageError,
)
from tests.fakes.gemini_server import error as google_error
from tests.fakes.gemini_server import google_type
from workers.model_apis.http.failures import find_error, make_error
from workers.model_apis.http.rate_limit_headers import parse_retry_delay

NOW = 1_790_000_000


def fault(status: int, body: Any = None, **headers: str) -> GridError:
    raw = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
    return make_error(status, headers, raw, {"endpoint": "https://x/v1"})


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (401, {"error": {"message": "Incorrect API key"}}, SeatDegraded),
        (402, {"error": {"message": "Insufficient Balance"}}, SeatDegraded),
        (403, {"error": {"message": "no"}}, RequestRefused),
        (403, {"error": {"message": "no", "metadata": {"provider_name": "x"}}}, RequestRefused),
        (403, {"error": {"message": "flagged", "metadata": {"reasons": ["violence"]}}}, StageError),
        (302, b"", SeatDegraded),
        (400, {"error": {"message": "Your credit balance is too low to …"}}, SeatDegraded),
        (429, {"error": {"type": "insufficient_quota", "message": "quota"}}, SeatDegraded),
        (429, {"error": {"code": "billing_not_active"}}, SeatDegraded),
        (429, {"error": {"code": "rate_limit_exceeded"}}, SeatRateLimited),
        (429, b"<html>", SeatRateLimited),
        (408, b"", SeatUnavailable),
        (500, {"error": {"message": "oops"}}, SeatUnavailable),
        (503, b"busy", SeatUnavailable),
        (529, {"type": "error", "error": {"type": "overloaded_error"}}, SeatUnavailable),
        (400, {"error": {"message": "bad", "param": "n"}}, StageError),
        (404, {"error": {"message": "no such model"}}, ModelUnavailable),
        (413, {"error": {"type": "request_too_large"}}, StageError),
        (400, google_error(400, "bad request"), StageError),
        (
            400,
            google_error(
                400, "API key not valid", {"@type": google_type("ErrorInfo"), "reason": "API_KEY_INVALID"}
            ),
            SeatDegraded,
        ),
        (400, {"error": {"code": 400, "status": "FAILED_PRECONDITION"}}, SeatDegraded),
        (403, google_error(403, "no"), RequestRefused),
        (429, google_error(429, "quota"), SeatRateLimited),
        (503, [google_error(503, "overloaded")], SeatUnavailable),
        (400, {"error": {"status": "INVALID_ARGUMENT", "details": 5}}, StageError),
    ],
)
def test_each_refusal_is_its_error(status: int, body: Any, kind: type[GridError]):
    found = fault(status, body)
    assert type(found) is kind
    assert found.details["status"] == status


def quota_failure(*quotas: dict[str, Any]) -> dict[str, Any]:
    return google_error(429, "quota", {"@type": google_type("QuotaFailure"), "violations": list(quotas)})


OPENAI_LIMIT = "Rate limit reached for gpt-4o in organization org-1 on tokens per min (TPM): Limit 30000"
GROQ_LIMIT = "Rate limit reached for model `llama-3.1-8b-instant` in organization `org_1` on tokens per day"
XAI_LIMIT = "Too many tokens for team 1-2 and model grok-4. Your team's rate limit is"
ANTHROPIC_LIMIT = "This request would exceed your organization's rate limit of 20,000 input tokens per minute"
OF_MODEL = {
    "quotaId": "RequestsPerDay",
    "quotaDimensions": {"location": "global", "model": "gemini-2.5-flash"},
}
BY_ID = {"quotaId": "GenerateRequestsPerDayPerProjectPerModel"}
OF_PROJECT = {"quotaId": "GenerateRequestsPerDayPerProject", "quotaDimensions": {"location": "global"}}


@pytest.mark.parametrize(
    ("body", "scope"),
    [
        ({"error": {"message": OPENAI_LIMIT, "type": "tokens", "code": "rate_limit_exceeded"}}, "model"),
        ({"error": {"message": OPENAI_LIMIT.replace("Rate limit reached", "Request too large")}}, "model"),
        ({"error": {"message": GROQ_LIMIT, "type": "tokens", "code": "rate_limit_exceeded"}}, "model"),
        ({"error": XAI_LIMIT}, "model"),
        (quota_failure(OF_MODEL, BY_ID), "model"),
        (quota_failure(OF_MODEL, OF_PROJECT), None),
        (quota_failure(), None),
        ({"error": {"message": "Rate limit reached for requests"}}, None),
        ({"error": {"message": f"Invalid prompt: {OPENAI_LIMIT}"}}, None),
        ({"error": {"message": "slow down", "param": "model"}}, None),
        ({"type": "error", "error": {"type": "rate_limit_error", "message": ANTHROPIC_LIMIT}}, None),
    ],
)
def test_a_limit_is_a_models_if_the_endpoint_says_so(body: Any, scope: str | None):
    found = fault(429, body)
    assert type(found) is SeatRateLimited
    assert found.details.get("scope") == scope
    assert found.blames_model == (scope == "model")


@pytest.mark.parametrize(
    "odd", [5, {"violations": 5}, {"violations": [5]}, {"violations": [{"quotaDimensions": 5}]}]
)
def test_an_odd_quota_failure_blames_no_model(odd: Any):
    body = google_error(429, "quota")
    body["error"]["details"] = [odd] if isinstance(odd, dict) else odd
    assert "scope" not in fault(429, body).details


def test_an_overloaded_service_blames_no_model():
    found = fault(529, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})
    assert type(found) is SeatUnavailable
    assert (found.details["state"], "scope" in found.details) == ("overloaded", False)


OPENAI_404 = "The model `m` does not exist or you do not have access to it."
OPENAI_403 = "Project `proj_x` does not have access to model `m`"
GOOGLE_404 = "models/m is not found for API version v1beta, or is not supported for generateContent."


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, {"error": {"message": OPENAI_404, "code": "model_not_found"}}),
        (403, {"error": {"message": OPENAI_403, "code": "model_not_found", "param": None}}),
        (404, {"type": "error", "error": {"type": "not_found_error", "message": "model: claude-9"}}),
        (403, {"error": {"type": "permission_error", "message": "This model is not available to you"}}),
        (404, google_error(404, GOOGLE_404)),
        (404, {"object": "error", "message": "The model `m` does not exist.", "type": "NotFoundError"}),
        (404, {"error": {"message": 'model "m" not found, try pulling it first', "type": "api_error"}}),
        (404, {"error": "model 'm' not found"}),
        (404, {"error": {"message": "No endpoints found for some/m:free.", "code": 404}}),
        (404, {"error": {"code": "DeploymentNotFound", "message": "It was not found."}}),
        (400, {"error": {"message": "Model Not Exist", "type": "invalid_request_error"}}),
        (400, {"object": "error", "message": "Invalid model: m", "type": "invalid_model"}),
        (400, {"error": {"message": "some/m is not a valid model ID", "code": 400}}),
        (403, {"error": {"code": "model_permission_blocked_project", "message": "It is blocked"}}),
        (410, {"error": "The model has been retired"}),
    ],
)
def test_a_refused_model_is_to_blame_and_not_the_request_or_the_key(status: int, body: Any) -> None:
    found = fault(status, body)
    assert type(found) is ModelUnavailable
    assert found.details["fix"]


WRONG_PATHS = [
    (404, b""),
    (404, b"404 page not found"),
    (404, b"<html><h1>Not Found</h1></html>"),
    (404, {"detail": "Not Found"}),
    (404, {"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}}),
    (404, {"error": {"message": "Invalid URL (POST /chat/completions)", "type": "invalid_request_error"}}),
    (404, {"message": "no Route matched with those values"}),
    (405, {"detail": "Method Not Allowed"}),
    (405, b""),
]


@pytest.mark.parametrize(("status", "body"), WRONG_PATHS)
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("chat/completions", ModelUnavailable),
        ("messages", ModelUnavailable),
        ("models/m:streamGenerateContent", ModelUnavailable),
        # of a path that not every endpoint has, one user's request says nothing of the model
        ("completions", RequestRefused),
        ("embeddings", RequestRefused),
        ("responses", RequestRefused),
    ],
)
def test_a_wrong_path_names_the_url(status: int, body: Any, path: str, expected: type[GridError]) -> None:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    found = make_error(status, {}, raw, {}, path=path)
    assert type(found) is expected
    assert "usually ends in /v1" in str(found.details["fix"])


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (403, {"error": {"message": "Key limit exceeded (total limit)", "code": 403}}),
        (403, {"code": "no permission", "error": "Your team does not have any credits yet"}),
        (403, google_error(403, "no", {"reason": "BILLING_DISABLED"})),
    ],
)
def test_a_403_that_names_the_credit_is_the_seats_fault(status: int, body: Any) -> None:
    found = fault(status, body)
    assert type(found) is SeatDegraded
    assert found.details["state"] == "no credit"


@pytest.mark.parametrize(
    "body",
    [
        google_error(403, "blocked", {"reason": "API_KEY_SERVICE_BLOCKED"}),
        google_error(403, "denied", {"reason": "CONSUMER_SUSPENDED"}),
        {"error": {"message": "Country not supported", "code": "unsupported_country_region_territory"}},
        {"error": {"message": "Your account has been suspended."}},
        {"error": {"type": "permission_error", "message": "OAuth token does not meet scope requirement"}},
    ],
)
def test_a_403_that_names_the_key_or_the_account_is_the_seats_fault(body: Any) -> None:
    found = fault(403, body)
    assert type(found) is SeatDegraded
    assert found.details["state"] == "key refused"


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (403, {"code": "no permission", "error": "Content violates usage guidelines. Team: t, Model: m"}),
        (403, {"code": "no permission", "error": "Model: m, Failed check: SAFETY_CHECK_TYPE_BIO"}),
        (403, {"error": {"message": "Your request was flagged by our moderation"}}),
        (403, google_error(403, "You do not have permission to access the File f1 or it may not exist.")),
        (404, {"type": "error", "error": {"type": "not_found_error", "message": "File not found: file_1"}}),
        (404, {"error": {"message": "Item with id 'rs_1' not found."}}),
        # what the request chose, and the endpoint quotes
        (404, {"error": {"message": "Item with id 'model' not found."}}),
        (404, {"error": {"message": "Item with id 'a' model 'b' not found."}}),
        (404, {"error": {"message": "The file https://a.example/the/model was not found"}}),
        (403, {"error": {"message": "You may not read the file `account suspended`"}}),
        (403, {"error": {"message": 'You may not read the file "billing"'}}),
        (424, {"error": {"type": "external_connector_error",
                         "message": "Error retrieving tool list from MCP server: 'model'. Status: 404"}}),
        (422, {"detail": "wrong"}),
        (400, {"error": {"message": "Cannot parse: 'Invalid model: m'"}}),
        (413, b"<html>"),
    ],
)  # fmt: skip
def test_what_only_this_request_asked_for_is_the_stages_fault(status: int, body: Any) -> None:
    assert type(fault(status, body)) is StageError


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (403, b"<html>Attention required</html>"),
        (403, {"error": {"type": "forbidden", "message": "Request not allowed"}}),
        (403, {"error": {"type": "permission_error",
                         "message": "Your API key does not have permission to use the specified resource"}}),
        (404, {"error": {"message": "No endpoints found that support tool use.", "code": 404}}),
        (404, {"error": {"message": "No endpoints found matching your data policy", "code": 404}}),
        (404, {"error": {"message": "This is not a chat model and thus not supported in the "
                                    "v1/chat/completions endpoint.", "param": "model"}}),
        (404, {"error": {"message": "something else"}}),
        (409, {"error": {"message": "conflict"}}),
        (425, b""),
        (418, b""),
    ],
)  # fmt: skip
def test_a_refusal_that_blames_nobody_is_asked_elsewhere(status: int, body: Any) -> None:
    assert type(fault(status, body)) is RequestRefused


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, {"code": "invalid_api_key", "message": "wrong"}),
        (400, {"message": "Incorrect API key provided: xa***yz."}),
        (422, {"message": "invalid x-api-key"}),
        (500, {"type": "authentication_error", "message": "the key is wrong"}),
        (500, {"message": "Error: Invalid API Key"}),
    ],
)
def test_a_rejected_key_is_the_seats_fault_whatever_the_status(status: int, error: dict[str, str]) -> None:
    found = fault(status, {"error": error})
    assert type(found) is SeatDegraded
    assert found.details["state"] == "key refused"


def test_a_request_that_quotes_a_rejected_key_does_not_degrade_the_seat() -> None:
    quoted = {"error": {"message": "Cannot parse the input: 'Incorrect API key provided'"}}
    assert type(fault(400, quoted)) is StageError


@pytest.mark.parametrize("status", [400, 401, 429, 500])
@pytest.mark.parametrize("field", ["message", "code", "param"])
def test_what_an_endpoint_says_of_the_key_and_the_account_is_masked(status: int, field: str) -> None:
    words = "key sk-1, ABCDEFGH-secret, sk-…5678, in organization org-a1b2c3d4e5 of ada@example.com"
    raw = json.dumps({"error": {field: words}}).encode()
    shown = make_error(status, {}, raw, {}, ["sk-1", "abcdefgh-secret-abcdefgh"]).to_json()
    for secret in ("sk-1", "ABCDEFGH", "5678", "a1b2c3d4e5", "ada@"):
        assert secret not in shown


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "17"}, 17),
        ({"retry-after": "17", "retry-after-ms": "1500"}, 1.5),
        ({"retry-after": "0"}, 0),
        ({}, None),
        (
            {"retry-after": "soon", "x-ratelimit-reset": "never", "x-ratelimit-reset-tokens": "1 fortnight"},
            None,
        ),
        # Anthropic: the limits with nothing left count, the last of them
        (
            {
                "anthropic-ratelimit-requests-remaining": "9",
                "anthropic-ratelimit-requests-reset": "2026-09-21T14:13:21Z",
                "anthropic-ratelimit-input-tokens-remaining": "0",
                "anthropic-ratelimit-input-tokens-reset": "2026-09-21T14:14:00Z",
                "anthropic-ratelimit-output-tokens-remaining": "0",
                "anthropic-ratelimit-output-tokens-reset": "2026-09-21T14:13:50+00:00",
            },
            40,
        ),
        ({"anthropic-ratelimit-unified-reset": str(NOW + 3600)}, 3600),
        ({"anthropic-ratelimit-tokens-reset": "2026-09-21T14:00:00Z"}, 0),
        # OpenAI, Azure, Groq
        (
            {
                "x-ratelimit-remaining-requests": "0",
                "x-ratelimit-reset-requests": "6m0s",
                "x-ratelimit-remaining-tokens": "100",
                "x-ratelimit-reset-tokens": "88ms",
            },
            360,
        ),
        ({"x-ratelimit-reset-requests": "2m59.56s", "x-ratelimit-reset-tokens": "7.66s"}, 7.66),
        ({"x-ratelimit-reset-requests": "1h2m3s"}, 3723),
        # OpenRouter in milliseconds since 1970, others in seconds of either kind
        ({"x-ratelimit-reset": str((NOW + 90) * 1000)}, 90),
        ({"x-ratelimit-reset": str(NOW + 90)}, 90),
        ({"ratelimit-reset": "12"}, 12),
    ],
)
def test_retry_delays_are_read_by_the_endpoints_clock(headers: dict[str, str], seconds: float | None):
    delay = parse_retry_delay({**headers, "date": formatdate(NOW, usegmt=True)})
    assert delay == (None if seconds is None else pytest.approx(seconds))
    found = fault(429, None, **headers, date=formatdate(NOW, usegmt=True))
    assert found.details.get("retry_after") == delay


def test_without_a_date_header_the_local_clock_counts():
    left = parse_retry_delay({"x-ratelimit-reset": str(int(time.time()) + 500)})
    assert left is not None
    assert 400 < left <= 500


def test_an_error_has_googles_retry_delay():
    delay = {"@type": google_type("RetryInfo"), "retryDelay": "34.5s"}
    assert fault(429, google_error(429, "quota", delay)).details["retry_after"] == 34.5
    assert fault(503, google_error(503, "busy", delay)).details["retry_after"] == 34.5
    odd = {"@type": google_type("RetryInfo"), "retryDelay": ["soon"]}
    assert "retry_after" not in fault(429, google_error(429, "quota", odd)).details


def test_a_rate_limit_reset_does_not_delay_a_broken_endpoint():
    headers = {"anthropic-ratelimit-requests-reset": "2099-01-01T00:00:00Z"}
    assert "retry_after" not in fault(529, None, **headers).details
    assert fault(529, None, **headers, **{"retry-after": "3"}).details["retry_after"] == 3


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, SeatUnavailable),
        ({"type": "error", "error": {"type": "rate_limit_error"}}, SeatRateLimited),
        ({"type": "error", "error": {"type": "invalid_request_error"}}, StageError),
        ({"type": "error", "error": {"type": "external_connector_error"}}, StageError),
        ({"type": "error", "error": {"type": "timeout_error"}}, SeatUnavailable),
        ({"error": {"code": "rate_limit_exceeded"}}, SeatRateLimited),
        ({"error": {"code": 402, "message": "no credit"}}, SeatDegraded),
        ({"error": "something"}, SeatUnavailable),
        (google_error(503, "The model is overloaded."), SeatUnavailable),
        (google_error(429, "quota"), SeatRateLimited),
        ({"error": None, "choices": []}, None),
    ],
)
def test_errors_within_a_stream_are_found(event: dict[str, Any], kind: type[GridError] | None):
    found = find_error(event)
    assert kind is None if found is None else type(found) is kind


@pytest.mark.parametrize(
    "body",
    [
        {
            "type": "error",
            "error": {"type": "invalid_request_error", "message": "prompt is too long: 9 tokens > 8"},
        },
        google_error(400, "The input token count (9) exceeds the maximum number of tokens allowed (8)."),
        {"error": {"message": "This model's maximum context length is 8 tokens.", "code": 400}},
        {"error": {"message": "request (9 tokens) exceeds the available context size (8 tokens), try …"}},
        {"error": {"message": "input (9 tokens) is larger than the max context size (8 tokens). skipping"}},
        {"error": {"message": "the prompt is longer than the context length currently available …"}},
    ],
)
def test_a_prompt_that_is_too_long_has_the_code_that_clients_know(body: Any) -> None:
    assert fault(400, body).details["endpoint_code"] == "context_length_exceeded"


def test_a_text_that_is_longer_than_llama_cpps_batch_is_too_long_too() -> None:
    """It says so with status 500."""
    message = "input (901 tokens) is too large to process. increase the physical batch size (current … 512)"
    found = fault(500, {"error": {"code": 500, "message": message, "type": "server_error"}})
    assert isinstance(found, StageError)
    assert (found.details["status"], found.details["endpoint_code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (500, "model name=strange failed to load"),
        (500, "llama-server process has terminated: exit status 1"),
        (500, "llama runner process has terminated: exit status 2"),
        (500, "model requires more system memory (8.0 GiB) than is available (4.0 GiB)"),
        (400, 'Failed to load model "org/m". Error: insufficient memory'),
    ],
)
def test_a_model_that_an_engine_cannot_load_blames_that_model_alone(status: int, message: str) -> None:
    assert type(fault(status, {"error": {"message": message}})) is ModelUnavailable
    assert type(fault(500, {"error": {"message": f"x: {message}"}})) is SeatUnavailable


def test_the_field_in_anthropics_message_is_named() -> None:
    error = {"type": "invalid_request_error", "message": "messages.0.content.1: must not be blank"}
    assert fault(400, {"type": "error", "error": error}).details["param"] == "messages.0.content.1"
    assert "param" not in fault(400, {"error": {**error, "message": "error: no field"}}).details
