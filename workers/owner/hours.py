"""The hours in which a seat is lent: `19:00-08:00 Mon-Fri, Sat, Sun`.

Between commas stand a time of day, days, or both: `19:00-08:00` alone is every day, `Sat` alone all day. What
goes over midnight belongs to the day on which it begins. The clock is this machine's, or that of a time zone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime, timedelta, tzinfo

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_CLOCK = r"([01]?\d|2[0-4]):([0-5]\d)"
_PART = re.compile(rf"(?:{_CLOCK} ?[-–] ?{_CLOCK})?\s*((?:[A-Za-z]+(?: ?[-–] ?[A-Za-z]+)?\s*)*)")
_DAYS = re.compile(r"([A-Za-z]+)(?: ?[-–] ?([A-Za-z]+))?")
DAY = 24 * 60

AHEAD = 9
"""Days that are looked ahead: what does not change within a week never does."""


@dataclass(frozen=True, slots=True)
class Span:
    """From minute `begin` of each of `days` (0 Monday) for `minutes`."""

    days: frozenset[int]
    begin: int
    minutes: int


@dataclass(frozen=True, slots=True)
class Hours:
    """Spans of the week. `zone` None: this machine's time zone."""

    spans: tuple[Span, ...]
    zone: tzinfo | None = None

    def at(self, now: float) -> tuple[bool, float | None]:
        """Whether the seat is lent at an instant, and until when that stays so; None: for good."""
        periods = self._periods(now)
        lent = any(begin <= now < end for begin, end in periods)
        if not lent:
            return False, min((begin for begin, _ in periods if begin > now), default=None)
        end = now
        for begin, until in periods:
            if begin <= end < until:
                end = until
        return True, None if end >= self._instant(self._here(now).date() + timedelta(AHEAD - 1), 0) else end

    def _periods(self, now: float) -> list[tuple[float, float]]:
        """When it is lent, from yesterday until AHEAD days from now, by the beginning."""
        today = self._here(now).date()
        found = []
        for ahead in range(-1, AHEAD + 1):
            day = today + timedelta(days=ahead)
            for span in self.spans:
                if day.weekday() in span.days:
                    end = self._instant(day, span.begin + span.minutes)
                    found.append((self._instant(day, span.begin), end))
        return sorted(found)

    def _here(self, now: float) -> datetime:
        return datetime.fromtimestamp(now, self.zone)

    def _instant(self, day: date, minute: int) -> float:
        clock = datetime(day.year, day.month, day.day) + timedelta(minutes=minute)  # of the wall
        return clock.replace(tzinfo=self.zone).timestamp()


def parse(text: str, zone: tzinfo | None = None) -> Hours:
    """The hours that `text` says. ValueError: in words what is wrong with it."""
    return Hours(tuple(_span(part.strip()) for part in text.split(",")), zone)


def _span(part: str) -> Span:
    match = _PART.fullmatch(part)
    if match is None or not part:
        raise ValueError(
            f"{part!r} is neither a time such as 19:00-08:00, nor days such as Mon-Fri, nor both"
        )
    days = _days(match[5])
    if match[1] is None:
        return Span(days, 0, DAY)
    begin, end = int(match[1]) * 60 + int(match[2]), int(match[3]) * 60 + int(match[4])
    if begin >= DAY or end > DAY:
        raise ValueError(f"{part!r} goes beyond 24:00")
    if begin == end:
        raise ValueError(f"{part!r} begins when it ends: name the days alone for all day")
    return Span(days, begin, end - begin if end > begin else end - begin + DAY)


def _days(text: str) -> frozenset[int]:
    found: set[int] = set()
    for first, last in _DAYS.findall(text):
        begin = _day(first)
        end = _day(last) if last else begin
        found |= {(begin + step) % 7 for step in range((end - begin) % 7 + 1)}
    return frozenset(found or range(7))


def _day(name: str) -> int:
    short = name[:3].capitalize()
    full = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
    if short not in DAYS or not full[DAYS.index(short)].startswith(name.lower()):
        raise ValueError(f"{name!r} is no day such as Mon")
    return DAYS.index(short)
