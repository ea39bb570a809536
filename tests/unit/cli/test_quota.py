"""`gridq quota`: who may use what."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gridq import auth, cli
from tests.conftest import GridEnv
from tests.unit.store.limits import DAY, limit, turn_at
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
    auth.create(grid_env.client, Grid(grid_env.client, grid_env.settings).keys, "ann")
    assert "API keys are asked for" in run()[1]


def test_limits_what_is_used_held_and_left(grid_env: GridEnv) -> None:
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
    assert "any minute" in out
    assert re.search(r"^agent ann .* \d{4}-\d\d-\d\d \d\d:\d\d *$", out, re.M)
    assert "in force since" in err
    found = {(one["name"], one["what"]): one for one in json.loads(run("--json")[0])["accounts"]}
    assert found["ann", "money"]["left"] == 450_000
    assert found["ann", "money"]["until"].endswith("+00:00")
    assert found["m.a", "requests a minute"]["used"] == 2


def test_limits_are_lifted(grid_env: GridEnv) -> None:
    limit(Grid(grid_env.client, grid_env.settings), FILE)
    assert "lifted" in run("--lift")[1]
    assert "There were no limits" in run("--lift")[1]


def test_a_file_is_checked_before_it_counts(grid_env: GridEnv, tmp_path: Path) -> None:
    file = tmp_path / "q.toml"
    file.write_text(FILE)
    assert "agents: 2, teams: 0, seats: 1" in run("--check", str(file))[1]
    assert json.loads(run("--check", str(file), "--json")[0])["agents"] == 2
    file.write_text(FILE + "rpm = 3\n")
    err = run("--check", str(file), code=2)[1]
    assert "q.toml:9: seats.m.a.rpm" in err
    assert len(err.splitlines()) == 1


@pytest.mark.usefixtures("grid_env")
def test_its_help_names_the_file() -> None:
    assert "GRIDQ_QUOTAS" in run("--help")[0]
