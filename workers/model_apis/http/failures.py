"""Translate an endpoint's error responses to the grid's errors. They say what is to blame.

| the endpoint's response | error |
|---|---|
| 401, 402, 407, a redirect; a 403 or another that names the key, the account or its credit | SeatDegraded |
| 429 | SeatRateLimited, of one model if it says so; SeatDegraded if the credit is used up |
| 408, 5xx, 529, anything but 4xx | SeatUnavailable |
| 403, 404, 410 or another that names the model; 404 or 405 for the path itself | ModelUnavailable |
| any that says that an engine could not load the model, or that its process ended | ModelUnavailable |
| 403 of a moderation; 403 or 404 that names a file or the like of the request | StageError |
| 400 and the others of REQUEST_STATUSES | StageError, with the endpoint's own message |
| any other 4xx: a 403 or 404 that does not say why, 409, 425 | RequestRefused |

StageError ends the stage. All others send it to another seat. SeatDegraded lets the seat cool down,
ModelUnavailable and the rate limit of a model only this model at this seat, RequestRefused the same after
several requests in a row. Nothing in a 529, or in Anthropic's 429, says which models it is about: both blame
the seat.

The messages are those of OpenAI, Azure, Anthropic, Google, xAI, Groq, Mistral, DeepSeek, OpenRouter, vLLM,
llama.cpp, Ollama, SGLang, LM Studio and TGI, as their documents and public reports quote them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from gridq.errors import (
    GridError,
    ModelUnavailable,
    RequestRefused,
    SeatDegraded,
    SeatRateLimited,
    SeatUnavailable,
    StageError,
)
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
        *("API_KEY_SERVICE_BLOCKED", "API_KEY_HTTP_REFERRER_BLOCKED", "API_KEY_IP_ADDRESS_BLOCKED"),
        *("SERVICE_DISABLED", "CONSUMER_INVALID", "CONSUMER_SUSPENDED", "USER_PROJECT_DENIED"),
        *("invalid_api_key", "authentication_error", "invalid_authentication", "account_deactivated"),
        *("organization_restricted", "unsupported_country_region_territory"),
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
    r"|maximum context length|exceeds? the (?:(?:available|model's) )?context|longer than the model's context"
    r"|loaded with context length of only \d+|`?inputs`? must have less than \d+ tokens|`inputs` tokens \+"
    r"|\d+ tokens\) is larger than the max context size|prompt is longer than the context length",
    re.IGNORECASE,
)
"""How endpoints without that code say the same: Anthropic, Google, vLLM, llama.cpp, Ollama, SGLang and LM
Studio with status 400, TGI with 422.
"""

BATCH_MESSAGE = re.compile(r"input \(\d+ tokens\) is too large to process", re.IGNORECASE)
"""What llama.cpp says, with status 500, of a text for embeddings that is longer than its batch."""

LOAD_MESSAGE = re.compile(
    r"\W*(?:model name=\S{1,200} failed to load|failed to load model\b|unable to load model\b"
    r"|model requires more (?:system )?memory"
    r"|(?:llama-server|llama runner) process (?:has terminated|no longer))",
    re.IGNORECASE,
)
"""The start of a message about one model of an engine, which cannot be loaded or whose process has ended:
of llama-server as a router, Ollama and LM Studio. Their other models go on.
"""

ACCOUNT_MESSAGE = re.compile(
    r"\b(?:account|api.?key|token|organi[sz]ation|service|workspace)\b.{0,40}?"
    r"\b(?:suspended|disabled|deactivated|revoked|banned|expired|scopes?)\b",
    re.IGNORECASE,
)
"""What a 403 says of the account or the rights of the key as a whole."""

CREDIT_MESSAGE = re.compile(r"\bcredits?\b|\bbilling\b|\bbalance\b|key limit exceeded", re.IGNORECASE)
"""What a 403 says of an account without credit (xAI), or a key whose limit is used up (OpenRouter)."""

MODERATION_MESSAGE = re.compile(
    r"\b(?:content|prompt|request|input|message|image)s?\b.{0,40}?"
    r"\b(?:violates?|flagged|moderation|guidelines|content (?:policy|filter)|usage policy)\b|safety_check",
    re.IGNORECASE,
)
"""What a 403 says of a request that a moderation refused. xAI's names the check: `SAFETY_CHECK_TYPE_…`."""

MODEL_CODES = frozenset(
    {
        *("model_not_found", "model_not_available", "model_not_allowed", "invalid_model", "unknown_model"),
        *("model_decommissioned", "model_terms_required", "DeploymentNotFound"),
        *("model_permission_blocked_project", "model_permission_blocked_org"),
    }
)
"""Codes for a model that the endpoint does not have, or not for this key, whatever the status."""

INVALID_MODEL_MESSAGE = re.compile(
    r"\W*(?:(?:error|bad request)\W+)?(?:model not (?:exist|found)|(?:invalid|unknown) model\b"
    r"|(?:the )?model \S{1,200} (?:does not exist|is not found|not found)|\S{1,200} is not a valid model id)",
    re.IGNORECASE,
)
"""The start of a message about such a model. Some endpoints send it with 400. A request that the endpoint
quotes stands further on.
"""

QUOTED_TEXT = re.compile(r"(?<!\w)(['\"`]).*\1(?!\w)|\bhttps?://\S+", re.DOTALL)
"""What a message quotes, from the first mark of a sort to the last. A request may have chosen it, so it
blames nobody.
"""

MODEL_WORD = re.compile(r"(?<![\w./-])(?:models?|deployment)(?![\w-])|\bendpoints found for\b", re.IGNORECASE)
"""What a 403 or 404 names that is about the model."""

UNFIT_MESSAGE = re.compile(
    r"not a chat model|\bv1/(?:chat/completions|completions|responses|embeddings)\b"
    r"|endpoints (?:found|available) (?:that|matching|with)|selected model",
    re.IGNORECASE,
)
"""What a 404 says of a model that exists, and does not take this kind of request: another API (OpenAI), tools
or images, or a provider that the request names (OpenRouter).
"""

PATH_MESSAGE = re.compile(
    r"\s*$|(?:404 )?(?:(?:page|file|path|route|url|endpoint|resource) )?not[ _]found\.?\s*$|no route\b"
    r"|(?:invalid|unknown|unrecognized|unsupported) (?:request )?(?:url|path|route|endpoint)\b|cannot post\b"
    r"|unexpected endpoint\b",
    re.IGNORECASE,
)
"""What a 404 says of a path that the endpoint does not have: nothing (as a page in HTML), or a few words."""

RESOURCE_WORD = re.compile(
    r"\b(?:files?|items?|responses?|conversations?|containers?|assistants?|threads?|vector.?stores?|batch(?:es)?"
    r"|prompts?|cached.?contents?|images?|documents?|attachments?)\b",
    re.IGNORECASE,
)
"""What a 403 or 404 names that the request itself refers to."""

REQUEST_STATUSES = frozenset({400, 406, 411, 413, 414, 415, 416, 417, 422, 424, 428, 431, 451})
"""Statuses for which the request is at fault, unless the response names the key or the model. 424 is OpenAI's
if the request's own MCP server cannot be reached.
"""

MAIN_PATH = re.compile(r"(?:^|/)(?:chat/completions|messages)$|:(?:stream)?generatecontent", re.IGNORECASE)
"""The paths that each seat of an API format has. One that lacks another path can still serve its models."""

FIELD_MESSAGE = re.compile(r"([a-z_]+(?:\.\w+)*): ")
"""How Anthropic's messages begin that name a field: `messages.0.content.1: …`."""

MODEL_LIMIT_MESSAGE = re.compile(
    r"\W*(?:rate limit reached|request too large) for (?:model )?\S{1,200} in (?:organi[sz]ation|project)\b"
    r"|\W*too many (?:requests|tokens) for team \S{1,200} and model\b",
    re.IGNORECASE,
)
"""The start of a 429's message about the limit of one model: of OpenAI and Groq, and of xAI. A request that
the endpoint quotes stands further on.
"""

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
    "external_connector_error": 424,
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
    status: int,
    headers: Mapping[str, str],
    raw: bytes,
    details: dict[str, Json],
    keys: Sequence[str] = (),
    *,
    path: str = "",
    usual_path: str = "/v1",
) -> GridError:
    """Return the error for a response with `status` and body `raw` to a request to `path`.

    `details` are added to the error's own. What the endpoint says of the owner's `keys` and account is
    masked. `usual_path` is the end of the vendor's own URL.
    """
    reason, code, kind, param, error_details = _parse_error(raw, keys)
    if status == 500 and BATCH_MESSAGE.match(reason):
        status, code = 400, CONTEXT_LENGTH_EXCEEDED
    elif status in {400, 422} and CONTEXT_MESSAGE.search(reason):
        code = CONTEXT_LENGTH_EXCEEDED
    details = {**details, "status": status, "reason": reason or f"HTTP {status}"}
    own_words = QUOTED_TEXT.sub("", reason)
    stated = {"endpoint_code": code, "endpoint_type": kind, "param": param}
    details |= {name: text for name, text in stated.items() if text}
    code = code or kind
    delay = parse_retry_delay(headers if status == 429 else _select_retry_headers(headers), error_details)
    if delay is not None:
        details["retry_after"] = delay
    if status == 403 and (_is_moderated(raw) or MODERATION_MESSAGE.search(own_words)):
        return StageError(f"The endpoint's moderation rejected the request: {details['reason']}", details)
    if _names_no_credit(status, code, own_words):
        details |= {"state": "no credit", "fix": "top up the account"}
        return SeatDegraded("The account at the endpoint has no credit left", details)
    if _names_key(status, code, reason, own_words):
        details |= {"state": "key refused", "fix": "give the seat a valid key"}
        return SeatDegraded("The endpoint rejected the key", details)
    if 300 <= status < 400:
        details["fix"] = "set the seat's url to the one it redirects to"
        return SeatDegraded("The endpoint redirects, and gridq sends no key to another URL", details)
    if status == 429:
        if MODEL_LIMIT_MESSAGE.match(reason) or _names_model_quota(error_details):
            details["scope"] = "model"
            return SeatRateLimited("The endpoint's rate limit for this model is reached", details)
        return SeatRateLimited("The endpoint's rate limit is reached", details)
    if LOAD_MESSAGE.match(reason):
        details["fix"] = (
            "read the engine's log: the file may be damaged, too large, or too new for the engine"
        )
        return ModelUnavailable("The engine cannot load this model", details)
    if status == OVERLOADED:
        details["state"] = "overloaded"
    if status == 408 or not 400 <= status < 500:
        return SeatUnavailable(f"The endpoint answered with HTTP {status}", details)
    if status == 405 or (status == 404 and PATH_MESSAGE.match(reason)):
        details["fix"] = f"check the url: it usually ends in {usual_path}"
        if not MAIN_PATH.search(path):  # the models may well work by the main one
            return RequestRefused("The endpoint does not have this path", details)
        return ModelUnavailable("The endpoint does not have this path", details)
    if _names_model(status, code, param, reason, own_words):
        details["fix"] = "correct the name of the model in the seat's table, or give its key access to it"
        return ModelUnavailable("The endpoint does not serve this model", details)
    names_resource = RESOURCE_WORD.search(own_words) and not UNFIT_MESSAGE.search(reason)
    if status in REQUEST_STATUSES or (status in {403, 404} and names_resource):
        return StageError(f"The endpoint rejected the request: {details['reason']}", details)
    return RequestRefused(f"The endpoint refused the request with HTTP {status}", details)


def _names_no_credit(status: int, code: str, reason: str) -> bool:
    if status == 402 or (status == 429 and code in NO_CREDIT_CODES):
        return True
    if status == 403:
        return code == "BILLING_DISABLED" or bool(CREDIT_MESSAGE.search(reason))
    return status == 400 and LOW_CREDIT_MESSAGE in reason


def _names_key(status: int, code: str, reason: str, own_words: str) -> bool:
    if status in {401, 407} or code in INVALID_KEY_CODES or INVALID_KEY_MESSAGE.match(reason):
        return True
    return status == 403 and bool(ACCOUNT_MESSAGE.search(own_words))


def _names_model(status: int, code: str, param: str, reason: str, own_words: str) -> bool:
    """Return whether a 4xx says that the endpoint does not have the model, or not for this key."""
    if UNFIT_MESSAGE.search(reason):
        return False
    if code in MODEL_CODES or status == 410 or INVALID_MODEL_MESSAGE.match(reason):
        return True
    return status in {403, 404} and (param == "model" or bool(MODEL_WORD.search(own_words)))


def _names_model_quota(details: Json) -> bool:
    """Return whether all quotas that a `google.rpc.QuotaFailure` names are those of one model."""
    items = details if isinstance(details, list) else []
    failures = [each for each in items if isinstance(each, dict) and isinstance(each.get("violations"), list)]
    quotas: list[Json] = [quota for failure in failures for quota in failure["violations"]]
    return bool(quotas) and all(
        isinstance(quota, dict)
        and (_names_dimension(quota.get("quotaDimensions")) or "PerModel" in str(quota.get("quotaId")))
        for quota in quotas
    )


def _names_dimension(dimensions: Json) -> bool:
    return isinstance(dimensions, dict) and bool(dimensions.get("model"))


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
