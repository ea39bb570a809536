"""Reset times of limits in the output of vendors' programs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from workers.profiles.llm.programs.reset_times import parse_reset_time

NOW = datetime(2026, 11, 28, 15, 0, tzinfo=UTC)  # a Saturday


def at(*date: int) -> datetime:
    return datetime(*date, tzinfo=UTC)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Claude AI usage limit reached|1795887052", at(2026, 11, 28, 17, 30, 52)),
        ('{"resetsAt":1795887052000,"type":"five_hour"}', at(2026, 11, 28, 17, 30, 52)),
        ('"resets_at":1795887052', at(2026, 11, 28, 17, 30, 52)),
        ('"resets_in_seconds":600', at(2026, 11, 28, 15, 10)),
        ("Retry-After: 30", at(2026, 11, 28, 15, 0, 30)),
        ("You've hit your limit · resets 4:10pm (UTC)", at(2026, 11, 28, 16, 10)),
        ("You've hit your limit · resets 3pm (Europe/Berlin)", at(2026, 11, 29, 14)),
        ("You've hit your limit · resets 5pm (Europe/Berlin)", at(2026, 11, 28, 16)),
        ("resets 3am", at(2026, 11, 29, 3)),
        ("resets at 12am", at(2026, 11, 29)),
        ("resets 12:30pm", at(2026, 11, 29, 12, 30)),
        ("rate limited until 16:10", at(2026, 11, 28, 16, 10)),
        ("Weekly limit reached ∙ resets Dec 3 at 9:30am", at(2026, 12, 3, 9, 30)),
        ("resets Jan 2, 3pm (UTC)", None),  # more than a month ahead
        ("resets Dec 2, 3pm (UTC)", at(2026, 12, 2, 15)),
        ("resets tomorrow at 3pm", at(2026, 11, 29, 15)),
        ("resets Mon 9:00 AM", at(2026, 11, 30, 9)),
        ("resets Saturday 9am", at(2026, 12, 5, 9)),
        ("or try again at 5:34 PM.", at(2026, 11, 28, 17, 34)),
        ("try again at Dec 2nd, 2026 2:55 AM.", at(2026, 12, 2, 2, 55)),
        ("or try again in 2 days 17 hours 14 minutes.", at(2026, 12, 1, 8, 14)),
        ("Your quota will reset after 3h22m10s.", at(2026, 11, 28, 18, 22, 10)),
        ("Please retry in 32.5s.", at(2026, 11, 28, 15, 0, 32, 500_000)),
        ("Please try again in 120ms", at(2026, 11, 28, 15, 0, 0, 120_000)),
        ("limits will reset when your monthly cycle ends on 12/17/2026.", at(2026, 12, 17)),
        ("resets 2026-11-30T13:59:59.602877+00:00", at(2026, 11, 30, 13, 59, 59, 602_877)),
        ("timestamp=2026-11-28T16:00:00Z Rate limit. Try again in 2 minutes.", at(2026, 11, 28, 15, 2)),
        # what is none
        ("timestamp=2026-11-28T16:00:00Z rate limit", None),
        ("try again at Nov 28th, 2025 4:00 PM", None),
        ("resets Feb 31, 3pm", None),
        ("reset on 13/45/2026", None),
        ("try again in 900 days", None),
        ("resets at 9 (Not/AZone)", None),
        ("Rate limit reached. Try again later.", None),
        ("429 Too Many Requests", None),
        ("Claude 3.5 at 10am said so", None),
    ],
)
def test_reset_times_are_parsed(text: str, expected: datetime | None):
    found = parse_reset_time(text, NOW)
    assert (found and datetime.fromtimestamp(found, UTC)) == expected


def test_a_time_without_a_zone_is_local():
    now = NOW.astimezone(timezone(timedelta(hours=2)))
    assert parse_reset_time("resets 6pm", now) == at(2026, 11, 28, 16).timestamp()


def test_a_reset_time_may_be_in_the_next_year():
    now = at(2026, 12, 30, 12)
    assert parse_reset_time("resets Jan 2, 3pm (UTC)", now) == at(2027, 1, 2, 15).timestamp()
