"""Calendar windows: when the months, weeks and days of a time zone begin.

Scripts know no time zones. They get the instants at which windows begin, for a long time ahead, and compare
them with the server's clock.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Literal

from gridq.config.time_zones import find_zone, require_zone

Period = Literal["month", "week", "day"]

WINDOW_COUNTS: dict[Period, int] = {"month": 15, "week": 60, "day": 400}
"""The windows that a calendar covers, the previous one included: over a year, in case no router renews it."""


def compute_calendar(zone: str, now_ms: int) -> dict[Period, list[int]]:
    """Return the starts of each period's windows around `now_ms`, in ms since 1970.

    The first is that of the window before the current one, because the clock of the machine that writes the
    calendar may be ahead of the server's. Raises ConfigError if this machine does not have the zone.
    """
    here = require_zone(zone)
    today = datetime.fromtimestamp(now_ms / 1000, here).date()
    return {
        period: [_midnight_ms(day, here) for day in _list_first_days(period, today)]
        for period in WINDOW_COUNTS
    }


def format_iso_time(ms: int | None, zone: str) -> str | None:
    """Return an instant as ISO 8601 with the zone's offset; None stays None.

    The time is in UTC if this machine does not have the zone.

    >>> format_iso_time(1_767_225_600_000, "Europe/Berlin")
    '2026-01-01T01:00:00+01:00'
    """
    if ms is None:
        return None
    return datetime.fromtimestamp(ms / 1000, find_zone(zone) or UTC).isoformat("T", "seconds")


def get_month_bounds(zone: str, year: int, month: int) -> tuple[int, int]:
    """Return the start and end of a month (1 to 12) in `zone`, in ms since 1970.

    Raises ConfigError if this machine does not have the zone.
    """
    here, after = require_zone(zone), divmod(year * 12 + month, 12)
    return _midnight_ms(date(year, month, 1), here), _midnight_ms(date(after[0], after[1] + 1, 1), here)


def _list_first_days(period: Period, today: date) -> list[date]:
    count = WINDOW_COUNTS[period]
    if period == "day":
        return [today + timedelta(days=n) for n in range(-1, count - 1)]
    if period == "week":  # weeks begin on Monday
        monday = today - timedelta(days=today.weekday())
        return [monday + timedelta(weeks=n) for n in range(-1, count - 1)]
    first = today.year * 12 + today.month - 1
    months = (divmod(first + n, 12) for n in range(-1, count - 1))
    return [date(year, month + 1, 1) for year, month in months]


def _midnight_ms(day: date, zone: tzinfo) -> int:
    local = datetime(day.year, day.month, day.day, tzinfo=zone)
    return int(local.astimezone(UTC).timestamp() * 1000)
