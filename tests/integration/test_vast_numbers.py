"""Usage and estimates beyond all bounds: the ledger stays right, and the grid continues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gridq.limits.ledger_verification import verify
from gridq.limits.quotas_file import parse
from gridq.limits.quotas_loader import put_in_force, write_calendar
from gridq.protocol.models import MAX_USAGE
from tests.builders import stage
from tests.conftest import GridEnv
from tests.fakes.bench_profile import BENCH
from tests.local_grid import DEFAULT_SEATS, LocalGrid
from tests.waiting import wait_for

FILE = """
[agents.ann]
budgets = [{tokens = 1_000_000_000_000_000, per = "day"}, {dollars = 1_000_000_000, per = "week"}]
[grid]
budgets = [{tokens = 1_000_000_000_000_000, per = "day"}]
"""


@pytest.fixture
def grid(grid_env: GridEnv) -> Iterator[LocalGrid]:
    config = grid_env.settings.model_copy(update={"profiles": (BENCH, "llm")})
    with LocalGrid(grid_env.client, config, DEFAULT_SEATS) as grid:
        write_calendar(grid.scripts, "UTC")
        put_in_force(grid.scripts, parse(FILE, "quotas.toml"), "test")
        yield grid


def read_hash(grid: LocalGrid, name: str) -> dict[bytes, bytes]:
    found: Any = grid.scripts.client.hgetall(grid.scripts.keys(name))
    return found


@pytest.mark.parametrize("amount", [10**18, 2**63, 10**30])
def test_huge_usage_is_bounded(grid: LocalGrid, amount: int) -> None:
    root = stage("bench_spend", micro_dollars=amount, tokens_in=amount, tokens_out=amount)
    job = grid.client.submit({"root": root}, {}, agent="ann")
    grid.client.result(job, 20)
    (row,) = grid.client.rows(job)
    assert (row.micro_dollars, row.tokens_in, row.tokens_out) == (MAX_USAGE, MAX_USAGE, MAX_USAGE)
    assert verify(grid.scripts.client, grid.scripts.keys).differences == ()
    grid.client.result(grid.client.submit({"root": stage("bench_echo")}, "on", agent="ann"), 20)


@pytest.mark.parametrize(
    "root",
    [
        stage("llm_complete", prompt="a", max_tokens=10**30, n=10**30),
        stage("bench_spend", tokens_in=10**30, tokens_out=10**30),
    ],
)
def test_huge_estimates_are_bounded(grid: LocalGrid, root: Any) -> None:
    job = grid.client.submit({"root": root}, {}, agent="ann", avoid=["m.bench"], wait_for_seat=True)
    assert read_hash(grid, "reserved")
    assert verify(grid.scripts.client, grid.scripts.keys).differences == ()
    grid.client.cancel(job)
    wait_for(lambda: not read_hash(grid, "reserved"))
    assert verify(grid.scripts.client, grid.scripts.keys).differences == ()
