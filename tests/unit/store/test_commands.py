"""What the scripts of every stage may cost: commands in the server, which serves one script at a time.

One of those that a settled attempt costs is its entry in the ledger.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gridq.store.replies import Claim
from tests.unit.store.plans import Grid, chain, one


def commands(grid: Grid, act: Callable[[], Any]) -> int:
    """Return the number of commands that `act` makes the server run."""

    def run_so_far() -> dict[str, int]:
        return {name: about["calls"] for name, about in grid.client.info("commandstats").items()}

    before = run_so_far()
    act()
    after = run_so_far()
    ignored = {"cmdstat_info", "cmdstat_evalsha", "cmdstat_eval"}
    return sum(calls - before.get(name, 0) for name, calls in after.items() if name not in ignored)


def test_a_job_of_one_stage_costs_eighty_one_commands(grid: Grid) -> None:
    grid.seat()
    for _ in range(2):  # its own queue holds a wake-up from the second job on
        grid.job(one())
        grid.done(grid.take())
    assert commands(grid, lambda: grid.job(one())) <= 31
    taken: list[Claim] = []
    assert commands(grid, lambda: taken.append(grid.take())) <= 25
    assert commands(grid, lambda: grid.complete(taken[0])) <= 25


def test_a_hop_of_a_chain_costs_fifty_commands(grid: Grid) -> None:
    grid.seat()
    grid.job(chain(4))
    first = grid.take()
    _, _, second = grid.complete(first, go_on=True)
    assert isinstance(second, Claim)
    assert commands(grid, lambda: grid.complete(second, go_on=True)) <= 50


def test_a_failed_attempt_costs_thirty_eight_commands(grid: Grid) -> None:
    grid.seat()
    for _ in range(2):
        grid.job(one())
        grid.done(grid.take())
    grid.job(one())
    claim = grid.take()
    assert commands(grid, lambda: grid.fail(claim)) <= 38
