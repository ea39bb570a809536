"""`gridq seat status` and `gridq seats` on a real server: a seat's own money, what it shares, how it is."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gridq import cli
from gridq.cli.output import format_local_time
from gridq.protocol.models import Advertisement, Limit
from gridq.seats.registry import advertise
from tests.conftest import GridEnv
from tests.unit.store.limits import limit
from tests.unit.store.plans import Grid

SHARED = """\
[grid]
budgets = [{dollars = 100, per = "month"}]
[owners.alice]
budgets = [{dollars = 1, per = "day"}]
"""
HOUR = 3600.0


@pytest.fixture
def grid(grid_env: GridEnv, tmp_path: Path) -> Iterator[Grid]:
    """Three seats of this machine, served and lent: alice's claude on a plan, her mistral with two budgets of
    money, and local without any.
    """
    grid = Grid(grid_env.client, grid_env.settings)
    (tmp_path / "machine").write_text("m")
    (tmp_path / "seats").mkdir()
    limit(grid, SHARED)
    requests = Limit(resource="requests", window="5h", amount=27)
    money = [
        Limit(resource="money", window="month", amount=12_000_000),
        Limit(resource="money", window="day", amount=300_000),
    ]
    grid.seat("m.claude", owner="alice", limits=[requests])
    grid.seat("m.mistral", owner="alice", limits=money)
    grid.seat("m.local")
    terms = {"owner": "alice", "share": 0.6}
    advertise_state(grid, "claude", capability={"billing": "subscription"}, **terms)
    advertise_state(grid, "mistral", whole_budget=20_000_000, **terms)
    advertise_state(grid, "local")
    locks = []
    for name in ("claude", "local", "mistral"):
        (tmp_path / "seats" / f"{name}.json").write_text('{"state": "lent"}')
        locks.append(os.open(tmp_path / "seats" / f"{name}.lock", os.O_RDWR | os.O_CREAT))
        fcntl.flock(locks[-1], fcntl.LOCK_EX)
    yield grid
    for lock in locks:
        os.close(lock)


def advertise_state(grid: Grid, name: str, **fields: Any) -> None:
    """A seat's worker tells the grid how it is."""
    ad = Advertisement(
        seat=f"m.{name}", machine="m", worker=f"{name}@m", incarnation="i1", kind="bench", concurrency=1,
        queues=["bench:any"], **fields,
    )  # fmt: skip
    advertise(grid.client, grid.keys, ad, 60.0)


def gridq(*words: str) -> str:
    cli.load_commands()
    done = CliRunner().invoke(cli.app, words, env={"COLUMNS": "160"})
    assert done.exit_code == 0, done.output
    return done.stdout


def status(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gridq("seat", "status", name, "--json"))[0]
    return found


def test_shared_budgets_are_not_shown_as_the_seats_own(grid: Grid) -> None:
    row = status("local")
    assert (row["budget_left"], row["budget"], row["whole_budget"], row["budget_window"]) == (None,) * 4
    assert row["budgets"] == ["the whole grid: $100.00 left of $100.00 a month"]
    row = status("claude")
    assert (row["budget_left"], row["budget"], row["whole_budget"]) == (None, None, None)
    assert sorted(row["budgets"]) == [
        "27 requests left of 27 requests in 5h",
        "owner alice: $1.00 left of $1.00 a day",
        "the whole grid: $100.00 left of $100.00 a month",
    ]
    shown = {line.split()[0]: line.split() for line in gridq("seats").splitlines() if line.startswith("m.")}
    assert shown["m.claude"][2:4] == ["-", "subscription"]
    assert shown["m.local"][2:4] == ["-", "-"]
    assert shown["m.mistral"][2:6] == ["$0.30", "$0.30", "a", "day"]


def test_the_tightest_money_budget_is_shown_with_its_window(grid: Grid) -> None:
    row = status("mistral")
    assert (row["budget_left"], row["budget"], row["whole_budget"]) == (300_000, 300_000, 500_000)
    assert row["budget_window"] == "day"
    assert row["budgets"][0] == "$12.00 left of $12.00 a month"
    shown = next(line for line in gridq("seat", "status").splitlines() if line.startswith("mistral"))
    assert shown.split("  ", 1)[0] == "mistral"
    assert "$0.30  $0.30 a day  $0.50 a day  $12.00 left of $12.00 a month" in shown
    grid.seat("m.mistral", owner="alice", limits=[Limit(resource="money", window="month", amount=12_000_000)])
    row = status("mistral")
    assert (row["budget_left"], row["budget"], row["whole_budget"]) == (12_000_000, 12_000_000, 20_000_000)
    assert "$12.00  $12.00  $20.00" in gridq("seat", "status", "mistral")


def test_a_lent_share_is_shown_in_dollars_for_one_money_budget(grid: Grid) -> None:
    assert gridq("seats").count("lends 60% of its budgets") == 2
    grid.seat("m.mistral", owner="alice", limits=[Limit(resource="money", window="month", amount=12_000_000)])
    shown = gridq("seats")
    assert [line.split("lends ")[1].strip() for line in shown.splitlines() if "lends " in line] == [
        "60% of its budgets",
        "60% of $20.00",
    ]


def test_an_open_breaker_is_shown_to_the_owner(grid: Grid, tmp_path: Path) -> None:
    assert status("claude")["circuit_breaker"] is None
    since, until = time.time() - HOUR, time.time() + HOUR
    cause = {"state": "rate_limited", "reason": "the plan's limit is used up", "since": since, "until": until}
    advertise_state(grid, "claude", **cause)
    row = status("claude")
    assert (row["state"], row["until"], row["circuit_breaker"]) == ("lent", None, cause)
    shown = next(line for line in gridq("seat", "status").splitlines() if line.startswith("claude"))
    assert shown.startswith(
        f"claude   lent, rate_limited  {format_local_time(since)}  {format_local_time(until)}"
    )
    assert "the plan's limit is used up" in shown
    gridq("seat", "resume", "claude")  # asks no server
    (tmp_path / "seats" / "claude.json").write_text(
        json.dumps({"state": "paused", "reason": "night", "since": since, "until": None})
    )
    shown = next(line for line in gridq("seat", "status").splitlines() if line.startswith("claude"))
    assert shown.split()[:2] == ["claude", "paused"]
    assert "night" in shown
    assert "rate_limited" not in shown
    advertise_state(grid, "claude", state="paused", reason="night")
    assert status("claude")["circuit_breaker"] is None


def test_a_reason_of_the_seat_and_its_model_is_shown_once(grid: Grid) -> None:
    reason = "The endpoint does not serve this model"
    cause = {"state": "degraded", "reason": reason, "since": time.time(), "until": time.time() + HOUR}
    advertise_state(grid, "claude", **cause, models_in_cooldown=[{"model": "m", "queues": [], **cause}])
    counts = [
        " ".join(gridq(*words).split()).count("does not serve")
        for words in (("seat", "status"), ("seats",), ("workers",))
    ]
    assert counts == [1, 0, 1]
    other = {**cause, "reason": "another one"}
    advertise_state(grid, "claude", **cause, models_in_cooldown=[{"model": "m", "queues": [], **other}])
    assert "another one" in " ".join(gridq("seat", "status").split())
