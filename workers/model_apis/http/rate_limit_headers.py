"""Parse when to retry an endpoint, from its response headers and error details.

| source | endpoints |
|---|---|
| `retry-after-ms`, `retry-after` | most, as in RFC 9110 |
| `google.rpc.RetryInfo` in the error details | Google |
| `anthropic-ratelimit-<limit>-reset`, a time, with `…-remaining` | Anthropic |
| `anthropic-ratelimit-unified-reset`, seconds since 1970 | Anthropic's subscriptions |
| `x-ratelimit-reset-<limit>`, `6m0s`, with `x-ratelimit-remaining-<limit>` | OpenAI, Azure, Groq, xAI |
| `x-ratelimit-reset`, `ratelimit-reset`: seconds, or a time in s or ms since 1970 | OpenRouter, Mistral |

The first row that an endpoint states applies. Of several limits, the last reset of the exhausted ones
applies, or the first reset of all if none is exhausted.
"""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Mapping

from gridq.protocol.durations import parse_duration
from gridq.protocol.models import Json
from gridq.stages.http import parse_date, parse_retry_after

_MIN_MILLISECONDS = 10**11
"""A larger number is a Unix time in milliseconds: seconds stay below it for three thousand years."""

_MIN_UNIX_SECONDS = 10**8
"""A smaller number is a delay, not a time."""


def parse_retry_delay(headers: Mapping[str, str], details: Json = None) -> float | None:
    """Return the seconds until the endpoint may be retried, None if it does not say.

    Header names are in lower case. `details` are those of Google's error.
    """
    millis = _parse_number(headers.get("retry-after-ms", ""))
    if millis is not None:
        return millis / 1000
    delay = parse_retry_after(headers.get("retry-after", ""))
    if delay is None:
        delay = _parse_google_delay(details)
    return delay if delay is not None else _parse_reset(headers)


def _parse_google_delay(details: Json) -> float | None:
    for each in details if isinstance(details, list) else ():
        if isinstance(each, dict) and str(each.get("@type", "")).endswith("google.rpc.RetryInfo"):
            return parse_duration(str(each.get("retryDelay", "")))
    return None


def _parse_reset(headers: Mapping[str, str]) -> float | None:
    now = _read_clock(headers)
    limits: list[tuple[bool, float]] = []
    for name, text in headers.items():
        until = remaining = None
        if name.startswith("anthropic-ratelimit-") and name.endswith("-reset"):
            until = _parse_reset_time(text, now)
            remaining = headers.get(name.removesuffix("reset") + "remaining")
        elif name.startswith("x-ratelimit-reset-"):
            until = parse_duration(text)
            remaining = headers.get(name.replace("reset", "remaining", 1))
        elif name in ("x-ratelimit-reset", "ratelimit-reset"):
            until = _parse_reset_time(text, now)
            remaining = headers.get(name.replace("reset", "remaining", 1))
        if until is not None:
            limits.append((_parse_number(remaining or "") == 0, until))
    exhausted = [until for is_exhausted, until in limits if is_exhausted]
    return max(exhausted) if exhausted else min((until for _, until in limits), default=None)


def _read_clock(headers: Mapping[str, str]) -> float:
    """Return the endpoint's own time, to which its reset times refer, else this machine's."""
    try:
        return parse_date(headers.get("date", ""))
    except (ValueError, OverflowError):
        return time.time()


def _parse_reset_time(text: str, now: float) -> float | None:
    """Return the seconds from `now` to a time in RFC 3339, Unix seconds or milliseconds, or plain seconds."""
    number = _parse_number(text)
    if number is not None:
        if number >= _MIN_MILLISECONDS:
            number /= 1000
        return max(0.0, number - now) if number >= _MIN_UNIX_SECONDS else number
    try:
        reset = datetime.datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    reset = reset if reset.tzinfo is not None else reset.replace(tzinfo=datetime.UTC)
    return max(0.0, reset.timestamp() - now)


def _parse_number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d{1,15}(\.\d{1,9})?", text.strip()) else None
