"""Thousands of agents, accounts, seats or classes: no call does more than a part, and further calls do the
rest, whoever makes them.
"""

from __future__ import annotations

import pytest

from gridq.store.scripts import Scripts
from gridq.views.audit import find_breaches
from tests.unit.store.limits import limit, read_parked_agents
from tests.unit.store.plans import HOUR, Grid, chain, one

MANY = 600
AGENTS = [f"a{number}" for number in range(MANY)]

pytestmark = pytest.mark.usefixtures("key_hygiene")


@pytest.fixture(params=["its caller goes on", "its caller dies"])
def crowd(request: pytest.FixtureRequest, grid: Grid, monkeypatch: pytest.MonkeyPatch) -> Grid:
    """A grid whose callers go on after their first call, or leave the rest to sweeps."""
    if request.param == "its caller dies":
        monkeypatch.setattr(Scripts, "advance", lambda *_: None)
    return grid


def sweep_up(grid: Grid) -> None:
    while grid.sweep().more:
        assert not find_breaches(grid.client, grid.keys)
    assert not find_breaches(grid.client, grid.keys)
    assert not grid.client.exists(grid.keys("long_work"))


def submit_all(grid: Grid) -> None:
    for agent in AGENTS:
        grid.job(one(), agent=agent)


def test_all_agents_of_a_team_over_its_limit_are_parked(crowd: Grid) -> None:
    members = "".join(f'[agents.{agent}]\nteam = "red"\n' for agent in AGENTS)
    limit(crowd, f"[teams.red]\nmonthly_dollars = 1\n{members}")
    sweep_up(crowd)
    submit_all(crowd)
    crowd.seat()
    claim = crowd.take()
    crowd.job(one(), agent="other")
    crowd.done(claim, used=2_000_000)
    sweep_up(crowd)
    assert len(read_parked_agents(crowd)) == MANY - 1
    assert len(crowd.pending()) == 1


def test_a_stage_that_parks_a_team_still_releases_its_dependents(crowd: Grid) -> None:
    members = "".join(f'[agents.{agent}]\nteam = "red"\n' for agent in AGENTS)
    limit(crowd, f"[teams.red]\nmonthly_dollars = 1\n{members}")
    sweep_up(crowd)
    job = crowd.job(chain(2), agent=AGENTS[0])
    submit_all(crowd)
    crowd.seat()
    crowd.done(crowd.take(), used=2_000_000)
    sweep_up(crowd)
    assert len(read_parked_agents(crowd)) == MANY
    assert crowd.field(job, "dependencies:1") == "0"
    assert crowd.field(job, "pending:1") is not None


def test_a_changed_limit_parks_and_brings_back_all_agents(crowd: Grid) -> None:
    limit(crowd, '[agents."*"]\nmonthly_dollars = 1\n')
    submit_all(crowd)
    limit(crowd, '[agents."*"]\nmonthly_dollars = 0\n')
    sweep_up(crowd)
    assert read_parked_agents(crowd) == set(AGENTS)
    limit(crowd, '[agents."*"]\nbudgets = [{tokens = 0, per = "day"}]\n')
    sweep_up(crowd)
    assert read_parked_agents(crowd) == set(AGENTS)
    limit(crowd, '[agents."*"]\nmonthly_dollars = 1\n')
    sweep_up(crowd)
    assert read_parked_agents(crowd) == set()
    assert len(crowd.pending()) == MANY


def test_named_accounts_get_their_limits_and_lose_them(crowd: Grid) -> None:
    def named(dollars: int) -> str:
        budget = f'budgets = [{{dollars = {dollars}, per = "day"}}]'
        return "".join(f"[agents.{agent}]\n{budget}\n" for agent in AGENTS)

    limit(crowd, named(1))
    sweep_up(crowd)
    assert {meter.limit for agent in AGENTS for meter in crowd.shared(f"a:{agent}")} == {1_000_000}
    limit(crowd, named(2))
    sweep_up(crowd)
    assert {meter.limit for agent in AGENTS for meter in crowd.shared(f"a:{agent}")} == {2_000_000}
    limit(crowd, "[agents.a0]\nmonthly_dollars = 1\n")
    sweep_up(crowd)
    assert not crowd.client.exists(crowd.keys("meters"))


def test_all_live_seats_get_the_limits_of_the_grid(crowd: Grid) -> None:
    for number in range(MANY):
        crowd.seat(f"m.s{number}")
    keys = crowd.keys
    crowd.client.zadd(
        keys("seats"), dict.fromkeys(crowd.client.zrange(keys("seats"), 0, -1), crowd.now() + HOUR)
    )
    limit(crowd, '[grid]\nbudgets = [{dollars = 5, per = "day"}]\n')
    sweep_up(crowd)
    seats = crowd.client.zrange(keys("seats"), 0, -1)
    assert len(seats) == MANY
    assert {crowd.client.hget(keys("seat", seat.decode()), "shared_budgets") for seat in seats} == {b"g"}


def test_of_more_queues_than_a_sweep_looks_at_each_is_found_in_time(grid: Grid) -> None:
    for number in range(60):
        grid.job(one(queue=f"bench:q{number}"), f"j{number}")
    for number in range(60):
        grid.client.delete(grid.keys("job", f"j{number}"))
        grid.client.zrem(grid.keys("deadlines"), f"j{number}")
    for _ in range(2000):
        grid.scripts.sweep(10)
        if not grid.client.exists(*(grid.keys("classes", f"bench:q{number}") for number in range(60))):
            break
    assert not grid.client.exists(*(grid.keys("classes", f"bench:q{number}") for number in range(60)))
