"""When windows turn: by the clock of one time zone, summer time and all."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from gridq.periods import AHEAD, calendar, text_time


def ms(*parts: int, zone: str = "UTC") -> int:
    return int(datetime(*parts, tzinfo=ZoneInfo(zone)).timestamp() * 1000)  # type: ignore[arg-type, misc]


def test_months_of_a_year() -> None:
    months = calendar("UTC", ms(2026, 11, 28, 3))["month"]
    assert months[:4] == [ms(2026, 10, 1), ms(2026, 11, 1), ms(2026, 12, 1), ms(2027, 1, 1)]
    assert len(months) == AHEAD["month"]


def test_a_zone_has_months_of_its_own() -> None:
    at = ms(2026, 11, 30, 23, 30)  # in Berlin it is December
    assert calendar("Europe/Berlin", at)["month"][1] == ms(2026, 12, 1, zone="Europe/Berlin")
    assert calendar("America/New_York", at)["month"][1] == ms(2026, 11, 1, zone="America/New_York")


def test_weeks_begin_on_monday() -> None:
    weeks = calendar("UTC", ms(2026, 3, 1, 12))["week"]  # a Sunday
    assert weeks[1:3] == [ms(2026, 2, 23), ms(2026, 3, 2)]


def test_days_of_23_and_25_hours() -> None:
    days = calendar("Europe/Berlin", ms(2026, 3, 29, 12))["day"]
    assert days[2] - days[1] == 23 * 3_600_000
    days = calendar("Europe/Berlin", ms(2026, 10, 25, 12))["day"]
    assert days[2] - days[1] == 25 * 3_600_000


@pytest.mark.parametrize("zone", ["UTC", "America/Sao_Paulo", "Africa/Cairo", "Asia/Beirut", "Pacific/Apia"])
def test_turns_grow_and_stand_around_now(zone: str) -> None:
    """In some zones a summer's day has no midnight, and Apia has skipped a whole day."""
    for now in (ms(2011, 12, 29, 20), ms(2018, 11, 4, 5), ms(2026, 4, 24, 1), ms(2026, 12, 31, 23, 59)):
        for period, turns in calendar(zone, now).items():
            assert turns[0] < turns[1] <= now < turns[2], period
            assert turns == sorted(turns)


def test_a_time_is_told_with_its_offset() -> None:
    assert text_time(ms(2026, 6, 30, 22), "Europe/Berlin") == "2026-07-01T00:00:00+02:00"
    assert text_time(None, "UTC") is None
    assert datetime.fromisoformat(text_time(5, "UTC") or "") == datetime(1970, 1, 1, tzinfo=UTC)
