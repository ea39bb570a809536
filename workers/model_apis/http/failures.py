"""What a refusal of an endpoint means to the grid.

| status | error | what follows |
|---|---|---|
| 401, 403, 402, a redirect | SeatDegraded | the seat rests: its key, its credit or its URL is wrong |
| 400 of a key that is not valid (Google), an account without credit (Anthropic) | SeatDegraded | so too |
| 429 | SeatRateLimited, with `retry_after`; SeatDegraded where the credit is used up | another seat |
| 408, 5xx, 529, any that is no 4xx | SeatUnavailable | another seat |
| 403 of a moderation (OpenRouter) | StageError | the stage fails: it is the request's fault, not the key's |
| any other 4xx | StageError with the endpoint's own words | the stage fails |
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gridq.errors import GridError, SeatDegraded, SeatRateLimited, SeatUnavailable, StageError
from gridq.protocol.models import Json
from workers.model_apis.http.rate_limit_headers import parse_retry_delay

MAX_REASON_CHARACTERS = 500
OUT_OF_CREDIT = frozenset(
    {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "credit_balance_too_low"}
)
CREDIT_WORDS = "credit balance is too low"
"""What Anthropic says, with 400, where an account has nothing left."""

BAD_KEYS = frozenset({"API_KEY_INVALID", "FAILED_PRECONDITION"})
"""What Google says, with 400, of a wrong key and of an account that may not use its API from where it is."""

OVERLOADED = 529
"""The status by which Anthropic says that its service is overloaded."""

STATUSES = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""The status of an error that comes within a stream, by its type, as Anthropic states them."""


def make_error(
    status: int, headers: Mapping[str, str], raw: bytes, where: dict[str, Json], key: str | None = None
) -> GridError:
    """The error that the answer `raw` with `status` stands for; `key` is blotted out of the endpoint's own
    words.
    """
    reason, code, param, told = _words(raw, key)
    details: dict[str, Any] = {**where, "status": status, "reason": reason or f"HTTP {status}"}
    if code:
        details["endpoint_code"] = code
    if param:
        details["param"] = param
    after = parse_retry_delay(headers, told) if status == 429 else parse_retry_delay(_plain(headers), told)
    if after is not None:
        details["retry_after"] = after
    if status == 403 and _flagged(raw):
        return StageError(f"The endpoint's moderation refused the request: {details['reason']}", details)
    if status in {401, 403} or (status == 400 and code in BAD_KEYS):
        details |= {"state": "key refused", "fix": "give the seat a valid key"}
        return SeatDegraded("The endpoint refused the key", details)
    spent = (status == 429 and code in OUT_OF_CREDIT) or (status == 400 and CREDIT_WORDS in reason)
    if status == 402 or spent:
        details |= {"state": "no credit", "fix": "top the account up"}
        return SeatDegraded("The endpoint's credit is used up", details)
    if 300 <= status < 400:
        details["fix"] = "give the seat the URL it redirects to"
        return SeatDegraded("The endpoint redirects, which a key must not follow", details)
    if status == 429:
        return SeatRateLimited("The endpoint's rate limit is reached", details)
    if status == OVERLOADED:
        details["state"] = "overloaded"
    if status == 408 or not 400 <= status < 500:
        return SeatUnavailable(f"The endpoint answered with HTTP {status}", details)
    return StageError(f"The endpoint refused the request: {details['reason']}", details)


def find_error(event: dict[str, Json], key: str | None = None) -> GridError | None:
    """The error that an event of a stream, or an answer with status 200, carries, or None:
    `{"error": {"message", "code" or "type"}}`.
    """
    if not event.get("error"):
        return None
    error = event["error"]
    status = error.get("code") if isinstance(error, dict) else None
    if isinstance(status, str) and status.isdigit():
        status = int(status)
    if not isinstance(status, int) or not 400 <= status < 600:
        kinds = (error.get("type"), error.get("code")) if isinstance(error, dict) else ()
        told = next((kind for kind in kinds if isinstance(kind, str) and kind in STATUSES), "")
        status = 429 if "rate_limit_exceeded" in kinds else STATUSES.get(told, 500)
        if any(isinstance(kind, str) and kind in OUT_OF_CREDIT for kind in kinds):
            status = 402
    return make_error(status, {}, json.dumps(event).encode(), {}, key)


def _flagged(raw: bytes) -> bool:
    """Whether the endpoint's moderation objects to the input, as OpenRouter says in `metadata`."""
    try:
        told = json.loads(raw)["error"]["metadata"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return False
    return isinstance(told, dict) and ("flagged_input" in told or "reasons" in told)


def _plain(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Without the limits' own times: only at a 429 do these say when to come again."""
    return {name: headers[name] for name in ("retry-after", "retry-after-ms") if name in headers}


def _words(raw: bytes, key: str | None) -> tuple[str, str, str, Json]:
    """The endpoint's own message, code, name of the field that is wrong, and details: `{"error": {"message",
    "code", "param"}}`, Google's `{"error": {"message", "status", "details"}}`, `{"error": text}`,
    `{"message"}`, text.
    """
    text = raw.decode("utf-8", "replace")
    code = param = ""
    told: Json = None
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        body = None
    if isinstance(body, list) and body:
        body = body[0]  # Google's, where a stream was to begin
    if isinstance(body, dict):
        error = body.get("error", body)
        if isinstance(error, dict):
            told = error.get("details")
            code = _google_code(error, told) or str(error.get("code") or error.get("type") or "")
            param = str(error.get("param") or "")
            text = str(error.get("message") or error.get("detail") or text)
        else:
            text = str(error)
    elif text.lstrip().startswith("<"):
        text = ""  # a proxy's HTML page says nothing that the status does not
    if key:
        text, param = text.replace(key, "***"), param.replace(key, "***")
    return text[:MAX_REASON_CHARACTERS], code, param[:MAX_REASON_CHARACTERS], told


def _google_code(error: dict[str, Json], details: Json) -> str:
    """The reason in Google's details, else its status; its `code` is that of HTTP."""
    if not isinstance(error.get("status"), str):
        return ""
    listed = details if isinstance(details, list) else ()
    reasons = (each.get("reason") for each in listed if isinstance(each, dict))
    return next((reason for reason in reasons if isinstance(reason, str)), str(error["status"]))
