"""Durations are parsed to seconds, and anything else is refused."""

from __future__ import annotations

import pytest

from gridq.protocol.durations import parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        (" 1.5 ", 1.5),
        ("1s", 1),
        ("88ms", 0.088),
        ("30m", 1800),
        ("5min", 300),
        ("1.5 d", 129_600),
        ("6m0s", 360),
        ("2m59.56s", 179.56),
        ("1H 30M", 5400),
    ],
)
def test_durations_are_parsed(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "h", "1x", "1w", "-1s", "1s2", "1m,2s", "NaN", "2026-11-01"])
def test_other_text_is_not_a_duration(text: str) -> None:
    assert parse_duration(text) is None
