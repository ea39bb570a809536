"""Turn a GridError into an HTTP response: its status, its headers and a body in the API's own format.

| path | format of the body |
|---|---|
| `/v1/messages…` | Anthropic's: `{"type": "error", "error": {"type", "message", …}, "request_id"}` |
| `/v1/…` | OpenAI's: `{"error": {"message", "type", "param", "code", …}}` |
| Google's | `{"error": {"code", "message", "status", …}}` |
| Ollama's | `{"error": message, …}` |
| all others | gridq's own: `{"error": {"code", "message", "path", "expected", "fix", …}}` |

Each body has the error's stable code, its details and the request's ID. If a model's endpoint refused the
request, the bodies for model APIs keep the vendor's own `code`, `type` and `param`, so that clients handle
the error as they would there; gridq's code stands in `gridq_code`. 429 and 503 also say which limit
applies and when to retry (`gridq.submission.refusal_details`). Details that only the operator may see, such
as the address of the Redis server or a traceback, go to the log under the same request ID.
"""

from __future__ import annotations

import json
import logging
import math
import re
import secrets
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from redis.exceptions import RedisError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from gridq.errors import (
    BrokerError,
    GatewayFault,
    GatewayStops,
    GridError,
    InputTooLarge,
    MethodNotAllowed,
    NoLiveSeat,
    QueueFull,
    RequestError,
    RouteNotFound,
    StageError,
    describe_fault,
)
from gridq.gateway.http.base_urls import ANTHROPIC_HEADER, find_intended_route, find_vendor
from gridq.gateway.http.request_options import name_headers
from gridq.gateway.streaming.sse import encode_json
from gridq.protocol.models import Json
from gridq.store.connection import translate_error
from gridq.submission.refusal_details import explain_refusal

log = logging.getLogger(__name__)

STATUSES: Mapping[str, int] = {
    "auth.refused": 401,
    "auth.key_missing": 401,
    "auth.key_invalid": 401,
    "auth.key_revoked": 401,
    "auth.scope": 403,
    "auth.origin": 403,
    "auth.open": 403,
    "auth.attempts": 429,
    "auth.key_not_found": 404,
    "broker.error": 503,
    "capability.conflict": 400,
    "capability.unknown": 400,
    "config.invalid": 400,
    "gateway.busy": 503,
    "gateway.internal": 500,
    "gateway.stopping": 503,
    "graph.invalid": 400,
    "graph.too_large": 413,
    "grid.busy": 503,
    "grid.error": 500,
    "grid.full": 503,
    "http.host_not_allowed": 403,
    "input.too_large": 413,
    "job.ambiguous": 400,
    "job.cancelled": 409,
    "job.deadline": 504,
    "job.deadline_unreachable": 503,
    "job.idempotency_conflict": 409,
    "job.not_admitted": 500,
    "job.damaged": 500,
    "job.not_found": 404,
    "job.not_streamed": 409,
    "job.queue_timeout": 504,
    "job.wait_timeout": 504,
    "join.refused": 403,
    "join.token": 401,
    "key.limit": 429,
    "model.gated": 403,
    "model.in_use": 409,
    "model.loading": 503,
    "model.not_found": 404,
    "model.pull": 502,
    "model.reference": 400,
    "model.unreachable": 503,
    "output.too_large": 502,
    "program.running": 409,
    "queue.dropped": 429,
    "queue.full": 429,
    "quota.exceeded": 429,
    "quota.job_budget": 402,
    "quota.file": 500,
    "request.encoding": 415,
    "request.headers": 431,
    "request.invalid": 400,
    "request.method": 405,
    "request.not_found": 404,
    "request.not_supported": 501,
    "request.timeout": 408,
    "seat.demand_unmet": 400,
    "seat.error": 502,
    "seat.in_use": 409,
    "seat.none_live": 503,
    "seat.rate_limited": 429,
    "stage.failed": 502,
    "stage.not_quarantined": 409,
    "stage.timeout": 504,
    "stream.trimmed": 410,
    "start.timeout": 503,
    "value.gone": 404,
    "value.not_json": 400,
    "workers.full": 503,
}
"""The status of each code. A subclass has the status of its base class unless it is listed itself."""

OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
ANTHROPIC_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 402: "billing_error",
    403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 500: "api_error", 502: "api_error",
    503: "overloaded_error", 504: "timeout_error",
}  # fmt: skip

GOOGLE_STATUSES = {400: "INVALID_ARGUMENT", 404: "NOT_FOUND", 405: "UNIMPLEMENTED", 413: "INVALID_ARGUMENT"}

OVERLOADED = 529
"""Anthropic's status for an overloaded model, which only its own clients know. Others get 503."""

SEATS_STATUSES = {404: 404, 429: 429, 503: 503, OVERLOADED: 503}
"""The status of a request that failed at its seats, by that of the last seat's endpoint."""

RETRYABLE_STATUSES = (429, 503)
"""Statuses after which a retry may succeed. Their bodies carry the details of
`gridq.submission.refusal_details`.
"""

MAX_RETRY_AFTER_SECONDS = 31 * 86_400

FINAL_CODES = (
    "quota.",
    "auth.key",
    "auth.scope",
    "auth.origin",
    "auth.open",
    "job.cancelled",
    "job.idempotency",
    "request.not_supported",
)
"""Prefixes of the codes for which a retry of the same request fails again. Clients get `x-should-retry:
false`.
"""

OPERATOR_DETAILS = frozenset({"endpoint"})
"""Details that only the operator may see: in the gateway's log and in `gridq job`."""

MODEL_API_PATH = "/v1/"
"""The start of the paths of all model APIs."""

ANTHROPIC_PATH = "/v1/messages"

CLOSING_STATUSES = frozenset({408, 413, 431})
"""Statuses that close the connection, so that the unread rest of the request does not keep it open."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
_CLIENT_ERRORS = range(400, 500)


def find_status(error: GridError) -> int:
    """Return the HTTP status of an error.

    A failed stage keeps its endpoint's own 4xx, from `details["status"]`. If every seat failed, the last
    one's rate limit, overload or missing model decides (SEATS_STATUSES). NoLiveSeat is 404 if
    `details["served"]` is False, because no seat ever served that queue. QueueFull is 400 if the job
    alone has more ready stages than the queue may hold, because waiting does not help.
    """
    stated = error.details.get("status")
    reported = stated if isinstance(stated, int) else 0
    if error.code == "stage.failed" and reported in _CLIENT_ERRORS:
        return reported
    if error.code in ("stage.attempts_exhausted", "stage.stream_cut") and reported in SEATS_STATUSES:
        return SEATS_STATUSES[reported]
    if isinstance(error, NoLiveSeat) and error.details.get("served") is False:
        return 404
    if isinstance(error, QueueFull) and _number(error.details.get("needed")) > _number(
        error.details.get("limit", math.inf)
    ):
        return 400
    for cls in type(error).__mro__:
        status = STATUSES.get(getattr(cls, "code", ""))
        if status is not None:
            return status
    return 500


def compute_retry_after(error: GridError, status: int | None = None) -> int | None:
    """Return the value of the Retry-After header: whole seconds, rounded up.

    None if the header is not sent: for a status other than RETRYABLE_STATUSES, or if waiting does not
    help.
    """
    if (find_status(error) if status is None else status) not in RETRYABLE_STATUSES:
        return None
    seconds = _wait_details(error)["retry_after"]
    return None if seconds is None else min(max(1, math.ceil(seconds)), MAX_RETRY_AFTER_SECONDS)


def format_openai_error(error: GridError, request_id: str) -> dict[str, Json]:
    """Return the body for OpenAI's clients.

    `{"error": {"message", "type", "param", "code", "gridq_code", …details, "request_id"}}`.
    """
    status, record = find_status(error), _make_public_record(error, by_header=True)
    details = record["details"]
    kind = OPENAI_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    if error.code.startswith("quota."):
        kind = "insufficient_quota"
    kind = details.get("endpoint_type") or kind
    # the field of the client's body, if the seat names it; the path of a failed stage is one of the graph
    param = details.get("param") or (None if isinstance(error, StageError) else details.get("path"))
    if isinstance(error, NoLiveSeat):  # whose path is a queue or a place in the graph
        param = details.get("param") or "model"
    base = {"message": _format_message(record), "type": kind, "param": param, **_make_codes(record)}
    return {"error": {**base, **_select_details(record, base), "request_id": request_id}}


def format_anthropic_error(error: GridError, request_id: str) -> dict[str, Json]:
    """Return the body for Anthropic's clients.

    `{"type": "error", "error": {"type", "message", "code", "gridq_code", …details}, "request_id"}`. The type
    is the vendor's own if Anthropic has it; `param` is there if a field of the request is wrong.
    """
    record = _make_public_record(error, by_header=True)
    kind = ANTHROPIC_TYPES.get(find_status(error), "invalid_request_error")
    stated = record["details"].get("endpoint_type")
    kind = stated if stated in ANTHROPIC_TYPES.values() else kind
    base = {"type": kind, "message": _format_message(record), **_make_codes(record)}
    if record["details"].get("param"):  # the vendor has no such field, and clients show it
        base["param"] = record["details"]["param"]
    if base.get("param") == "thread":  # by these details the vendor's client goes on without a thread
        base["details"] = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    return {"type": "error", "error": {**base, **_select_details(record, base)}, "request_id": request_id}


def _make_codes(record: dict[str, Any]) -> dict[str, Json]:
    """Return the vendor's code, if it stated one, and gridq's own."""
    return {"code": record["details"].get("endpoint_code") or record["code"], "gridq_code": record["code"]}


def format_grid_error(error: GridError, request_id: str) -> dict[str, Json]:
    """Return gridq's own body: `{"error": {"code", "message", …details, "request_id"}}`.

    If an agent or a team has no money left, noether's `remaining_cents` and `requested_cents` stand
    beside `error`.
    """
    record = _make_public_record(error)
    base = {"code": record["code"], "message": record["message"]}
    body: dict[str, Json] = {"error": {**base, **_select_details(record, base), "request_id": request_id}}
    if error.code in ("quota.agent_money", "quota.team_money"):
        limit, used, reserved, needed = (
            _number(error.details.get(n)) for n in ("limit", "used", "reserved", "needed")
        )
        body["remaining_cents"] = max(0, math.floor((limit - used - reserved) / 10_000))
        body["requested_cents"] = math.ceil(needed / 10_000)
    return body


def format_google_error(error: GridError, request_id: str) -> dict[str, Json]:
    """Return the body for Google's clients, whose API the grid does not speak."""
    status, record = find_status(error), _make_public_record(error, by_header=True)
    base = {
        "code": status,
        "message": _format_message(record),
        "status": GOOGLE_STATUSES.get(status, "UNKNOWN"),
    }
    return {"error": {**base, "gridq_code": error.code, "request_id": request_id}}


def format_ollama_error(error: GridError, request_id: str) -> dict[str, Json]:
    """Return the body for Ollama's clients, whose API the grid does not speak."""
    record = _make_public_record(error, by_header=True)
    return {"error": _format_message(record), "gridq_code": error.code, "request_id": request_id}


def format_error(path: str, error: GridError, request_id: str) -> dict[str, Json]:
    """Return the error's body in the API format of `path`."""
    vendor = find_vendor(path)
    if vendor:
        return (format_google_error if vendor == "Google" else format_ollama_error)(error, request_id)
    if path.startswith(ANTHROPIC_PATH):
        return format_anthropic_error(error, request_id)
    if path.startswith(MODEL_API_PATH):
        return format_openai_error(error, request_id)
    return format_grid_error(error, request_id)


def make_headers(error: GridError, request_id: str) -> dict[str, str]:
    """Return the headers that go with an error's body."""
    status = find_status(error)
    headers = {"x-request-id": request_id, "x-gridq-code": error.code}
    after = compute_retry_after(error, status)
    if after is not None:
        headers["retry-after"] = str(after)
    if error.code.startswith(FINAL_CODES):
        headers["x-should-retry"] = "false"  # both official clients honor it
    if status == 401:
        headers["www-authenticate"] = 'Bearer realm="gridq"'
    if status in CLOSING_STATUSES:
        headers["connection"] = "close"
    return headers


def make_error_response(
    request: Request, error: GridError, headers: Mapping[str, str] | None = None, *, path: str | None = None
) -> Response:
    """Return the response to a request that failed with `error`. Logs what the client may not see.

    Its API format is that of `path`, by default the request's own.
    """
    request_id, status = get_request_id(request), find_status(error)
    log_error(request, error)
    path = path or request.url.path
    if ANTHROPIC_HEADER in request.headers and path.startswith(MODEL_API_PATH):
        path = ANTHROPIC_PATH  # its client, at a path that both APIs have, or that neither has
    if path.startswith(ANTHROPIC_PATH) and status == 503 and error.details.get("status") == OVERLOADED:
        status = OVERLOADED
    body = encode_json(format_error(path, error, request_id))
    return Response(
        body, status, {**make_headers(error, request_id), **(headers or {})}, media_type="application/json"
    )


def make_stopping_error() -> GatewayStops:
    """Return the error of a gateway that is shutting down."""
    details = {
        "bottleneck": "this gateway, which is shutting down",
        "retry_after": 1.0,
        "fix": "retry at another gateway",
    }
    return GatewayStops("The gateway is shutting down", details)


def log_error(request: Request, error: GridError) -> None:
    """Log the parts of an error that the client may not see."""
    hidden = {name: str(error.details[name]) for name in OPERATOR_DETAILS & error.details.keys()}
    if isinstance(error, BrokerError):
        log.warning("a request failed", extra=make_log_fields(request, error=str(error)))
    elif hidden:  # only INFO: clients can cause these at will
        log.info("a request failed", extra=make_log_fields(request, error=str(error), **hidden))


def redact_record(record: dict[str, Any]) -> dict[str, Any]:
    """Return an error's record without the details that only the operator may see."""
    details = record.get("details") or {}
    return {
        **record,
        "details": {name: value for name, value in details.items() if name not in OPERATOR_DETAILS},
    }


def get_request_id(request: Request) -> str:
    """Return the ID of a request: the client's `x-request-id` if it is well-formed, else a new one.

    Repeated calls return the same ID.
    """
    request_id: str | None = getattr(request.state, "request_id", None)
    if request_id is None:
        request_id = request.state.request_id = make_request_id(request.headers.get("x-request-id", ""))
    return request_id


def make_log_fields(request: Request, **more: str) -> dict[str, Any]:
    """Return the fields of a log line about a request: its ID, `more` and, once known, the caller.

    The caller is an agent's name, with the ID of its API key if it has one.
    """
    caller = getattr(request.state, "caller", "")
    return {"gridq": {"request": get_request_id(request), **({"caller": caller} if caller else {}), **more}}


def make_request_id(given: str = "") -> str:
    """Return `given` if it is 1 to 128 letters, digits, `_`, `.`, `:` or `-`, else a random ID."""
    return given if _ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"


def install(app: FastAPI) -> None:
    """Answer every exception of `app` in the API format of its path. No response shows a traceback."""
    app.add_exception_handler(GridError, _handle_grid_error)
    app.add_exception_handler(HTTPException, _handle_http_exception)
    app.add_exception_handler(RequestValidationError, _handle_validation_error)
    app.add_exception_handler(RedisError, _handle_grid_error)
    app.add_exception_handler(ClientDisconnect, _handle_disconnect)
    app.add_exception_handler(Exception, handle_unexpected)


async def handle_unexpected(request: Request, exc: Exception) -> Response:
    """Return the response to an unexpected exception. The log has its traceback under the request's ID."""
    log.error("a request failed with an unexpected error", exc_info=exc, extra=make_log_fields(request))
    fault = GatewayFault(
        "The gateway failed to handle the request",
        {"fix": "report the request ID to the operator; the gateway's log has the cause"},
    )
    return make_error_response(request, fault)


async def _handle_grid_error(request: Request, exc: Exception) -> Response:
    return make_error_response(request, exc if isinstance(exc, GridError) else translate_error(exc))


async def _handle_disconnect(request: Request, exc: Exception) -> Response:
    return Response(status_code=499)  # the client has disconnected


async def _handle_http_exception(request: Request, exc: Exception) -> Response:
    """Answer what the framework refuses: an unknown path or method, or a body that it cannot read."""
    assert isinstance(exc, HTTPException)
    if isinstance(exc.__cause__, GridError):  # raised while the framework read the body
        return make_error_response(request, exc.__cause__)
    if isinstance(exc.__cause__, ClientDisconnect):
        return Response(status_code=499)
    path, method = request.url.path, request.method
    error: GridError
    if exc.status_code == 404 or find_vendor(path):
        intended = find_intended_route(request)
        fix = "see /openapi.json for all paths" if intended is None else intended.fix
        error = RouteNotFound(f"Unknown path: {path[:200]}", {"fix": fix})
        if intended is not None:
            path = intended.path
            if not intended.vendor:
                error.details["expected"] = path
    elif exc.status_code == 405:
        allowed = (exc.headers or {}).get("Allow", "")
        error = MethodNotAllowed(
            f"The method {method} is not allowed for {path[:200]}", {"expected": allowed or "another method"}
        )
    elif exc.status_code == 413:
        error = InputTooLarge("The request body is too large")
    else:
        error = RequestError(str(exc.detail)[:500], {"status": exc.status_code})
    response = make_error_response(request, error, exc.headers, path=path)
    if type(error) is RequestError and 400 <= exc.status_code < 600:
        response.status_code = exc.status_code
    return response


async def _handle_validation_error(request: Request, exc: Exception) -> Response:
    """Answer a request that does not match the schema of its route. The invalid value is not repeated."""
    assert isinstance(exc, RequestValidationError)
    path, reason = describe_fault(exc.errors()) if exc.errors() else ("", "it does not match the schema")
    return make_error_response(
        request, RequestError("The request is invalid", {"path": path[:200], "reason": reason[:500]})
    )


def _make_public_record(error: GridError, *, by_header: bool = False) -> dict[str, Any]:
    """Return the error's record as the client may see it, as JSON of bounded length.

    A 429 or 503 has the details of the wait, whatever refused the request. `by_header`: the client of a model
    API sets job options by headers, so the details name these.
    """
    status = find_status(error)
    if isinstance(error, BrokerError):  # its message names the server's address
        error = type(error)("The grid cannot reach its Redis server")
    record = redact_record(json.loads(error.to_json()))
    details = record["details"]
    if status in RETRYABLE_STATUSES:
        record["details"] = _wait_details(type(error)(record["message"], details))
    elif isinstance(error, NoLiveSeat) and "retry_after" in details:  # never served: waiting does not help
        details["retry_after"] = None
    if by_header:
        record["details"] = name_headers(record["details"])
    return record


def _wait_details(error: GridError) -> dict[str, Any]:
    """Return the details of a refusal with those of the wait. An admission has added them already."""
    return error.details if "starts_in" in error.details else explain_refusal(error)


def _select_details(record: dict[str, Any], base: Mapping[str, object]) -> dict[str, Json]:
    """Return the details whose names the API format does not use itself."""
    taken = {*base, "type", "code", "message", "param", "request_id", "endpoint_code", "endpoint_type"}
    return {name: value for name, value in record["details"].items() if name not in taken}


def _format_message(record: dict[str, Any]) -> str:
    """Return the error as one text, for clients that show only the message."""
    details = record["details"]
    text = str(record["message"])
    if details.get("expected"):
        text += f"; expected {details['expected']}"
    reason = details.get("reason")
    if reason and str(reason) not in text:
        text += f"; {reason}"
    if details.get("fix"):
        text += f". Fix: {details['fix']}"
    return text


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
