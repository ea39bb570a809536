"""Parse when a rate limit ends, from the message of a program.

It reads Unix seconds (`limit reached|1753880400`, `resets_at: 1777936568`), durations (`try again in 2 days
17 hours`, `reset after 3h22m10s`, `retry in 32.4s`), times of day (`resets 4:10pm (Europe/Berlin)`, `try
again at 12:16 PM`), days (`resets Oct 9, 3pm`, `Oct 9th, 2025 3:04 PM`, `resets tomorrow at 3pm`, `on
11/17/2025`) and ISO 8601. A time without a time zone has that of `now`. A time more than MAX_AHEAD in the
future counts as a mistake.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta, tzinfo
from datetime import time as clocktime
from zoneinfo import ZoneInfo

from gridq.protocol.durations import UNIT_SECONDS

MAX_AHEAD = timedelta(days=32)

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")

_EPOCH = re.compile(r"(?:\||resets?_?at\W{1,5})(1\d{9})(?:\d{3})?\b", re.IGNORECASE)
_SECONDS = re.compile(
    r"(?:resets_in_seconds|retry.?after)\W{1,5}(\d{1,8}(?:\.\d+)?)(?!\s*[a-z])", re.IGNORECASE
)
_ISO = re.compile(r"\b(\d{4}-\d\d-\d\dT\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)")
_SPAN = re.compile(
    r"\b(?:in|after)\s+((?:(?:about|less than)\s+)?"
    r"\d+(?:\.\d+)?\s*(?:d|h|m|s)[a-z]*(?:[\s,]*(?:and\s+)?\d+(?:\.\d+)?\s*(?:d|h|m|s)[a-z]*)*)",
    re.IGNORECASE,
)
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|d|h|m|s)", re.IGNORECASE)
_LEAD = re.compile(r"(?:\breset(?:s|ting)?|\btry again|\bavailable again|\buntil|\bretry)\b", re.IGNORECASE)
_CLOCK = re.compile(
    r"\b(\d{1,2})(?::(\d\d))?(?::\d\d)?\s*([ap])\.?m\b|\b([01]?\d|2[0-3]):([0-5]\d)\b", re.IGNORECASE
)
_DATE = re.compile(
    rf"\b({'|'.join(MONTHS)})[a-z]*\.?\s+(\d{{1,2}})(?:st|nd|rd|th)?\b(?:,?\s+(\d{{4}}))?", re.IGNORECASE
)
_SLASHED = re.compile(r"\b(\d{1,2})/(\d{1,2})/(\d{4})\b")
_DAY = re.compile(rf"\b({'|'.join(DAYS)})(?:day|sday|nesday|rsday|urday)?\b", re.IGNORECASE)
_ZONE = re.compile(r"\(([A-Za-z]+(?:/[A-Za-z_+\-0-9]+)*)\)|\b(UTC|GMT)\b")


def parse_reset_time(text: str, now: datetime | None = None) -> float | None:
    """Return the Unix time at which the limit in `text` ends, None if it states no time.

    `now` has a time zone, which also applies to times without one. It defaults to this machine's time.
    """
    now = now or datetime.now().astimezone()
    reset = _find_time(text, now)
    if reset is None or not timedelta(0) <= reset - now <= MAX_AHEAD:
        return None
    return reset.timestamp()


def _find_time(text: str, now: datetime) -> datetime | None:
    match = _EPOCH.search(text)
    if match:
        return datetime.fromtimestamp(int(match[1]), UTC)
    match = _SECONDS.search(text)
    if match:
        return now + timedelta(seconds=float(match[1]))
    match = _SPAN.search(text)
    if match:
        seconds = sum(float(amount) * UNIT_SECONDS[unit.lower()] for amount, unit in _PART.findall(match[1]))
        return now + timedelta(seconds=seconds) if seconds < MAX_AHEAD.total_seconds() * 2 else None
    lead = _LEAD.search(text)
    return _parse_time(text[lead.end() : lead.end() + 120], now) if lead else None


def _parse_time(text: str, now: datetime) -> datetime | None:
    """Parse the time of day at the start of `text`, with or without a day."""
    here = now.astimezone(_find_zone(text) or now.tzinfo)
    match = _ISO.search(text)
    if match:
        try:
            iso = datetime.fromisoformat(match[1])
        except ValueError:
            return None
        return iso if iso.tzinfo else iso.replace(tzinfo=here.tzinfo)
    clock = _CLOCK.search(text)
    try:
        day = _find_day(text, here)
        if clock is None:
            return None if day is None else datetime.combine(day, clocktime(), here.tzinfo)
        hour, minute = int(clock[1] or clock[4]), int(clock[2] or clock[5] or 0)
        if clock[3]:
            hour = hour % 12 + (12 if clock[3].lower() == "p" else 0)
        at = datetime.combine(day or here.date(), clocktime(hour, minute), here.tzinfo)
    except ValueError:  # no such day, no such time
        return None
    return at + timedelta(days=1) if at < here and day is None else at


def _find_day(text: str, here: datetime) -> date | None:
    """Return the day that `text` names, None if it names none. Raises ValueError for an impossible day."""
    match = _SLASHED.search(text)
    if match:
        return date(int(match[3]), int(match[1]), int(match[2]))
    match = _DATE.search(text)
    if match:
        month, day = MONTHS.index(match[1].lower()) + 1, int(match[2])
        year = int(match[3]) if match[3] else here.year + ((month, day) < (here.month, here.day))
        return date(year, month, day)
    if re.search(r"\btomorrow\b", text, re.IGNORECASE):
        return here.date() + timedelta(days=1)
    match = _DAY.search(text)
    if match:
        ahead = (DAYS.index(match[1].lower()) - here.weekday()) % 7
        return here.date() + timedelta(days=ahead or 7)
    return None


def _find_zone(text: str) -> tzinfo | None:
    match = _ZONE.search(text)
    if match is None:
        return None
    try:
        return ZoneInfo(match[1] or match[2])
    except (ValueError, OSError, LookupError):  # the system does not know the zone
        return None
