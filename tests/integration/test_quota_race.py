"""Several submitters and slots, each a process: together they keep one limit, to the cent."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence

import pytest

from gridq.limits.accounts import read_accounts
from tests.conftest import GridEnv
from tests.fakes.bench_profile import BENCH
from tests.unit.store.ledger_entries import check_ledger
from tests.unit.store.limits import DAY, limit, turn_at
from tests.unit.store.plans import Grid, wide

pytestmark = pytest.mark.usefixtures("key_hygiene")

SUBMIT = """
import sys
from gridq.client import Client
from gridq.errors import QuotaExceeded
graph = {"root": {"op": "Stage", "id": "paid"}}
with Client() as client:
    client.admission
    print("ready", flush=True)
    sys.stdin.readline()
    said = []
    for number in range(40):
        try:
            client.submit(graph, number, agent=sys.argv[1], wait_for_seat=True)
            said.append("ok")
        except QuotaExceeded as exc:
            said.append(exc.code)
    print(*said, flush=True)
"""
CLAIM = """
import secrets, sys
from gridq.protocol.models import Usage
from gridq.config.settings import settings
from gridq.store.connection import connect
from gridq.store.replies import Claim
from gridq.store.scripts import Scripts
scripts = Scripts(connect(), settings())
print("ready", flush=True)
sys.stdin.readline()
said = []
for _ in range(100):
    found = scripts.claim("m.a", "i1", sys.argv[1], secrets.token_hex(4))
    if isinstance(found, Claim):
        scripts.complete(found.lease, b"1", used=Usage(), rows="[]", seat="m.a", incarnation="i1",
                         slot=sys.argv[1], nonce=secrets.token_hex(4), go_on=False)
        said.append("ok")
    else:
        said.append(found)
print(*said, flush=True)
"""
SHARED = """
import secrets, sys
from gridq.protocol.meters import parse_budget
from gridq.protocol.models import Usage
from gridq.config.settings import settings
from gridq.store.connection import connect
from gridq.store.replies import Claim
from gridq.store.scripts import Scripts
scripts = Scripts(connect(), settings())
seat = sys.argv[1]
print("ready", flush=True)
sys.stdin.readline()
said = []
for number in range(100):
    found = scripts.claim(seat, "i1", str(number % 2), secrets.token_hex(4))
    text = scripts.client.hget(scripts.keys("meters"), "o:alice")
    said += ["over" for meter in parse_budget(text, "o:alice", 0) if meter.remaining < 0]
    if isinstance(found, Claim):
        scripts.complete(found.lease, b"1", used=Usage(micro_dollars=10_000), rows="[]", seat=seat,
                         incarnation="i1", slot=str(number % 2), nonce=secrets.token_hex(4), go_on=False)
        said.append("ok")
print(*said, flush=True)
"""
PAID = """{"name": "paid", "implementation": "bench:echo", "input": {"kind": "Any"},
"output": {"kind": "Any"}, "effects": [{"effect": "Bench"}, {"effect": "Cost", "cents": 3}]}"""


def run_processes(env: GridEnv, code: str, words: Sequence[str], **more: str) -> Counter[str]:
    """Run `code` in one process for each of `words`, all at once; count the words that they print."""
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code, word], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **env.environ(), "GRIDQ_PROFILES": BENCH, **more},
        )
        for word in words
    ]  # fmt: skip
    try:
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        counts: Counter[str] = Counter()
        for child in children:
            assert child.stdin is not None
            child.stdin.write("\n")
            child.stdin.flush()
        for child in children:
            counts.update(child.communicate(timeout=60)[0].split())
            assert child.returncode == 0
    finally:
        for child in children:
            child.kill()
    return counts


def test_a_cent_is_reserved_once(grid_env: GridEnv, tmp_path: object) -> None:
    """Four processes submit for two agents of one team; the team's money fits 50 of their 160 jobs."""
    (grid_env.settings.home / "paid.json").write_text(PAID)
    grid = Grid(grid_env.client, grid_env.settings)
    turn_at(grid, DAY)
    limit(
        grid,
        '[teams.t]\nmonthly_cents = 152\n[agents.ann]\nteam = "t"\nmonthly_jobs = 30\n'
        '[agents.bob]\nteam = "t"\nmonthly_dollars = 1.20\n',
    )
    counts = run_processes(
        grid_env, SUBMIT, ["ann", "ann", "bob", "bob"], GRIDQ_STAGES_DIR=str(grid_env.settings.home)
    )
    assert counts["ok"] == 50
    assert counts.total() == 160
    accounts = {(one.name, one.what): one for one in read_accounts(grid.client, grid.keys, "UTC").accounts}
    assert accounts["t", "money"].reserved == 50 * 30_000
    assert accounts["ann", "jobs"].spent + accounts["bob", "jobs"].spent == 50 == accounts["t", "jobs"].spent
    assert accounts["ann", "jobs"].spent <= 30
    assert accounts["bob", "money"].reserved <= 1_200_000
    assert accounts["ann", "money"].reserved + accounts["bob", "money"].reserved == 50 * 30_000
    jobs = [key.decode().rpartition(":")[2] for key in grid.client.scan_iter(grid.keys("job", "*"))]
    assert len(jobs) == 50
    for job in jobs:
        grid.scripts.stop(job, "cancelled", "{}")
    assert not grid.own() & {"reserved", "reservations"}


def test_requests_a_minute_are_exact_over_slots_of_several_processes(grid_env: GridEnv) -> None:
    grid = Grid(grid_env.client, grid_env.settings)
    grid.seat(concurrency=4, requests_per_minute=37)
    grid.job(wide(200))
    counts = run_processes(grid_env, CLAIM, ["0", "1", "2", "3"])
    assert counts["ok"] == 37
    assert counts["limited"] == 400 - 37


def test_seats_of_one_owner_draw_on_one_budget(grid_env: GridEnv) -> None:
    """Four processes claim for four seats, whose owner's budgets fit 31 of their stages, three at once."""
    grid = Grid(grid_env.client, grid_env.settings)
    turn_at(grid, DAY, period="day")
    limit(
        grid,
        '[owners.alice]\nparallel = 3\nbudgets = [{cents = 31, per = "day"}, {requests = 40, per = "5h"}]\n'
        '[grid]\nbudgets = [{dollars = 5, per = "day"}]\n',
    )
    seats = ["m.a", "m.b", "m.c", "m.d"]
    for seat in seats:
        grid.seat(seat, concurrency=2, owner="alice")
    grid.job(wide(200, cost=10_000))
    counts = run_processes(grid_env, SHARED, seats)
    assert counts["ok"] == 31
    assert counts["over"] == 0
    found = {meter.name: (meter.used, meter.reserved) for meter in grid.shared("o:alice")}
    assert found == {"money/day": (310_000, 0), "requests/5h": (31, 0), "parallel/-": (0, 0)}
    assert [(meter.used, meter.reserved) for meter in grid.shared("g")] == [(310_000, 0)]
    check_ledger(grid)
