"""`gridq ledger`, `gridq report` and `gridq seat log`: what the ledger says, for people and for programs."""

from __future__ import annotations

import csv
import io
import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gridq import cli
from gridq.config.machine_id import get_machine_id
from gridq.config.settings import settings
from gridq.protocol.models import Advertisement, Limit
from gridq.seats.registry import advertise
from tests.acceptance.homes import GRIDQ
from tests.conftest import GridEnv
from tests.unit.store.ledger_entries import TEAM
from tests.unit.store.limits import DAY, limit
from tests.unit.store.plans import Grid, one, wide

MILLION = 1_000_000

QUOTAS = """\
[seats."m.a"]
cost_dollars = 50
owner = "ann"
[seats."m.b"]
cost_dollars = 30
owner = "bob"
[seats."m.idle"]
cost_dollars = 10
"""


def run(*words: str, code: int = 0, **env: str) -> tuple[str, str]:
    cli.load_commands()
    settings.cache_clear()
    done = CliRunner().invoke(cli.app, words, env={"COLUMNS": "160", **env})
    assert done.exit_code == code, done.output
    return done.stdout, done.stderr


def run_json(*words: str, code: int = 0, **env: str) -> Any:
    return json.loads(run(*words, "--json", code=code, **env)[0])


@pytest.fixture
def grid(grid_env: GridEnv) -> Grid:
    """Ann has used 300,000 micro-dollars of m.a and bob 500,000, of which 100,000 came to nothing; and he
    50,000 of m.b.
    """
    grid = Grid(grid_env.client, grid_env.settings)
    limit(grid, TEAM)
    grid.seat("m.a", budget=MILLION)
    grid.seat("m.b", budget=MILLION)
    grid.seat("m.local", "gridq:local")
    for agent, used in (("ann", 300_000), ("bob", 400_000)):
        grid.job(one(), f"job-of-{agent}", agent=agent)
        grid.done(grid.take("m.a"), used=used, tokens=(20, 10))
    grid.job(one(), "again", agent="bob")
    grid.fail(grid.take("m.a"), "seat", used=100_000)
    grid.done(grid.take("m.b"), used=50_000)
    return grid


@pytest.fixture
def quotas(tmp_path: Path) -> str:
    path = tmp_path / "quotas.toml"
    path.write_text(QUOTAS)
    return str(path)


# -- export


def test_export_prints_one_json_line_per_entry(grid: Grid) -> None:
    text = run("ledger", "export")[0]
    assert run("ledger", "export", "--json")[0] == text
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["what"] for line in lines[:3]] == ["begin", "refill", "refill"]
    done = next(line for line in lines if line["job"] == "job-of-ann" and line["what"] == "done")
    assert {name: value for name, value in done.items() if name not in ("id", "at", "ms")} == {
        "what": "done", "job": "job-of-ann", "step": 0, "attempt": 1, "seat": "m.a", "agent": "ann",
        "team": "t", "queue": "bench:any", "micro_dollars": 300_000, "tokens_in": 20, "tokens_out": 10,
        "month": 0, "charged": "agent", "accounts": [], "requests": 1, "gpu_ms": 0,
    }  # fmt: skip
    assert abs(done["at"] - grid.now() / 1000) < 3600


def test_a_closed_pipe_is_not_an_error(grid: Grid) -> None:
    grid.seat()
    for number in range(500):  # more than a pipe holds
        grid.job(one(), f"j{number}")
        grid.done(grid.take())
    program = [*GRIDQ, "ledger", "export"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert json.loads(child.stdout.readline())
        child.stdout.close()
        assert child.stderr.read() == b""


def test_since_and_until_limit_the_export(grid: Grid) -> None:
    assert run("ledger", "export", "--until", "2001-01-01")[0] == ""
    assert run("ledger", "export", "--since", "1h")[0] == run("ledger", "export")[0]
    assert run("ledger", "export", "--since", "2999-01-01T08:00")[0] == ""
    assert "--since" in run("ledger", "export", "--since", "soon", code=2)[1]


# -- verify


def test_verify_reports_differing_counters(grid: Grid) -> None:
    assert "8 counters compared, all agree" in run("ledger", "verify")[0]
    grid.client.hincrby(grid.keys("spent", "0"), "jobs a:ann", 1)
    own = grid.client.hget(grid.keys("seat", "m.a"), "own")
    grid.client.hset(grid.keys("seat", "m.a"), "own", own.replace(b"/800000/", b"/799999/"))
    text = run("ledger", "verify", code=1)[0]
    assert "agent ann: jobs of the month: the grid counts 2, the ledger has 1" in text
    assert "seat m.a: money a month, used: the grid counts $0.799999, the ledger has $0.80" in text
    assert "8 counters compared, 2 differ" in text
    found = run_json("ledger", "verify", code=1)
    assert found["differences"][0] == {"counter": "agent ann: jobs of the month", "counted": 2, "recorded": 1}


def test_verify_shows_each_resource_in_its_unit(grid: Grid) -> None:
    amounts = {"tokens": 100, "requests": 9, "gpu_seconds": 60_000}
    limits = [Limit(resource=resource, window="day", amount=most) for resource, most in amounts.items()]
    grid.seat("m.a", limits=limits, hourly_price=(0, 600_000))
    grid.job(one())
    grid.done(grid.take("m.a"), tokens=(20, 10, 1.5))
    own = grid.client.hget(grid.keys("seat", "m.a"), "own")
    for used, other in ((b"/30/", b"/31/"), (b"/1/", b"/2/"), (b"/1500/", b"/2500/")):
        assert own.count(used) == 1
        own = own.replace(used, other)
    grid.client.hset(grid.keys("seat", "m.a"), "own", own)
    text = run("ledger", "verify", code=1)[0]
    for title, counted, recorded in (("tokens", 31, 30), ("requests", 2, 1), ("GPU seconds", 2.5, 1.5)):
        assert f"seat m.a: {title} a day, used: the grid counts {counted}, the ledger has {recorded}" in text


def test_an_unused_grid_has_an_empty_ledger(grid_env: GridEnv) -> None:
    assert "0 counters compared, all agree; 0 entries" in run("ledger", "verify")[0]
    assert run("ledger", "export") == ("", "")
    assert run_json("report")["seats"] == []


# -- report


def test_report_shows_the_use_of_each_seat(grid: Grid, quotas: str) -> None:
    found = run_json("report", "--quotas", quotas)
    seats = {seat["seat"]: seat for seat in found["seats"]}
    assert sorted(seats) == ["m.a", "m.b", "m.idle"]
    a, b = seats["m.a"], seats["m.b"]
    assert (a["recorded"], a["used"], a["lent"], a["wasted"]) == (2, 700_000, 400_000, 100_000)
    assert (a["recorded_for_others"], a["wasted_attempts"]) == (1, 1)
    assert (a["cost"], a["capacity"], a["reclaimed"]) == (50 * MILLION, MILLION, 20 * MILLION)
    assert (b["used"], b["lent"], b["reclaimed"]) == (50_000, 0, 0)
    idle = seats["m.idle"]
    assert (idle["recorded"], idle["used"], idle["lent"], idle["reclaimed"]) == (0, 0, None, None)
    table = run("report", GRIDQ_QUOTAS=quotas)[0].splitlines()
    assert table[2].split() == ["m.a", "2", "$0.70", "$0.40", "$0.10", "$50.00", "$20.00"]


def test_a_seats_advertised_owner_counts(grid: Grid) -> None:
    """The budget is the whole one: what its owner keeps is paid for too."""
    ad = Advertisement(
        seat="m.a", machine="m", worker="a@m", incarnation="i1", kind="bench", concurrency=1,
        queues=["bench:any"], owner="bob", share=0.5, whole_budget=2 * MILLION,
    )  # fmt: skip
    advertise(grid.client, grid.keys, ad, 60.0)
    seat = next(seat for seat in run_json("report", "--seat-cost", "50")["seats"] if seat["seat"] == "m.a")
    assert (seat["owner"], seat["lent"], seat["capacity"]) == ("bob", 300_000, 2 * MILLION)
    assert seat["reclaimed"] == 7_500_000


def test_unknown_numbers_stay_unknown(grid: Grid, quotas: str) -> None:
    model = run_json("report", "--quotas", quotas)["model"]
    assert (model["S"]["value"], model["C"]["value"]) == (3, 30 * MILLION)
    assert model["C"]["source"] == f"mean of {quotas}"
    assert model["u"]["value"] is None
    assert "1 seat has no budget" in model["u"]["source"]
    assert model["r"]["value"] is None
    assert run_json("report", "--quotas", quotas)["idle_per_year"] is None
    assert "unknown" in run("report")[0]


def test_options_override_the_numbers_of_the_cost_model(grid: Grid) -> None:
    """The examples of the design: 10 seats of 20 dollars half used, 50 of 50 used to 35 %."""
    for seats, cost, used, idle, reclaimable in ((10, 20, 0.5, 1_200, 840), (50, 50, 0.35, 19_500, 13_650)):
        numbers = (
            "--seats",
            str(seats),
            "--seat-cost",
            str(cost),
            "--utilisation",
            str(used),
            "--routable",
            "0.7",
        )
        found = run_json("report", *numbers)
        assert found["idle_per_year"] == idle * MILLION
        assert found["reclaimable_per_year"] == reclaimable * MILLION
        assert found["model"]["u"] == {"value": used, "source": "--utilisation"}
    assert "path" in run_json("report", "--utilisation", "35", code=2)["error"]["details"]


def test_utilisation_needs_a_whole_month(grid_env: GridEnv) -> None:
    grid = Grid(grid_env.client, grid_env.settings)
    first = int(datetime(2026, 2, 1, tzinfo=UTC).timestamp() * 1000)
    for at, what, micro in (
        (-1, "begin", ""), (5, "done", "250000"), (9, "lost", "50000"), (28 * DAY, "done", "7"),
    ):  # fmt: skip
        entry = f"{what} j 0 1 m.a ann  bench:any {micro} 1 1  "
        grid.client.xadd(grid.keys("ledger"), {"e": entry}, id=f"{first + at}-0")
    grid.seat("m.a", budget=MILLION)
    grid.seat("m.b", budget=MILLION // 28, period="day")
    month = run_json("report", "--month", "2026-02", "--seat-cost", "40", "--routable", "0.5")
    assert (month["since"][:10], month["until"][:10]) == ("2026-02-01", "2026-03-01")
    assert [(seat["used"], seat["wasted"]) for seat in month["seats"]] == [(250_000, 50_000), (0, 0)]
    assert month["model"]["u"]["value"] == 0.15
    assert month["idle_per_year"] == 2 * 40 * 12 * 0.85 * MILLION
    assert month["reclaimable_per_year"] == 2 * 40 * 12 * 0.85 * MILLION / 2
    before = run_json("report", "--month", "2026-01")  # of which it has the last moment alone
    assert (before["since"][:10], before["model"]["u"]["value"]) == ("2026-01-31", None)


def test_a_subscription_never_costs_zero(grid: Grid) -> None:
    grid.seat("m.sub")
    grid.job(one())
    grid.done(grid.take("m.sub"), used=None, tokens=(7, 8))
    (line,) = [line for line in run("report")[0].splitlines() if line.startswith("m.sub")]
    assert line.split() == ["m.sub", "1", "-", "-", "-", "-", "-"]
    (seat,) = [seat for seat in run_json("report")["seats"] if seat["seat"] == "m.sub"]
    assert (seat["unpriced"], seat["tokens_in"], seat["tokens_out"]) == (1, 7, 8)
    assert (seat["used"], seat["wasted"], seat["lent"]) == (None, None, None)
    (row,) = [row for row in csv.DictReader(io.StringIO(run("report", "--csv")[0])) if row["seat"] == "m.sub"]
    assert (row["recorded"], row["used"], row["wasted"]) == ("1", "", "")


def test_report_prints_csv_and_other_months(grid: Grid, quotas: str) -> None:
    rows = list(csv.DictReader(io.StringIO(run("report", "--csv", "--quotas", quotas)[0])))
    assert [row["seat"] for row in rows] == ["m.a", "m.b", "m.idle"]
    assert (rows[0]["reclaimed"], rows[2]["reclaimed"]) == (str(20 * MILLION), "")
    then = run_json("report", "--month", "2001-12")
    assert (then["month"], then["since"], [seat["used"] for seat in then["seats"]]) == (
        "2001-12",
        None,
        [0, 0],
    )
    for wrong in ("2026-13", "soon", "26-01"):
        assert "--month" in run("report", "--month", wrong, code=2)[1]


# -- a seat's log


def test_seat_log_lists_attempts_and_agents(grid: Grid) -> None:
    out, err = run("seat", "log", "m.a")
    rows = [line.split() for line in out.splitlines()[2:]]
    assert [row[2:4] for row in rows] == [["ann", "bench:any"], ["bob", "bench:any"], ["bob", "bench:any"]]
    assert [row[6:8] for row in rows] == [["done", "$0.30"], ["done", "$0.40"], ["seat", "$0.10"]]
    assert "3 attempts, 2 recorded; used $0.70, wasted $0.10; 40 tokens in, 20 out." in err
    found = run_json("seat", "log", "m.a", "--limit", "1")
    assert (found["attempts"], len(found["entries"])) == (3, 1)
    assert "m.none" in run("seat", "log", "m.none")[1]
    assert "Nothing has run" in run("seat", "log", "m.a", "--since", "2999-01-01")[1]


def test_seat_log_of_a_subscription_shows_no_cost(grid: Grid) -> None:
    """Not of what was handed back before anything was used either, nor in its sums."""
    grid.seat("m.sub")
    grid.job(one())
    grid.fail(grid.take("m.sub"), "back", used=0)
    out, err = run("seat", "log", "m.sub")
    assert out.splitlines()[-1].split()[6:9] == ["back", "-", "0+0"]
    assert "1 attempt, 0 recorded; used -, wasted -; 0 tokens in, 0 out." in err
    grid.done(grid.take("m.sub"), used=None, tokens=(7, 8))
    out, err = run("seat", "log", "m.sub")
    assert out.splitlines()[-1].split()[6:9] == ["done", "-", "7+8"]
    assert "used -, wasted -; 7 tokens in, 8 out." in err
    found = run_json("seat", "log", "m.sub")
    assert (found["attempts"], found["recorded"], found["used"], found["wasted"]) == (2, 1, None, None)
    assert [entry["micro_dollars"] for entry in found["entries"]] == [None, None]
    found = run_json("seat", "log", "m.b")
    assert (found["used"], found["wasted"]) == (50_000, 0)
    assert run_json("seat", "log", "m.none")["used"] == 0


def test_seat_log_accepts_short_names_of_local_seats(grid: Grid, tmp_path: Path) -> None:
    machine = get_machine_id(tmp_path)
    grid.seat(f"{machine}.cpu")
    grid.job(wide(1))
    grid.done(grid.take(f"{machine}.cpu"))
    for words in ((), ("cpu",), (f"{machine}.cpu",)):
        assert run_json("seat", "log", *words)["attempts"] == 1
    assert run_json("seat", "log", "gpu0")["attempts"] == 0
