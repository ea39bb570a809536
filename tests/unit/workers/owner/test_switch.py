"""The owner's pauses, stored on disk."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

import pytest

from gridq.errors import ConfigError
from workers.owner import switch

NOW = datetime(2026, 11, 28, 15, 0).timestamp()


def test_a_seat_is_lent_until_it_is_paused(tmp_path: Path) -> None:
    assert switch.read_pause(tmp_path, "claude", time.time()) is None
    switch.pause(tmp_path, "claude", reason="a talk")
    rest = switch.read_pause(tmp_path, "claude", time.time())
    assert rest is not None
    assert (rest.state, rest.reason, rest.until) == ("paused", "its owner paused it: a talk", None)
    assert switch.read_pause(tmp_path, "gpu0", time.time()) is None
    switch.resume(tmp_path, "claude")
    assert switch.read_pause(tmp_path, "claude", time.time()) is None


def test_a_pause_ends_by_itself(tmp_path: Path) -> None:
    end = time.time() + 3600
    switch.pause(tmp_path, "claude", until=end)
    assert switch.read_pause(tmp_path, "claude", end - 1) is not None
    assert switch.read_pause(tmp_path, "claude", end) is None


def test_a_pause_for_all_replaces_earlier_ones_and_yields_to_later_ones(tmp_path: Path) -> None:
    def paused(*seats: str, later: float = 0.0) -> list[bool]:
        now = time.time() + later
        return [switch.read_pause(tmp_path, seat, now) is not None for seat in seats]

    switch.pause(tmp_path, "a", until=time.time() + 60)
    switch.pause(tmp_path, None)
    assert [switch.read_pause(tmp_path, "a", time.time() + 90) is not None, *paused("a", "b")] == [
        True,
        True,
        True,
    ]
    switch.resume(tmp_path, "a")
    assert paused("a", "b") == [False, True]
    switch.pause(tmp_path, None)
    assert paused("a", "b") == [True, True]
    switch.pause(tmp_path, "a")
    switch.resume(tmp_path, None)
    assert paused("a", "b") == [False, False]


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", '{"paused": true}', '{"paused": 1, "since": "x", "until": 1}', "[" * 100_000),
        '{"paused": true, "since": 0, "until": NaN, "reason": ""}',
        '{"paused": true, "since": 1e400, "until": null, "reason": ""}',
        '{"paused": true, "since": 0, "until": 1e12, "reason": ""}',
        '{"paused": true, "since": 0, "until": 1' + "0" * 400 + ', "reason": ""}',
        '{"paused": null, "since": 0, "until": null, "reason": ""}',
    ],
)
def test_an_unreadable_pause_keeps_the_seat(tmp_path: Path, text: str) -> None:
    switch.pause(tmp_path, "claude")
    (tmp_path / "pauses" / "claude.json").write_text(text)
    rest = switch.read_pause(tmp_path, "claude", time.time())
    assert rest is not None
    assert "claude.json cannot be read" in rest.reason
    switch.resume(tmp_path, "claude")
    assert switch.read_pause(tmp_path, "claude", time.time()) is None


def test_pause_files_are_private(tmp_path: Path) -> None:
    switch.pause(tmp_path / "home", "claude")
    [word] = (tmp_path / "home" / "pauses").iterdir()
    assert word.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("18:00", datetime(2026, 11, 28, 18, 0)),
        ("15:00", datetime(2026, 11, 29, 15, 0)),
        ("2026-12-01 08:30", datetime(2026, 12, 1, 8, 30)),
        ("2026-12-01T08:30", datetime(2026, 12, 1, 8, 30)),
    ],
)
def test_a_pause_ends_at_a_time_of_day_or_a_date(text: str, at: datetime) -> None:
    assert switch.parse_until(text, NOW) == at.timestamp()


@pytest.mark.parametrize(
    "text", ["", "25:00", "soon", "2026-11-28 14:59", "18", "18:00 tomorrow", "0001-01-01 00:00"]
)
def test_a_time_in_the_past_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not a time in the future"):
        switch.parse_until(text, NOW)


@pytest.mark.parametrize("text", ["9999-12-31 23:59", "9999-12-31T23:59-12:00", "2027-12-01"])
def test_a_pause_that_ends_does_so_within_a_year(text: str) -> None:
    with pytest.raises(ConfigError, match="too far ahead"):
        switch.parse_until(text, NOW)
