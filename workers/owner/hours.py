"""The hours in which a seat is lent: `19:00-08:00 Mon-Fri, Sat, Sun`.

Each part between commas is a time of day, days, or both: `19:00-08:00` alone means every day, `Sat` alone the
whole day. A time that passes midnight belongs to the day on which it begins. Times are those of this
machine's time zone, or of a named one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime, timedelta, tzinfo

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_CLOCK = r"([01]?\d|2[0-4]):([0-5]\d)"
_PART = re.compile(rf"(?:{_CLOCK} ?[-–] ?{_CLOCK})?\s*((?:[A-Za-z]+(?: ?[-–] ?[A-Za-z]+)?\s*)*)")
_DAYS = re.compile(r"([A-Za-z]+)(?: ?[-–] ?([A-Za-z]+))?")
DAY_MINUTES = 24 * 60

LOOK_AHEAD_DAYS = 9
"""Days that are searched for a change: hours that do not change within a week never do."""


@dataclass(frozen=True, slots=True)
class Span:
    """A span of `minutes`, from the minute `begin` of each of `days` (0: Monday)."""

    days: frozenset[int]
    begin: int
    minutes: int


@dataclass(frozen=True, slots=True)
class Hours:
    """Spans of a week. `zone` None: this machine's time zone."""

    spans: tuple[Span, ...]
    zone: tzinfo | None = None

    def evaluate(self, now: float) -> tuple[bool, float | None]:
        """Return whether the seat is lent at `now`, and until when that holds; None: for ever."""
        periods = self._list_periods(now)
        lent = any(begin <= now < end for begin, end in periods)
        if not lent:
            return False, min((begin for begin, _ in periods if begin > now), default=None)
        end = now
        for begin, until in periods:
            if begin <= end < until:
                end = until
        last = self._to_instant(self._to_local(now).date() + timedelta(LOOK_AHEAD_DAYS - 1), 0)
        return True, None if end >= last else end

    def _list_periods(self, now: float) -> list[tuple[float, float]]:
        """Return the lent periods (begin, end) from yesterday until LOOK_AHEAD_DAYS from now, in order."""
        today = self._to_local(now).date()
        found = []
        for ahead in range(-1, LOOK_AHEAD_DAYS + 1):
            day = today + timedelta(days=ahead)
            for span in self.spans:
                if day.weekday() in span.days:
                    end = self._to_instant(day, span.begin + span.minutes)
                    found.append((self._to_instant(day, span.begin), end))
        return sorted(found)

    def _to_local(self, now: float) -> datetime:
        return datetime.fromtimestamp(now, self.zone)

    def _to_instant(self, day: date, minute: int) -> float:
        wall_clock = datetime(day.year, day.month, day.day) + timedelta(minutes=minute)
        return wall_clock.replace(tzinfo=self.zone).timestamp()


def parse(text: str, zone: tzinfo | None = None) -> Hours:
    """Parse hours. ValueError says what is wrong."""
    return Hours(tuple(_parse_span(part.strip()) for part in text.split(",")), zone)


def _parse_span(part: str) -> Span:
    match = _PART.fullmatch(part)
    if match is None or not part:
        raise ValueError(f"{part!r} is not a time such as 19:00-08:00, days such as Mon-Fri, or both")
    days = _parse_days(match[5])
    if match[1] is None:
        return Span(days, 0, DAY_MINUTES)
    begin, end = int(match[1]) * 60 + int(match[2]), int(match[3]) * 60 + int(match[4])
    if begin >= DAY_MINUTES or end > DAY_MINUTES:
        raise ValueError(f"{part!r} goes past 24:00")
    if begin == end:
        raise ValueError(f"{part!r} has no length; for the whole day name only the days")
    return Span(days, begin, end - begin if end > begin else end - begin + DAY_MINUTES)


def _parse_days(text: str) -> frozenset[int]:
    found: set[int] = set()
    for first, last in _DAYS.findall(text):
        begin = _parse_day(first)
        end = _parse_day(last) if last else begin
        found |= {(begin + step) % 7 for step in range((end - begin) % 7 + 1)}
    return frozenset(found or range(7))


def _parse_day(name: str) -> int:
    short = name[:3].capitalize()
    full = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
    if short not in DAYS or not full[DAYS.index(short)].startswith(name.lower()):
        raise ValueError(f"{name!r} is not a day such as Mon")
    return DAYS.index(short)
