"""The stages that call other hosts: `http_get` and `remote_stage`."""

from __future__ import annotations

import asyncio
import email.utils
import json
import re
import ssl
import time
from datetime import UTC
from functools import cache
from typing import TYPE_CHECKING, NoReturn

from gridq.config.settings import settings
from gridq.errors import GridError, SeatUnavailable, StageError
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json
from gridq.stages.allowed_hosts import check_allowed, get_origin, parse_url, redact_url
from gridq.stages.coroutines import run_coroutine
from gridq.stages.pure import json_parsing
from gridq.stages.pure.bounds import make_input_error, make_too_large_error
from gridq.stages.pure.inputs import get_option, get_options, get_roots, get_text

if TYPE_CHECKING:
    import httpx

MAX_REDIRECTS = 10
REDIRECTS = (301, 302, 303, 307, 308)
KEEPS_METHOD = (307, 308)
MAX_REASON_CHARACTERS = 500
"""The characters of an error response that are kept as its reason."""

_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OWN_HEADERS = frozenset(
    ("connection", "content-length", "host", "te", "trailer", "transfer-encoding", "upgrade")
)


class HttpResponse:
    """A response with its whole body, which is within the limit."""

    def __init__(self, response: httpx.Response, body: bytes) -> None:
        self.status = response.status_code
        self.url = response.url
        self.headers = dict(response.headers.items())
        try:
            self.text = body.decode(response.charset_encoding or "utf-8", "replace")
        except LookupError:
            self.text = body.decode("utf-8", "replace")

    @property
    def reason(self) -> str:
        """The status and the beginning of the body."""
        return f"HTTP {self.status} {self.text[:MAX_REASON_CHARACTERS].strip()}".strip()


def http_get(value: Json, context: StageContext) -> Json:
    """GET `url` and return `{"status", "headers", "body"}`; redirects must lead to allowed hosts.

    Raises StageError for a 4xx status or an invalid URL, HostNotAllowed, and SeatUnavailable, so that the
    stage is tried again, for a 5xx or 429 status and if there is no answer.
    """
    options = get_options(value, ("headers",))
    answer = _request("GET", get_text(value, "url"), _parse_headers(options), None, context)
    if not 200 <= answer.status < 300:
        _raise_for_status(answer)
    return {"status": answer.status, "headers": answer.headers, "body": answer.text}


def remote_stage(value: Json, context: StageContext) -> Json:
    """POST `{"input": v}` to `url` and return `data.output` of the JSON answer.

    v is `input`, or the record without `url` and `headers`. Raises StageError for `{"ok": false}`, a status
    outside 2xx or an answer of another form, and SeatUnavailable if there is no answer.
    """
    names = ("url", "headers")
    options = get_options(value, names)
    headers = {"content-type": "application/json", "accept": "application/json", **_parse_headers(options)}
    body = json.dumps({"input": get_roots(value, names)[-1]}, ensure_ascii=False, separators=(",", ":"))
    answer = _request(
        "POST", get_option(options, "url", str), headers, body.encode("utf-8", "surrogatepass"), context
    )
    fault = f"The remote stage at {redact_url(answer.url)} failed"
    try:
        parsed = json_parsing.parse(answer.text)
    except StageError as exc:
        parsed, reason = None, exc.message
    else:
        reason = "the answer has no data.output"
    if isinstance(parsed, dict) and parsed.get("ok") is False:
        error = parsed.get("error")
        reason = error if isinstance(error, str) else json.dumps(error, ensure_ascii=False)
        raise StageError(
            f"{fault}: {reason[:MAX_REASON_CHARACTERS]}",
            {"reason": reason[:MAX_REASON_CHARACTERS], "status": answer.status},
        )
    if not 200 <= answer.status < 300:
        raise StageError(
            f"{fault} with HTTP status {answer.status}", {"reason": answer.reason, "status": answer.status}
        )
    data = parsed.get("data") if isinstance(parsed, dict) else None
    if not isinstance(data, dict) or "output" not in data:
        raise StageError(
            f"{fault}: {reason}", {"reason": reason, "expected": '{"ok": true, "data": {"output": …}}'}
        )
    return data["output"]


def _parse_headers(options: dict[str, Json]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, text in get_option(options, "headers", dict, {}).items():
        if not _HEADER_NAME.fullmatch(name) or name.lower() in _OWN_HEADERS:
            raise make_input_error(
                f"The header {name!r:.80} cannot be set",
                "the name of a header that the connection does not set itself",
            )
        if not isinstance(text, str) or not text.isascii() or not text.isprintable():
            raise make_input_error(
                f"The value of the header {name!r} cannot be sent", "printable ASCII characters"
            )
        headers[name.lower()] = text.strip()
    return headers


def _request(
    method: str, url: str, headers: dict[str, str], body: bytes | None, context: StageContext
) -> HttpResponse:
    import httpx

    seconds = settings().http_timeout
    if context.deadline is not None:
        seconds = max(0.001, min(seconds, context.deadline - time.monotonic()))
    target = parse_url(url)
    check_allowed(target)
    context.check()

    async def ask() -> HttpResponse:
        async with (
            asyncio.timeout(seconds),
            httpx.AsyncClient(verify=_get_tls_context(), timeout=seconds) as client,
        ):
            return await _follow_redirects(client, method, target, headers, body)

    try:
        return run_coroutine(ask(), context)
    except GridError:
        raise
    except TimeoutError:
        raise _make_unavailable_error(target, f"no answer within {seconds:g} s") from None
    except (httpx.TransportError, OSError) as exc:
        raise _make_unavailable_error(target, f"{type(exc).__name__}: {exc}") from None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as exc:
        raise StageError(f"The answer of {redact_url(target)} is invalid", {"reason": f"{exc}"}) from None


async def _follow_redirects(
    client: httpx.AsyncClient, method: str, url: httpx.URL, headers: dict[str, str], body: bytes | None
) -> HttpResponse:
    sent = {"accept-encoding": "identity", "user-agent": "gridq", **headers}
    for _ in range(MAX_REDIRECTS + 1):
        async with client.stream(method, url, headers=sent, content=body, follow_redirects=False) as response:
            location = response.headers.get("location")
            if response.status_code not in REDIRECTS or location is None:
                return HttpResponse(response, await _read_body(response))
            if method != "GET" and response.status_code not in KEEPS_METHOD:
                raise StageError(
                    f"{redact_url(url)} redirects a {method} with HTTP status {response.status_code}",
                    {"expected": "an answer, or a redirect by 307 or 308"},
                )
            target = parse_url(_join_url(url, location))
            check_allowed(target)
            if get_origin(target) != get_origin(url):
                # Headers for one host, such as a key, must not reach another.
                sent = {
                    name: text for name, text in sent.items() if name not in headers or name == "content-type"
                }
                client.cookies.clear()
            url = target
    raise StageError(
        f"{redact_url(url)} redirects more than {MAX_REDIRECTS} times", {"expected": "an answer"}
    )


def _join_url(url: httpx.URL, location: str) -> str:
    import httpx

    try:
        return str(url.join(location))
    except (httpx.InvalidURL, ValueError, UnicodeError):
        raise make_input_error(f"{redact_url(url)} redirects to an invalid URL", "a URL") from None


async def _read_body(response: httpx.Response) -> bytes:
    limit = settings().max_value
    stated = response.headers.get("content-length", "")
    size, pieces = int(stated) if stated.isdecimal() and len(stated) < 20 else 0, []
    if size > limit:
        raise make_too_large_error(limit, f"The body of {redact_url(response.url)}")
    size = 0
    async for piece in response.aiter_bytes():
        size += len(piece)
        if size > limit:
            raise make_too_large_error(limit, f"The body of {redact_url(response.url)}")
        pieces.append(piece)
    return b"".join(pieces)


def _raise_for_status(answer: HttpResponse) -> NoReturn:
    message = f"{redact_url(answer.url)} answered with HTTP status {answer.status}"
    details: dict[str, Json] = {"reason": answer.reason, "status": answer.status}
    if answer.status >= 500 or answer.status == 429:
        if (wait := parse_retry_after(answer.headers.get("retry-after", ""))) is not None:
            details["retry_after"] = wait
        raise SeatUnavailable(message, details)
    raise StageError(message, {**details, "expected": "a 2xx status"})


def parse_retry_after(text: str) -> float | None:
    """Return the seconds in a Retry-After header (RFC 9110, section 10.2.3), or None if it has none.

    The header has a number, which some servers write with a fraction, or a date.
    """
    if _SECONDS.fullmatch(text):
        return float(text)
    try:
        return max(0.0, parse_date(text) - time.time())
    except (ValueError, OverflowError):
        return None


def parse_date(text: str) -> float:
    """Return the instant of a date header in seconds since 1970; a date without a zone is in UTC.

    Raises ValueError or OverflowError if it is not a date.
    """
    date = email.utils.parsedate_to_datetime(text)
    return (date if date.tzinfo is not None else date.replace(tzinfo=UTC)).timestamp()


def _make_unavailable_error(url: httpx.URL, reason: str) -> SeatUnavailable:
    return SeatUnavailable(f"{redact_url(url)} cannot be reached: {reason}", {"reason": reason})


@cache
def _get_tls_context() -> ssl.SSLContext:
    """Return a context with the trusted certificates, which take longer to load than most calls."""
    import httpx

    return httpx.create_ssl_context()
