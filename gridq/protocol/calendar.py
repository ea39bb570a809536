"""The windows in which a limit counts: months, weeks and days of one time zone.

Scripts know no time zone. They are given the instants at which a window turns, far ahead, and compare them
with the server's clock.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Literal

from gridq.config.time_zones import find_zone, require_zone

Period = Literal["month", "week", "day"]

WINDOW_COUNTS: dict[Period, int] = {"month": 15, "week": 60, "day": 400}
"""How many turns a calendar holds, one of them past: over a year, should no router come by to renew it."""


def compute_calendar(zone: str, now_ms: int) -> dict[Period, list[int]]:
    """For each period the turns around `now_ms`, as ms since 1970: the start of the window before the current
    one, the current one's, and all that follow. ConfigError: there is no such zone here.

    The window before is there because clocks differ: who writes the calendar may be ahead of the server.
    """
    here = require_zone(zone)
    today = datetime.fromtimestamp(now_ms / 1000, here).date()
    return {
        period: [_midnight_ms(day, here) for day in _list_first_days(period, today)]
        for period in WINDOW_COUNTS
    }


def format_iso_time(ms: int | None, zone: str) -> str | None:
    """An instant as ISO 8601 with the zone's offset, in UTC where this machine does not have the zone; None
    stays None.

    >>> text_time(1_767_225_600_000, "Europe/Berlin")
    '2026-01-01T01:00:00+01:00'
    """
    if ms is None:
        return None
    return datetime.fromtimestamp(ms / 1000, find_zone(zone) or UTC).isoformat("T", "seconds")


def get_month_bounds(zone: str, year: int, month: int) -> tuple[int, int]:
    """Start and end of a month in `zone`, in ms since 1970; `month` from 1. ConfigError: it is not here."""
    here, after = require_zone(zone), divmod(year * 12 + month, 12)
    return _midnight_ms(date(year, month, 1), here), _midnight_ms(date(after[0], after[1] + 1, 1), here)


def _list_first_days(period: Period, today: date) -> list[date]:
    count = WINDOW_COUNTS[period]
    if period == "day":
        return [today + timedelta(days=n) for n in range(-1, count - 1)]
    if period == "week":  # from Monday on
        monday = today - timedelta(days=today.weekday())
        return [monday + timedelta(weeks=n) for n in range(-1, count - 1)]
    first = today.year * 12 + today.month - 1
    months = (divmod(first + n, 12) for n in range(-1, count - 1))
    return [date(year, month + 1, 1) for year, month in months]


def _midnight_ms(day: date, zone: tzinfo) -> int:
    local = datetime(day.year, day.month, day.day, tzinfo=zone)
    return int(local.astimezone(UTC).timestamp() * 1000)
