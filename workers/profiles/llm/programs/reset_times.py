"""When a limit ends, as the words of a program tell it.

Read are seconds since 1970 (`limit reached|1753880400`, `resets_at: 1777936568`), spans (`try again in 2 days
17 hours`, `reset after 3h22m10s`, `retry in 32.4s`), times of day (`resets 4:10pm (Europe/Berlin)`, `try
again at 12:16 PM`), days (`resets Oct 9, 3pm`, `Oct 9th, 2025 3:04 PM`, `resets tomorrow at 3pm`, `on
11/17/2025`) and ISO 8601. A time without a zone is this machine's. What lies more than LONGEST ahead is
taken for a mistake.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta, tzinfo
from datetime import time as clocktime
from zoneinfo import ZoneInfo

LONGEST = timedelta(days=32)

UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
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


def reset_at(text: str, now: datetime | None = None) -> float | None:
    """Seconds since 1970 at which the limit ends that `text` tells of; None where it tells no time.

    `now`: with a zone, which is then also that of a time without one.
    """
    now = now or datetime.now().astimezone()
    found = _found(text, now)
    if found is None or not timedelta(0) <= found - now <= LONGEST:
        return None
    return found.timestamp()


def _found(text: str, now: datetime) -> datetime | None:
    told = _EPOCH.search(text)
    if told:
        return datetime.fromtimestamp(int(told[1]), UTC)
    told = _SECONDS.search(text)
    if told:
        return now + timedelta(seconds=float(told[1]))
    told = _SPAN.search(text)
    if told:
        seconds = sum(
            float(amount) * (0.001 if unit.lower() == "ms" else UNITS[unit.lower()])
            for amount, unit in _PART.findall(told[1])
        )
        return now + timedelta(seconds=seconds) if seconds < LONGEST.total_seconds() * 2 else None
    lead = _LEAD.search(text)
    return _told_as_time(text[lead.end() : lead.end() + 120], now) if lead else None


def _told_as_time(text: str, now: datetime) -> datetime | None:
    """The time of day, with a day or without, at the beginning of `text`."""
    here = now.astimezone(_zone(text) or now.tzinfo)
    told = _ISO.search(text)
    if told:
        try:
            iso = datetime.fromisoformat(told[1])
        except ValueError:
            return None
        return iso if iso.tzinfo else iso.replace(tzinfo=here.tzinfo)
    clock = _CLOCK.search(text)
    try:
        day = _day(text, here)
        if clock is None:
            return None if day is None else datetime.combine(day, clocktime(), here.tzinfo)
        hour, minute = int(clock[1] or clock[4]), int(clock[2] or clock[5] or 0)
        if clock[3]:
            hour = hour % 12 + (12 if clock[3].lower() == "p" else 0)
        at = datetime.combine(day or here.date(), clocktime(hour, minute), here.tzinfo)
    except ValueError:  # no such day, no such time
        return None
    return at + timedelta(days=1) if at < here and day is None else at


def _day(text: str, here: datetime) -> date | None:
    """The day that `text` names, None where it names none. ValueError: there is no such day."""
    told = _SLASHED.search(text)
    if told:
        return date(int(told[3]), int(told[1]), int(told[2]))
    told = _DATE.search(text)
    if told:
        month, day = MONTHS.index(told[1].lower()) + 1, int(told[2])
        year = int(told[3]) if told[3] else here.year + ((month, day) < (here.month, here.day))
        return date(year, month, day)
    if re.search(r"\btomorrow\b", text, re.IGNORECASE):
        return here.date() + timedelta(days=1)
    told = _DAY.search(text)
    if told:
        ahead = (DAYS.index(told[1].lower()) - here.weekday()) % 7
        return here.date() + timedelta(days=ahead or 7)
    return None


def _zone(text: str) -> tzinfo | None:
    told = _ZONE.search(text)
    if told is None:
        return None
    try:
        return ZoneInfo(told[1] or told[2])
    except (ValueError, OSError, LookupError):  # no such zone here: this machine's is the best guess
        return None
