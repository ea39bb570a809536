"""The hours in which a seat is lent."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from workers.owner.hours import parse

BERLIN = ZoneInfo("Europe/Berlin")
EVENINGS = "19:00-08:00 Mon-Fri, Sat, Sun"


def at(text: str, zone: ZoneInfo = BERLIN) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()


@pytest.mark.parametrize(
    ("now", "lent", "until"),
    [
        ("2026-11-27 18:59:59", False, "2026-11-27 19:00"),  # a Friday
        ("2026-11-27 19:00", True, "2026-11-30 00:00"),  # to Saturday's morning, and the weekend follows
        ("2026-11-28 12:00", True, "2026-11-30 00:00"),
        ("2026-11-30 00:00", False, "2026-11-30 19:00"),  # Sunday has no night of its own
        ("2026-12-01 03:00", True, "2026-12-01 08:00"),  # the night of Monday
        ("2026-12-01 08:00", False, "2026-12-01 19:00"),
    ],
)
def test_hours_over_midnight_belong_to_the_day_they_begin(now: str, lent: bool, until: str) -> None:
    assert parse(EVENINGS, BERLIN).evaluate(at(now)) == (lent, at(until))


def test_a_time_alone_is_daily_and_a_day_alone_is_whole() -> None:
    assert parse("22:00-24:00", BERLIN).evaluate(at("2026-11-29 23:00")) == (True, at("2026-11-30 00:00"))
    assert parse("Sun", BERLIN).evaluate(at("2026-11-29 00:00")) == (True, at("2026-11-30 00:00"))
    assert parse("Fri-Mon", BERLIN).evaluate(at("2026-12-01 01:00")) == (False, at("2026-12-04 00:00"))
    assert parse("saturday sun", BERLIN).evaluate(at("2026-11-28 01:00")) == (True, at("2026-11-30 00:00"))
    assert parse("Mon-Sun", BERLIN).evaluate(at("2026-11-28 01:00")) == (True, None)


def test_hours_work_across_daylight_saving_changes() -> None:
    spring = parse("01:30-02:30", BERLIN)  # on 2026-03-29 there is no 02:30
    lent, until = spring.evaluate(at("2026-03-29 01:45"))
    assert lent
    assert until == at("2026-03-29 02:30")
    assert spring.evaluate(at("2026-03-29 04:00")) == (False, at("2026-03-30 01:30"))
    autumn = parse("22:00-06:00", BERLIN)
    begin, end = at("2026-10-24 22:00"), at("2026-10-25 06:00")
    assert end - begin == 9 * 3600
    assert all(autumn.evaluate(begin + half * 1800) == (True, end) for half in range(18))


def test_hours_use_the_local_time_zone_by_default() -> None:
    now = datetime(2026, 11, 27, 20, 0).timestamp()
    assert parse(EVENINGS).evaluate(now) == (True, datetime(2026, 11, 30).timestamp())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not a time"),
        ("19-8", "is not a time"),
        ("19:00", "is not a time"),
        ("19:00-08:00 Mon,", "is not a time"),
        ("19:00-25:00", "is not a time"),
        ("24:00-08:00", "past 24:00"),
        ("08:00-24:30", "past 24:00"),
        ("08:00-08:00", "has no length"),
        ("Mon-Funday", "is not a day"),
        ("19:00-08:00 Mo", "is not a day"),
    ],
)
def test_invalid_hours_are_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse(text)
