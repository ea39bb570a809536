"""Translate an endpoint's error responses to the grid's errors.

| status | error | consequence |
|---|---|---|
| 401, 403, 402, a redirect | SeatDegraded | the seat cools down: its key, credit or URL is wrong |
| another status for an invalid key or (Anthropic) an account without credit | SeatDegraded | the same |
| 429 | SeatRateLimited, with `retry_after`; SeatDegraded if the credit is used up | another seat |
| 408, 5xx, 529, anything but 4xx | SeatUnavailable | another seat |
| 403 from a moderation (OpenRouter) | StageError | the stage fails: the request is at fault, not the key |
| any other 4xx | StageError with the endpoint's own message | the stage fails |
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from gridq.errors import GridError, SeatDegraded, SeatRateLimited, SeatUnavailable, StageError
from gridq.protocol.masking import mask_account
from gridq.protocol.models import Json
from workers.model_apis.api_request import CONTEXT_LENGTH_EXCEEDED
from workers.model_apis.http.rate_limit_headers import parse_retry_delay

MAX_REASON_CHARACTERS = 500
NO_CREDIT_CODES = frozenset(
    {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "credit_balance_too_low"}
)
LOW_CREDIT_MESSAGE = "credit balance is too low"
"""Anthropic's message, with status 400, for an account without credit."""

INVALID_KEY_CODES = frozenset(
    {
        *("API_KEY_INVALID", "FAILED_PRECONDITION"),  # of Google, which sends 400
        *("invalid_api_key", "authentication_error", "invalid_authentication", "account_deactivated"),
    }
)
"""Codes for an invalid key, or an account without access, whatever the status."""

INVALID_KEY_MESSAGE = re.compile(
    r"\W*(?:(?:error|bad request|unauthori[sz]ed)\W+)?(?:incorrect|invalid|wrong|missing) (?:x-)?api.?key",
    re.IGNORECASE,
)
"""The start of a message about an invalid key. Some endpoints (xAI) send it with 400. A request that the
endpoint quotes stands further on, so it cannot pass for one.
"""

CONTEXT_MESSAGE = re.compile(
    r"prompt is too long: \d+ tokens|input token count .{0,40}exceeds the maximum number of tokens"
    r"|maximum context length|exceeds? the (?:available|model's) context",
    re.IGNORECASE,
)
"""How endpoints without that code (Anthropic, Google, vLLM, llama.cpp) say the same, with status 400."""

FIELD_MESSAGE = re.compile(r"([a-z_]+(?:\.\w+)*): ")
"""How Anthropic's messages begin that name a field: `messages.0.content.1: …`."""

OVERLOADED = 529
"""Anthropic's status for an overloaded service."""

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
    **dict.fromkeys(
        (
            *("context_length_exceeded", "invalid_prompt", "bio_policy", "misalignment_policy_violation"),
            *("data_residency_mismatch", "invalid_image", "invalid_image_format", "invalid_base64_image"),
            *("invalid_image_url", "invalid_image_mode", "unsupported_image_media_type", "image_too_large"),
            *("image_too_small", "image_parse_error", "image_content_policy_violation"),
            *("image_file_too_large", "empty_image_file", "failed_to_download_image", "image_file_not_found"),
        ),
        400,
    ),
}
"""The HTTP status of an error within a stream, by Anthropic's error type or the code of Responses."""


def make_error(
    status: int, headers: Mapping[str, str], raw: bytes, details: dict[str, Json], keys: Sequence[str] = ()
) -> GridError:
    """Return the error for a response with `status` and body `raw`.

    `details` are added to the error's own. What the endpoint says of the owner's `keys` and account is
    masked.
    """
    reason, code, kind, param, error_details = _parse_error(raw, keys)
    if status == 400 and CONTEXT_MESSAGE.search(reason):
        code = CONTEXT_LENGTH_EXCEEDED
    details = {**details, "status": status, "reason": reason or f"HTTP {status}"}
    stated = {"endpoint_code": code, "endpoint_type": kind, "param": param}
    details |= {name: text for name, text in stated.items() if text}
    code = code or kind
    delay = parse_retry_delay(headers if status == 429 else _select_retry_headers(headers), error_details)
    if delay is not None:
        details["retry_after"] = delay
    if status == 403 and _is_moderated(raw):
        return StageError(f"The endpoint's moderation rejected the request: {details['reason']}", details)
    if status in {401, 403} or code in INVALID_KEY_CODES or INVALID_KEY_MESSAGE.match(reason):
        details |= {"state": "key refused", "fix": "give the seat a valid key"}
        return SeatDegraded("The endpoint rejected the key", details)
    no_credit = (status == 429 and code in NO_CREDIT_CODES) or (
        status == 400 and LOW_CREDIT_MESSAGE in reason
    )
    if status == 402 or no_credit:
        details |= {"state": "no credit", "fix": "top up the account"}
        return SeatDegraded("The account at the endpoint has no credit left", details)
    if 300 <= status < 400:
        details["fix"] = "set the seat's url to the one it redirects to"
        return SeatDegraded("The endpoint redirects, and gridq sends no key to another URL", details)
    if status == 429:
        return SeatRateLimited("The endpoint's rate limit is reached", details)
    if status == OVERLOADED:
        details["state"] = "overloaded"
    if status == 408 or not 400 <= status < 500:
        return SeatUnavailable(f"The endpoint answered with HTTP {status}", details)
    return StageError(f"The endpoint rejected the request: {details['reason']}", details)


def find_error(event: dict[str, Json], keys: Sequence[str] = ()) -> GridError | None:
    """Return the error that an event or an answer with status 200 reports, None if it reports none.

    It has the form `{"error": {"message", "code" or "type"}}`; in Responses also `{"type": "error",
    "message", "code"}`, or it stands in the response of `response.failed`.
    """
    if event.get("type") == "response.failed":
        response = event.get("response")
        error = (response.get("error") if isinstance(response, dict) else None) or "The response failed"
    elif event.get("type") == "error" and isinstance(event.get("message"), str) and not event.get("error"):
        error = {name: event.get(name) for name in ("message", "code", "param")}
    else:
        error = event.get("error")
    if not error:
        return None
    status = error.get("code") if isinstance(error, dict) else None
    if isinstance(status, str) and status.isdigit():
        status = int(status)
    if not isinstance(status, int) or not 400 <= status < 600:
        kinds = (error.get("type"), error.get("code")) if isinstance(error, dict) else ()
        known = next((kind for kind in kinds if isinstance(kind, str) and kind in STATUSES), "")
        status = 429 if "rate_limit_exceeded" in kinds else STATUSES.get(known, 500)
        if any(isinstance(kind, str) and kind in NO_CREDIT_CODES for kind in kinds):
            status = 402
    return make_error(status, {}, json.dumps({"error": error}).encode(), {}, keys)


def _is_moderated(raw: bytes) -> bool:
    """Return whether the endpoint's moderation rejected the input, as OpenRouter states in `metadata`."""
    try:
        metadata = json.loads(raw)["error"]["metadata"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return False
    return isinstance(metadata, dict) and ("flagged_input" in metadata or "reasons" in metadata)


def _select_retry_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Drop the reset times of rate limits, which only say when to retry if the status is 429."""
    return {name: headers[name] for name in ("retry-after", "retry-after-ms") if name in headers}


def _parse_error(raw: bytes, keys: Sequence[str]) -> tuple[str, str, str, str, Json]:
    """Return the endpoint's message, its code, its type, the name of the wrong field, and the details.

    Reads `{"error": {"message", "code", "param"}}`, Google's `{"error": {"message", "status", "details"}}`,
    `{"error": text}`, `{"message"}` and plain text. Anthropic's errors name a field in their message only.
    """
    text = raw.decode("utf-8", "replace")
    code = kind = param = ""
    details: Json = None
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        body = None
    if isinstance(body, list) and body:
        body = body[0]  # Google's form in place of a stream
    if isinstance(body, dict):
        error = body.get("error", body)
        if isinstance(error, dict):
            details = error.get("details")
            code = _find_google_code(error, details) or str(error.get("code") or "")
            kind = str(error.get("type") or "")
            param = str(error.get("param") or "")
            text = str(error.get("message") or error.get("detail") or json.dumps(body, ensure_ascii=False))
            if body.get("type") == "error" and kind == "invalid_request_error" and not param:
                found = FIELD_MESSAGE.match(text)
                param = found[1] if found else ""
        else:
            text = str(error)
    elif text.lstrip().startswith("<"):
        text = ""  # a proxy's HTML page adds nothing to the status
    words = [mask_account(each, keys)[:MAX_REASON_CHARACTERS] for each in (text, code, kind, param)]
    return words[0], words[1], words[2], words[3], details


def _find_google_code(error: dict[str, Json], details: Json) -> str:
    """Return the reason in Google's details, else its status. Its `code` is the HTTP status."""
    if not isinstance(error.get("status"), str):
        return ""
    items = details if isinstance(details, list) else ()
    reasons = (each.get("reason") for each in items if isinstance(each, dict))
    return next((reason for reason in reasons if isinstance(reason, str)), str(error["status"]))
