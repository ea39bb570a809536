"""The starts of calendar windows in a time zone, also around daylight saving time."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from gridq.protocol.calendar import WINDOW_COUNTS, compute_calendar, format_iso_time


def ms(*parts: int, zone: str = "UTC") -> int:
    return int(datetime(*parts, tzinfo=ZoneInfo(zone)).timestamp() * 1000)  # type: ignore[arg-type, misc]


def test_the_calendar_lists_months() -> None:
    months = compute_calendar("UTC", ms(2026, 11, 28, 3))["month"]
    assert months[:4] == [ms(2026, 10, 1), ms(2026, 11, 1), ms(2026, 12, 1), ms(2027, 1, 1)]
    assert len(months) == WINDOW_COUNTS["month"]


def test_months_depend_on_the_time_zone() -> None:
    at = ms(2026, 11, 30, 23, 30)  # in Berlin it is December
    assert compute_calendar("Europe/Berlin", at)["month"][1] == ms(2026, 12, 1, zone="Europe/Berlin")
    assert compute_calendar("America/New_York", at)["month"][1] == ms(2026, 11, 1, zone="America/New_York")


def test_weeks_begin_on_monday() -> None:
    weeks = compute_calendar("UTC", ms(2026, 3, 1, 12))["week"]  # a Sunday
    assert weeks[1:3] == [ms(2026, 2, 23), ms(2026, 3, 2)]


def test_days_may_have_23_or_25_hours() -> None:
    days = compute_calendar("Europe/Berlin", ms(2026, 3, 29, 12))["day"]
    assert days[2] - days[1] == 23 * 3_600_000
    days = compute_calendar("Europe/Berlin", ms(2026, 10, 25, 12))["day"]
    assert days[2] - days[1] == 25 * 3_600_000


@pytest.mark.parametrize("zone", ["UTC", "America/Sao_Paulo", "Africa/Cairo", "Asia/Beirut", "Pacific/Apia"])
def test_window_starts_are_sorted_around_now(zone: str) -> None:
    """Some zones have summer days without midnight, and Apia skipped a whole day."""
    for now in (ms(2011, 12, 29, 20), ms(2018, 11, 4, 5), ms(2026, 4, 24, 1), ms(2026, 12, 31, 23, 59)):
        for period, turns in compute_calendar(zone, now).items():
            assert turns[0] < turns[1] <= now < turns[2], period
            assert turns == sorted(turns)


def test_a_machine_without_time_zones_uses_utc() -> None:
    program = (
        "from gridq.errors import ConfigError\n"
        "from gridq.protocol.calendar import compute_calendar, get_month_bounds, format_iso_time\n"
        "from gridq.config.settings import Settings\n"
        "from gridq.cli.inputs import parse_instant\n"
        "assert Settings().timezone == 'UTC'\n"
        "assert compute_calendar('UTC', 0)['day'][1] == 0\n"
        "print(format_iso_time(0, 'Europe/Berlin'))\n"
        "for act in (\n"
        "    lambda: get_month_bounds('Europe/Berlin', 2026, 11),\n"
        "    lambda: parse_instant('2026-11-01', '--since', 'Europe/Berlin', 0),\n"
        "    lambda: compute_calendar('Europe/Berlin', 0),\n"
        "):\n"
        "    try:\n"
        "        act()\n"
        "    except ConfigError as exc:\n"
        "        print(exc)\n"
    )
    done = subprocess.run(
        # No zones of the system's; a package of them, where there is one, is not to be found.
        [sys.executable, "-c", "import sys; sys.modules['tzdata'] = None\n" + program],
        env={**os.environ, "PYTHONTZPATH": ""}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    first, *errors = done.stdout.splitlines()
    assert first == "1970-01-01T00:00:00+00:00"
    assert len(errors) == 3
    assert all("does not have the time zone 'Europe/Berlin'" in each for each in errors)
    assert all("pip install tzdata" in each for each in errors)


def test_a_formatted_time_has_its_offset() -> None:
    assert format_iso_time(ms(2026, 6, 30, 22), "Europe/Berlin") == "2026-07-01T00:00:00+02:00"
    assert format_iso_time(None, "UTC") is None
    assert datetime.fromisoformat(format_iso_time(5, "UTC") or "") == datetime(1970, 1, 1, tzinfo=UTC)
