"""`gridq quota`: who may use what."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gridq import cli
from gridq.limits import api_keys
from gridq.limits.accounts import ORPHANED_MS
from tests.conftest import GridEnv
from tests.unit.store.limits import DAY, limit, turn, turn_at
from tests.unit.store.plans import Grid, one

FILE = """\
[agents.ann]
monthly_dollars = 1
[agents.bob]
monthly_jobs = 0
[queues."bench:any"]
max_pending = 7
[seats."m.a"]
requests_per_minute = 9
"""


def run(*words: str, code: int = 0) -> tuple[str, str]:
    done = CliRunner().invoke(cli.app, ["quota", *words], env={"COLUMNS": "160"})
    assert done.exit_code == code, done.output
    return done.stdout, done.stderr


def test_a_single_tenant_grid_says_so(grid_env: GridEnv) -> None:
    assert "single-tenant" in run()[1]
    assert json.loads(run("--json")[0])["single_tenant"] is True
    api_keys.create(grid_env.client, Grid(grid_env.client, grid_env.settings).keys, "ann")
    assert "API keys are required" in run()[1]


def test_quota_shows_limits_usage_and_reservations(grid_env: GridEnv) -> None:
    grid = Grid(grid_env.client, grid_env.settings)
    turn_at(grid, DAY)
    limit(grid, FILE)
    grid.seat(budget=50_000_000)
    grid.job(one(cost=300_000))
    grid.done(grid.take(), used=250_000)
    grid.job(one(cost=300_000))
    grid.take()
    out, err = run()
    rows = {tuple(line.split()[:3]): line.split()[3:] for line in out.splitlines()}
    assert rows["agent", "ann", "money"][:4] == ["$1.00", "$0.25", "$0.30", "$0.45"]
    assert rows["agent", "ann", "jobs"][:4] == ["none", "2", "0", "-"]
    assert rows["agent", "bob", "jobs"][0] == "0"
    assert rows["seat", "m.a", "money"][2:6] == ["$50.00", "$0.25", "$1.00", "$48.75"]
    assert rows["queue", "bench:any", "pending"][:4] == ["7", "0", "0", "7"]
    assert "sliding" in out
    assert re.search(r"^agent ann .* \d{4}-\d\d-\d\d \d\d:\d\d *$", out, re.M)
    assert "in force since" in err
    found = {(one["name"], one["what"]): one for one in json.loads(run("--json")[0])["accounts"]}
    assert found["ann", "money"]["left"] == 450_000
    assert found["ann", "money"]["until"].endswith("+00:00")
    assert found["m.a", "requests a minute"]["used"] == 2


WINDOWS = """\
[agents.ann]
monthly_dollars = 1
budgets = [{tokens = 500, per = "week"}]
[seats."m.a"]
requests_per_minute = 9
budgets = [{requests = 45, per = "5h"}]
[owners.alice]
parallel = 2
budgets = [{dollars = 3, per = "day"}]
[queues."bench:any"]
max_pending = 7
"""


def test_json_output_has_units_and_windows(grid_env: GridEnv) -> None:
    grid = Grid(grid_env.client, grid_env.settings)
    for period in ("month", "week", "day"):
        turn_at(grid, DAY, 2 * DAY, period=period)
    limit(grid, WINDOWS)
    grid.seat(budget=50_000_000, requests_per_minute=20)

    def shown() -> dict[tuple[str, str], dict[str, Any]]:
        return {(one["name"], one["what"]): one for one in json.loads(run("--json")[0])["accounts"]}

    fresh = shown()["m.a", "grid requests in 5h"]
    assert (fresh["resource"], fresh["unit"], fresh["limit"], fresh["left"]) == (
        "requests",
        "requests",
        45,
        45,
    )
    begins = {"per": "5h", "kind": "first-use", "seconds": 18_000.0, "starts": None, "resets_at": None}
    assert fresh["window"] == begins

    grid.job(one(cost=300_000))
    grid.done(grid.take(), used=250_000)
    found = shown()
    used = found["m.a", "grid requests in 5h"]
    assert (used["used"], used["reserved"], used["left"]) == (1, 0, 44)
    starts, turns = (datetime.fromisoformat(used["window"][name]) for name in ("starts", "resets_at"))
    assert (turns - starts).total_seconds() == used["window"]["seconds"] == 18_000
    assert starts <= datetime.now(UTC) < turns

    for key, resource, unit, by in (
        (("ann", "money"), "money", "micro-dollars", "quotas file"),
        (("ann", "tokens a week"), "tokens", "tokens", "quotas file"),
        (("alice", "money a day"), "money", "micro-dollars", "quotas file"),
        (("m.a", "money a month"), "money", "micro-dollars", "seats file"),
    ):
        each = found[key]
        assert (each["resource"], each["unit"], each["set_by"]) == (resource, unit, by), key
        window = each["window"]
        assert (window["kind"], window["seconds"]) == ("calendar", 2 * DAY / 1000), key
        assert window["resets_at"] == each["until"], key
        assert datetime.fromisoformat(window["starts"]) < datetime.now(UTC), key
    assert found["ann", "jobs"]["set_by"] is None
    assert found["ann", "tokens a week"]["window"]["per"] == "week"
    rate = found["m.a", "requests a minute"]
    assert (rate["resource"], rate["limit"], rate["set_by"]) == ("requests", 9, "quotas file")
    assert (rate["window"]["kind"], rate["window"]["seconds"]) == ("sliding", 60)
    for key in (("alice", "stages at once"), ("bench:any", "pending")):
        assert (found[key]["unit"], found[key]["window"]) == ("stages", None), key


def test_a_window_that_was_reset_is_the_current_one(grid_env: GridEnv) -> None:
    grid = Grid(grid_env.client, grid_env.settings)
    turn_at(grid, DAY, period="day")
    limit(grid, WINDOWS)
    turn(grid, "day")
    found = {
        one["name"]: one for one in json.loads(run("--json")[0])["accounts"] if one["what"] == "money a day"
    }
    window = found["alice"]["window"]
    assert window["seconds"] == DAY / 1000
    starts, turns = (datetime.fromisoformat(window[name]) for name in ("starts", "resets_at"))
    assert starts <= datetime.now(UTC) < turns


def test_an_unknown_time_zone_falls_back_to_utc_with_a_note(grid_env: GridEnv) -> None:
    grid = Grid(grid_env.client, grid_env.settings)
    turn_at(grid, DAY)
    limit(grid, FILE)
    assert "UTC. Fix" not in run()[1]
    grid.client.hset(grid.keys("calendar"), "zone", "Mars/Gale")
    out, err = run()
    assert "begin in the time zone Mars/Gale" in err
    assert "times are in UTC. Fix: pip install tzdata" in err
    assert re.search(r"^agent bob .* \d{4}-\d\d-\d\d \d\d:\d\d *$", out, re.M)
    report = CliRunner().invoke(cli.app, ["report", "--month", "2026-11"])
    assert report.exit_code == 2
    assert report.stderr.startswith("error: config.")
    assert report.stderr.count("\n") == 1
    assert "does not have the time zone 'Mars/Gale'" in report.stderr


def test_limits_are_lifted(grid_env: GridEnv) -> None:
    limit(Grid(grid_env.client, grid_env.settings), FILE)
    assert "lifted" in run("--lift")[1]
    assert "There were no limits" in run("--lift")[1]


def test_orphaned_limits_are_reported_with_the_fix(grid_env: GridEnv) -> None:
    grid = Grid(grid_env.client, grid_env.settings)
    limit(grid, FILE)
    assert "No live router" not in run()[1]
    report = json.loads(run("--json")[0])["limits"]
    assert (report["orphaned"], report["fix"], report["last_seen_on"]) == (False, None, "a test")
    seen_at = grid.now() - ORPHANED_MS - 1000
    grid.client.hset(grid.keys("limits"), mapping={"seen_at": seen_at, "holder": "vm:q.toml"})
    report = json.loads(run("--json")[0])["limits"]
    assert (report["orphaned"], report["last_seen_on"]) == (True, "vm:q.toml")
    assert datetime.fromisoformat(report["last_seen_at"]).timestamp() == seen_at // 1000
    assert "--lift" in report["fix"]
    err = run()[1]
    assert (
        f"No live router has this file any more: vm:q.toml was last seen at {report['last_seen_at']}" in err
    )
    assert report["fix"] in err
    assert "No live router" not in run("--lift")[1]


def test_seats_lists_shared_budgets(grid_env: GridEnv) -> None:
    grid = Grid(grid_env.client, grid_env.settings)
    grid.seat("m.a")
    grid.seat("m.b")
    shown = CliRunner().invoke(cli.app, ["seats"], env={"COLUMNS": "160"}).stdout
    assert "shared by" not in shown
    limit(grid, '[grid]\nbudgets = [{dollars = 9, per = "day"}]')
    shown = CliRunner().invoke(cli.app, ["seats"], env={"COLUMNS": "160"}).stdout
    assert shown.count("$9.00 left of $9.00 a day") == 1
    assert re.search(r"m\.a.*m\.b.*shared by.*the whole grid", shown, re.S)


def test_check_reports_on_a_quotas_file(grid_env: GridEnv, tmp_path: Path) -> None:
    file = tmp_path / "q.toml"
    file.write_text(FILE)
    report = run("--check", str(file))[1]
    assert (
        "agents: 2, teams: 0, seats: 1, owners: 0, families: 0, queues: 1, models: 0; "
        "limits of the whole grid: 0" in report
    )
    assert json.loads(run("--check", str(file), "--json")[0])["agents"] == 2
    whole = '[grid]\nparallel = 9\nbudgets = [{dollars = 9, per = "day"}]\n'
    file.write_text(FILE + whole)
    assert "queues: 1, models: 0; limits of the whole grid: 2" in run("--check", str(file))[1]
    assert json.loads(run("--check", str(file), "--json")[0])["grid"] == 2
    file.write_text(FILE + "rpm = 3\n")
    err = run("--check", str(file), code=2)[1]
    assert "q.toml:9: seats.m.a.rpm" in err
    assert len(err.splitlines()) == 1


@pytest.mark.usefixtures("grid_env")
def test_the_help_names_the_quotas_setting() -> None:
    assert "GRIDQ_QUOTAS" in run("--help")[0]
