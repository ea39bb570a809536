"""Rules by which an owner's seat is kept or lent."""

from __future__ import annotations

import fcntl
import os
from datetime import datetime
from pathlib import Path

import pytest

from workers.owner import rules
from workers.owner.activity_source import IdleTime, Process
from workers.owner.hours import parse
from workers.owner.lend import Lend
from workers.owner.rules import InHours, WhenIdle, find_workers, make_rules


class Desk:
    """A machine of the test's making."""

    def __init__(self) -> None:
        self.idle = IdleTime(3600.0)
        self.running: list[Process] | None = []

    def read_idle_time(self) -> IdleTime:
        return self.idle

    def list_processes(self) -> list[Process] | None:
        return self.running


def test_a_seat_is_kept_outside_its_hours() -> None:
    rule = InHours(parse("19:00-08:00"), "19:00-08:00")
    noon, evening = (datetime(2026, 11, 27, hour).timestamp() for hour in (12, 19))
    rest = rule(noon)
    assert rest is not None
    assert (rest.state, rest.reason, rest.until) == ("paused", "outside its hours: 19:00-08:00", evening)
    assert rule(noon + 60) is rest
    assert rule(evening) is None
    again = rule(noon)  # the clock was set back
    assert again is not None
    assert again.until == evening


def test_a_seat_is_kept_while_the_machine_is_in_use() -> None:
    desk = Desk()
    rule = WhenIdle(desk, 600)
    rule.sample()
    assert rule(0) is None
    desk.idle = IdleTime(599)
    rule.sample()
    rest = rule(0)
    assert rest is not None
    assert rest.reason == "the machine is in use: lent after 10 min without use"
    desk.idle = IdleTime(3)
    rule.sample()
    assert rule(0) is rest
    desk.idle = IdleTime(600)
    rule.sample()
    assert rule(0) is None


def test_a_seat_is_kept_if_use_cannot_be_read() -> None:
    desk = Desk()
    desk.idle = IdleTime(None, "there is no screen")
    rule = WhenIdle(desk, 600)
    rule.sample()
    rest = rule(0)
    assert rest is not None
    assert "idle time, and there is no screen" in rest.reason
    desk.idle, desk.running = IdleTime(3600.0), None
    rule = WhenIdle(desk, 600, "claude")
    rule.sample()
    rest = rule(0)
    assert rest is not None
    assert "to see claude; it cannot be read here" in rest.reason


def test_the_owners_own_use_of_the_program_counts_as_use(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(rules.time, "monotonic", lambda: now[0])
    desk = Desk()
    desk.running = [Process(7, 1, mine=True, words=("claude",))]
    grid_pids: list[int] = []
    rule = WhenIdle(desk, 60, "claude", lambda: grid_pids)

    def is_kept() -> bool:
        rule.sample()
        return rule(0) is not None

    assert is_kept()
    now[0] += 100
    assert is_kept()
    desk.running = []
    now[0] += 59
    assert is_kept()
    now[0] += 1
    assert not is_kept()
    desk.running = [Process(7, 1, mine=True, words=("claude",)), Process(8, 7, mine=True, words=("claude",))]
    grid_pids.append(7)
    assert not is_kept()


def test_the_rules_of_a_seat_are_those_of_its_terms(tmp_path: Path) -> None:
    def kinds(**terms: object) -> list[str]:
        return [
            type(rule).__name__ for rule in make_rules(tmp_path, "a", Lend.model_validate(terms), "", Desk())
        ]

    assert kinds() == ["Switch"]
    assert kinds(hours="Sat", only_when_idle="10m") == ["Switch", "InHours", "WhenIdle"]


def test_the_workers_of_a_home_hold_their_seat_locks(tmp_path: Path) -> None:
    (tmp_path / "seats").mkdir()
    for name, text in (("a", "41"), ("b", "42"), ("c", "")):
        (tmp_path / "seats" / f"{name}.lock").write_text(text)
    held = os.open(tmp_path / "seats" / "b.lock", os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    assert find_workers(tmp_path) == [42]
    os.close(held)
