"""GridError to HTTP: which status each code has, and how each API format words an error.

| path | shape |
|---|---|
| `/v1/messages…` | Anthropic's: `{"type": "error", "error": {"type", "message", …}, "request_id"}` |
| `/v1/…` | OpenAI's: `{"error": {"message", "type", "param", "code", …}}` |
| all else | the grid's own: `{"error": {"code", "message", "path", "expected", "fix", …}}` |

All three carry the stable code, the details and the request's id; 429 and 503 the fields of
`gridq.submission.live_forecast.explain` and, where waiting helps, Retry-After. What only the operator may
know (the server's address, a traceback) stands in the log, under the request's id.
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
)
from gridq.protocol.models import Json
from gridq.store.connection import translate
from gridq.submission.live_forecast import explain

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
    "job.not_found": 404,
    "job.queue_timeout": 504,
    "job.wait_timeout": 504,
    "join.refused": 403,
    "join.token": 401,
    "key.limit": 429,
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
    "request.timeout": 408,
    "seat.error": 502,
    "seat.in_use": 409,
    "seat.none_live": 503,
    "seat.rate_limited": 429,
    "stage.failed": 502,
    "stage.not_quarantined": 409,
    "stage.timeout": 504,
    "start.timeout": 503,
    "value.gone": 404,
    "value.not_json": 400,
    "workers.full": 503,
}
"""The status of each code, which those of its subclasses share unless they stand here too."""

OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
ANTHROPIC_TYPES = {
    401: "authentication_error", 402: "billing_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 500: "api_error", 502: "api_error",
    503: "overloaded_error", 504: "timeout_error",
}  # fmt: skip

RETRYABLE_STATUSES = (429, 503)
"""After these another time may do, or a small change: they say what
`gridq.submission.live_forecast.explain` tells.
"""

MAX_RETRY_AFTER_SECONDS = 31 * 86_400

FINAL_CODES = ("quota.", "auth.key", "auth.scope", "auth.origin", "auth.open", "job.cancelled", "job.idempotency")
"""Beginnings of the codes after which the same request fails again: the clients are told not to repeat it."""

OPERATOR_DETAILS = frozenset({"endpoint"})
"""Details that only the operator may know: they stand in the gateway's log, and `gridq job` shows them."""

CLOSING_STATUSES = frozenset({408, 413, 431})
"""After these the connection ends: what was not read of the request must not be waited for."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
_CLIENT_ERRORS = range(400, 500)


def status_of(error: GridError) -> int:
    """The HTTP status of an error.

    An endpoint's own 4xx, which a failed stage has as `details["status"]`, stays what it is; where every seat
    was refused by its provider's rate limit, it is 429. NoLiveSeat is 404 where `details["served"]` is False:
    nobody ever served that. QueueFull is 400 where no waiting helps: at once more stages are ready than may
    ever stand in the queue.
    """
    told = error.details.get("status")
    if error.code == "stage.failed" and isinstance(told, int) and told in _CLIENT_ERRORS:
        return told
    if error.code == "stage.attempts_exhausted" and told == 429:
        return 429
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


def retry_after(error: GridError, status: int | None = None) -> int | None:
    """Whole seconds, rounded up, after which it is worth asking again; None where the header is not sent:
    with another status than LATER, or where no waiting helps.
    """
    if (status_of(error) if status is None else status) not in RETRYABLE_STATUSES:
        return None
    seconds = _wait_details(error)["retry_after"]
    return None if seconds is None else min(max(1, math.ceil(seconds)), MAX_RETRY_AFTER_SECONDS)


def openai_error(error: GridError, request_id: str) -> dict[str, Json]:
    """`{"error": {"message", "type", "param", "code", …the details, "request_id"}}`."""
    status, told = status_of(error), _public_record(error)
    kind = OPENAI_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    if error.code.startswith("quota."):
        kind = "insufficient_quota"
    details = told["details"]
    param = details.get("param") or details.get("path")  # the client's own field, where the seat names it
    base = {"message": _full_message(told), "type": kind, "param": param}
    return {"error": {**base, "code": told["code"], **_extra_details(told, base), "request_id": request_id}}


def anthropic_error(error: GridError, request_id: str) -> dict[str, Json]:
    """`{"type": "error", "error": {"type", "message", "code", …the details}, "request_id"}`."""
    told = _public_record(error)
    kind = ANTHROPIC_TYPES.get(status_of(error), "invalid_request_error")
    base = {"type": kind, "message": _full_message(told), "code": told["code"]}
    return {"type": "error", "error": {**base, **_extra_details(told, base)}, "request_id": request_id}


def grid_error(error: GridError, request_id: str) -> dict[str, Json]:
    """`{"error": {"code", "message", …the details, "request_id"}}`; where an agent's money is used up with
    noether's `remaining_cents` and `requested_cents` beside it.
    """
    told = _public_record(error)
    base = {"code": told["code"], "message": told["message"]}
    body: dict[str, Json] = {"error": {**base, **_extra_details(told, base), "request_id": request_id}}
    if error.code in ("quota.agent_money", "quota.team_money"):
        limit, used, held, needed = (
            _number(error.details.get(n)) for n in ("limit", "used", "reserved", "needed")
        )
        body["remaining_cents"] = max(0, math.floor((limit - used - held) / 10_000))
        body["requested_cents"] = math.ceil(needed / 10_000)
    return body


def format_error(path: str, error: GridError, request_id: str) -> dict[str, Json]:
    """The error as the API format of `path` words it."""
    if path.startswith("/v1/messages"):
        return anthropic_error(error, request_id)
    if path.startswith("/v1/"):
        return openai_error(error, request_id)
    return grid_error(error, request_id)


def headers_of(error: GridError, request_id: str) -> dict[str, str]:
    """The headers that go with an error's body."""
    status = status_of(error)
    headers = {"x-request-id": request_id, "x-gridq-code": error.code}
    after = retry_after(error, status)
    if after is not None:
        headers["retry-after"] = str(after)
    if error.code.startswith(FINAL_CODES):
        headers["x-should-retry"] = "false"  # what both official clients heed
    if status == 401:
        headers["www-authenticate"] = 'Bearer realm="gridq"'
    if status in CLOSING_STATUSES:
        headers["connection"] = "close"
    return headers


def error_response(request: Request, error: GridError, headers: Mapping[str, str] | None = None) -> Response:
    """The whole response to a request that ended with `error`; logged where it is the grid's own fault."""
    request_id, status = request_id_of(request), status_of(error)
    log_error(request, error)
    body = json.dumps(format_error(request.url.path, error, request_id), separators=(",", ":")).encode()
    return Response(
        body, status, {**headers_of(error, request_id), **(headers or {})}, media_type="application/json"
    )


def gateway_stopping() -> GatewayStops:
    """What a gateway says that stops."""
    details = {"bottleneck": "this gateway, which stops", "retry_after": 1.0, "fix": "ask another one"}
    return GatewayStops("The gateway stops", details)


def log_error(request: Request, error: GridError) -> None:
    """Log what an error says that its request is not told."""
    hidden = {name: str(error.details[name]) for name in OPERATOR_DETAILS & error.details.keys()}
    if isinstance(error, BrokerError):
        log.warning("a request failed", extra=log_fields(request, error=str(error)))
    elif hidden:  # of what clients can bring about no more than a line of INFO
        log.info("a request failed", extra=log_fields(request, error=str(error), **hidden))


def redact_record(record: dict[str, Any]) -> dict[str, Any]:
    """An error's record without what only the operator may know."""
    details = record.get("details") or {}
    return {**record, "details": {name: told for name, told in details.items() if name not in OPERATOR_DETAILS}}


def request_id_of(request: Request) -> str:
    """The id of a request: the client's own `x-request-id` where it is a plain one, else a new one; the same
    each time it is asked for.
    """
    found: str | None = getattr(request.state, "request_id", None)
    if found is None:
        found = request.state.request_id = new_request_id(request.headers.get("x-request-id", ""))
    return found


def log_fields(request: Request, **more: str) -> dict[str, Any]:
    """What a log line about a request says beside its event: its id and, once that is known, who asks: the
    agent, or the key by its id.
    """
    caller = getattr(request.state, "caller", "")
    return {"gridq": {"request": request_id_of(request), **({"caller": caller} if caller else {}), **more}}


def new_request_id(given: str = "") -> str:
    """`given` where it is 1 to 128 letters, digits, `_`, `.`, `:` or `-`, else `req_` and 24 hex digits."""
    return given if _ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"


def install(app: FastAPI) -> None:
    """Answer every exception of `app` in the shape of the path's API format; none shows a traceback."""
    app.add_exception_handler(GridError, _handle_grid_error)
    app.add_exception_handler(HTTPException, _handle_http_exception)
    app.add_exception_handler(RequestValidationError, _handle_validation_error)
    app.add_exception_handler(RedisError, _handle_redis_error)
    app.add_exception_handler(ClientDisconnect, _handle_disconnect)
    app.add_exception_handler(Exception, handle_unexpected)


async def handle_unexpected(request: Request, exc: Exception) -> Response:
    """The answer to an exception that nobody expected; the log has it with the request's id."""
    log.error("a request failed by a fault of the gateway", exc_info=exc, extra=log_fields(request))
    return error_response(request, GatewayFault("The gateway failed", {"reason": "its log says why"}))


async def _handle_grid_error(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, GridError)
    return error_response(request, exc)


async def _handle_redis_error(request: Request, exc: Exception) -> Response:
    return error_response(request, translate(exc))


async def _handle_disconnect(request: Request, exc: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it


async def _handle_http_exception(request: Request, exc: Exception) -> Response:
    """What the framework itself refuses: no such path or method, a body that it could not read."""
    assert isinstance(exc, HTTPException)
    if isinstance(exc.__cause__, GridError):  # met while the framework read the body
        return error_response(request, exc.__cause__)
    if isinstance(exc.__cause__, ClientDisconnect):
        return Response(status_code=499)
    path, method = request.url.path, request.method
    error: GridError
    if exc.status_code == 404:
        error = RouteNotFound(
            f"There is nothing at {path[:200]}", {"fix": "see /openapi.json for what there is"}
        )
    elif exc.status_code == 405:
        allowed = (exc.headers or {}).get("Allow", "")
        error = MethodNotAllowed(f"{path[:200]} takes no {method}", {"expected": allowed or "another method"})
    elif exc.status_code == 413:
        error = InputTooLarge("The request's body is too large")
    else:
        error = RequestError(str(exc.detail)[:500], {"status": exc.status_code})
    response = error_response(request, error, exc.headers)
    if isinstance(error, RequestError) and 400 <= exc.status_code < 600:
        response.status_code = exc.status_code
    return response


async def _handle_validation_error(request: Request, exc: Exception) -> Response:
    """What does not fit the form that a path takes. The value itself is not repeated."""
    assert isinstance(exc, RequestValidationError)
    first: dict[str, Any] = dict(exc.errors()[0]) if exc.errors() else {}
    path = ".".join(str(part) for part in first.get("loc", ()))
    reason = str(first.get("msg", "it has another form"))
    return error_response(
        request, RequestError("The request is malformed", {"path": path[:200], "reason": reason[:500]})
    )


def _public_record(error: GridError) -> dict[str, Any]:
    """The error's record as JSON of bounded length, without what only the operator may know; with what every
    429 and 503 says, whatever refused the request.
    """
    status = status_of(error)
    if isinstance(error, BrokerError):  # its own words name the server's address
        error = type(error)("The grid cannot reach its server now")
    told = redact_record(json.loads(error.to_json()))
    details = told["details"]
    if status in RETRYABLE_STATUSES:
        told["details"] = _wait_details(type(error)(told["message"], details))
    elif isinstance(error, NoLiveSeat) and "retry_after" in details:  # what nobody ever served
        details["retry_after"] = None
    return told


def _wait_details(error: GridError) -> dict[str, Any]:
    """The details of a refusal with all that is said of the wait; an admission has said it already."""
    return error.details if "starts_in" in error.details else explain(error)


def _extra_details(told: dict[str, Any], base: Mapping[str, object]) -> dict[str, Json]:
    """The details, but those whose names the API format has taken for its own."""
    taken = {*base, "type", "code", "message", "param", "request_id"}
    return {name: value for name, value in told["details"].items() if name not in taken}


def _full_message(told: dict[str, Any]) -> str:
    """The error in one text, for clients that show nothing else."""
    details = told["details"]
    text = str(told["message"])
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
