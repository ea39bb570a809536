"""`gridq seat` without a grid: what it says, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gridq import cli
from gridq.config.settings import settings
from tests.fakes.bench_profile import BENCH

BAD = [
    (("pause", "bensh"), "This machine has no seat 'bensh' (at SEAT); expected one of local, bench"),
    (("pause", "--for", "2h", "--until", "18:00"), "exclude each other"),
    (("pause", "--for", "soon"), "'soon' is not a valid duration for --for"),
    (("pause", "--until", "25:00"), "'25:00' is not a time in the future"),
]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in (("HOME", tmp_path), ("PROFILES", BENCH), ("BROKER_URL", "redis://127.0.0.1:1/0")):
        monkeypatch.setenv(f"GRIDQ_{name}", str(value))
    monkeypatch.setenv("COLUMNS", "100")
    settings.cache_clear()
    (tmp_path / "seats").mkdir()
    (tmp_path / "seats" / "claude.lock").touch()
    cli.load_commands()
    return tmp_path


def gridq(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(cli.app, ["seat", *arguments])
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.parametrize(("arguments", "why"), BAD)
def test_an_invalid_command_is_refused_and_changes_nothing(
    arguments: tuple[str, ...], why: str, home: Path
) -> None:
    code, out, err = gridq(*arguments)
    assert (code, out) == (2, "")
    assert why in err
    assert not (home / "pauses").exists()


def test_an_unserved_seat_can_be_paused(home: Path) -> None:
    assert gridq("pause", "--reason", "a talk")[0] == 0
    [row] = json.loads(gridq("status", "--json")[1])
    assert (row["seat"], row["state"], row["served"], row["applied"]) == ("claude", "paused", False, True)
    shown = gridq("status")[1].splitlines()
    assert shown[0].split() == ["seat", "state", "since", "until", "reason"]
    assert shown[-1].split()[:3] == ["claude", "paused,", "not"]
    assert "its owner paused it: a talk" in shown[-1]
    assert "lent, not served" in gridq("resume", "claude")[1]


def test_a_seat_can_be_paused_before_it_was_served(home: Path) -> None:
    [row] = json.loads(gridq("pause", "bench", "--json")[1])
    assert (row["seat"], row["state"]) == ("bench", "paused")


def test_a_home_without_served_seats_says_so(home: Path) -> None:
    (home / "seats" / "claude.lock").unlink()
    code, out, err = gridq("status")
    assert (code, out) == (0, "")
    assert "No seat has been served" in err


def test_a_home_that_cannot_be_written_is_named(home: Path) -> None:
    (home / "pauses").write_text("in the way")
    code, _, err = gridq("pause")
    assert code == 2
    assert "Cannot use the folder" in err
