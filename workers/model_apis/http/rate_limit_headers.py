"""When an endpoint that refused for now may be asked again, as it says itself.

| where | who |
|---|---|
| `retry-after-ms`, `retry-after` | most; RFC 9110 |
| `google.rpc.RetryInfo` in the error's details | Google |
| `anthropic-ratelimit-<limit>-reset`, a time, beside `…-remaining` | Anthropic |
| `anthropic-ratelimit-unified-reset`, seconds since 1970 | Anthropic's subscriptions |
| `x-ratelimit-reset-<limit>`, `6m0s`, beside `x-ratelimit-remaining-<limit>` | OpenAI, Azure, Groq, xAI |
| `x-ratelimit-reset`, `ratelimit-reset`: seconds, or a time in s or ms since 1970 | OpenRouter, Mistral |

What is stated first in this table counts. Of several limits those count that have nothing left, the last of
them; where none says so, the first that turns.
"""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Iterable, Mapping

from gridq.protocol.models import Json
from gridq.stages.http import parse_date, parse_retry_after

SPANS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_MILLISECONDS = 10**11
"""A number of seconds since 1970 stays below it for three thousand years."""

_EPOCH = 10**8


def parse_retry_delay(headers: Mapping[str, str], details: Json = None) -> float | None:
    """Seconds until the endpoint may be asked again; None where it does not say. Names in lower case;
    `details` are those of Google's error.
    """
    millis = _number(headers.get("retry-after-ms", ""))
    if millis is not None:
        return millis / 1000
    told = parse_retry_after(headers.get("retry-after", ""))
    if told is None:
        told = _delay(details)
    return told if told is not None else _reset(headers)


def parse_span(text: str) -> float | None:
    """Seconds of `1s`, `6m0s`, `2m59.56s`, `88ms`, or a bare number of them; None for what is no span."""
    text = text.strip().lower()
    number = _number(text)
    if number is not None:
        return number
    if not text or _SPAN.sub("", text):
        return None
    return sum(float(amount) * SPANS[unit] for amount, unit in _SPAN.findall(text))


def _delay(details: Json) -> float | None:
    for each in details if isinstance(details, list) else ():
        if isinstance(each, dict) and str(each.get("@type", "")).endswith("google.rpc.RetryInfo"):
            return parse_span(str(each.get("retryDelay", "")))
    return None


def _reset(headers: Mapping[str, str]) -> float | None:
    now = _now(headers)
    limits: list[tuple[bool, float]] = []
    for name, text in headers.items():
        until = remaining = None
        if name.startswith("anthropic-ratelimit-") and name.endswith("-reset"):
            until = _at(text, now)
            remaining = headers.get(name.removesuffix("reset") + "remaining")
        elif name.startswith("x-ratelimit-reset-"):
            until = parse_span(text)
            remaining = headers.get(name.replace("reset", "remaining", 1))
        elif name in ("x-ratelimit-reset", "ratelimit-reset"):
            until = _at(text, now)
            remaining = headers.get(name.replace("reset", "remaining", 1))
        if until is not None:
            limits.append((_number(remaining or "") == 0, until))
    spent = [until for empty, until in limits if empty]
    return max(spent) if spent else _least(until for _, until in limits)


def _least(numbers: Iterable[float]) -> float | None:
    return min(numbers, default=None)


def _now(headers: Mapping[str, str]) -> float:
    """The endpoint's own clock, which its times are by; this machine's where it does not say."""
    try:
        return parse_date(headers.get("date", ""))
    except (ValueError, OverflowError):
        return time.time()


def _at(text: str, now: float) -> float | None:
    """Seconds from `now` to a time: RFC 3339, seconds or milliseconds since 1970, or just seconds."""
    number = _number(text)
    if number is not None:
        if number >= _MILLISECONDS:
            number /= 1000
        return max(0.0, number - now) if number >= _EPOCH else number
    try:
        told = datetime.datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    told = told if told.tzinfo is not None else told.replace(tzinfo=datetime.UTC)
    return max(0.0, told.timestamp() - now)


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d{1,15}(\.\d{1,9})?", text.strip()) else None
