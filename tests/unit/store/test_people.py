"""Daily and weekly budgets of agents and teams, and the refusals beyond them."""

from __future__ import annotations

import pytest

from gridq.store.replies import Accepted, AdmitReply, QuotaReached
from tests.unit.store.ledger_entries import check_ledger
from tests.unit.store.limits import DAY, HOUR, ask, expire_meters, limit, read_parked_agents, turn, turn_at
from tests.unit.store.plans import Grid, chain, one, quota, quota_of
from tests.unit.store.test_meters import numbers

pytestmark = pytest.mark.usefixtures("key_hygiene")

PEOPLE = """
[teams.t]
budgets = [{tokens = 1000, per = "week"}]
[agents.ann]
team = "t"
budgets = [{dollars = 0.01, per = "day"}, {jobs = 3, per = "day"}]
[agents."*"]
budgets = [{jobs = 1, per = "day"}]
"""


def test_an_agents_daily_budget_binds_and_resets(grid: Grid) -> None:
    turn_at(grid, 20 * DAY)
    turn_at(grid, HOUR, period="day")
    limit(grid, PEOPLE)
    grid.seat(concurrency=2)
    assert ask(grid, 6_000) == Accepted()
    refused = quota(ask(grid, 6_000))
    assert (refused.what, refused.name) == ("agent_money", "ann")
    assert (refused.used, refused.reserved, refused.limit, refused.needed) == (0, 6_000, 10_000, 6_000)
    assert (refused.resets_at or 0) <= grid.now() + HOUR
    assert refused.window == "day"
    grid.done(grid.take(), used=2_000)
    assert numbers(grid.shared("a:ann")) == {"money/day": (2_000, 0), "jobs/day": (1, 0)}
    assert ask(grid, 1) == Accepted()
    assert ask(grid, 1) == Accepted()
    assert quota_of(ask(grid, 1)) == ("agent_jobs", "ann")
    check_ledger(grid)
    turn(grid, "day")
    assert ask(grid, 1) == Accepted()
    assert numbers(grid.shared("a:ann")) == {"money/day": (0, 3), "jobs/day": (1, 0)}
    check_ledger(grid)


def test_estimated_tokens_are_reserved_until_a_job_ends(grid: Grid) -> None:
    """Concurrent jobs do not use more than there is."""
    limit(grid, PEOPLE)
    grid.seat()

    def admit(job: str, *tokens: int) -> AdmitReply:
        given = chain(len(tokens))
        arguments = {f"tokens:{step}": f"{number} 0" for step, number in enumerate(tokens)}
        return grid.admit(given, job, more=arguments)

    assert admit("j1", 300, 200) == Accepted()
    assert numbers(grid.shared("t:t")) == {"tokens/week": (0, 500)}
    assert admit("j2", 400) == Accepted()
    assert isinstance(admit("j3", 101), QuotaReached)
    check_ledger(grid)
    first = grid.take()
    grid.done(first, tokens=(250, 100))
    assert numbers(grid.shared("t:t")) == {"tokens/week": (350, 550)}
    check_ledger(grid)
    limit(grid, PEOPLE.replace("1000", "2000"))
    assert numbers(grid.shared("t:t")) == {"tokens/week": (350, 550)}
    for job in ("j1", "j2"):
        grid.scripts.stop(job, "cancelled", "{}")
    assert numbers(grid.shared("t:t")) == {"tokens/week": (350, 0)}
    assert not grid.client.exists(grid.keys("reservations"), grid.keys("reserved"))
    check_ledger(grid)


def test_the_star_table_limits_each_other_agent_separately(grid: Grid) -> None:
    limit(grid, PEOPLE)
    assert ask(grid, agent="bob") == Accepted()
    assert quota_of(ask(grid, agent="bob")) == ("agent_jobs", "bob")
    assert ask(grid, agent="eve") == Accepted()
    limit(grid, PEOPLE)
    assert quota_of(ask(grid, agent="bob")) == ("agent_jobs", "bob")
    check_ledger(grid)


def test_meters_of_inactive_agents_are_removed(grid: Grid) -> None:
    """Without API keys, agents may use any name."""
    limit(grid, PEOPLE)
    grid.seat()
    for number in range(20):
        assert ask(grid, agent=f"passing-{number}") == Accepted()
    expire_meters(grid, "day")
    for _ in range(60):
        grid.sweep()
    assert {name.decode() for name in grid.client.hkeys(grid.keys("meters"))} == {"a:ann", "t:t"}
    assert ask(grid, agent="passing-1") == Accepted()
    assert quota(ask(grid, agent="passing-1")).what == "agent_jobs"
    check_ledger(grid)


def test_a_team_over_its_tokens_is_parked_until_the_week_resets(grid: Grid) -> None:
    turn_at(grid, 20 * DAY)
    turn_at(grid, HOUR, period="day")
    turn_at(grid, 5 * DAY, period="week")
    limit(grid, PEOPLE)
    grid.seat()
    assert ask(grid) == Accepted()
    grid.job(one(), "waits")
    grid.done(grid.take(), tokens=(900, 300))
    assert read_parked_agents(grid) == {"ann"}
    assert grid.claim() == "none"
    assert quota_of(ask(grid)) == ("team_tokens", "t")
    turn(grid, "week")
    turn(grid, "day")
    grid.sweep()
    assert read_parked_agents(grid) == set()
    grid.take()
    check_ledger(grid)


def test_a_budget_with_its_own_table_is_kept_without_use(grid: Grid) -> None:
    """The sweep removes only meters without a table of their own."""
    turn_at(grid, 20 * DAY)
    limit(
        grid,
        '[agents.ann]\nbudgets = [{tokens = 5, per = "day"}]\n'
        '[agents."*"]\nbudgets = [{jobs = 5, per = "day"}]',
    )
    turn_at(grid, DAY, period="day")
    grid.job(one(), agent="cleo")
    turn(grid, "day")
    for _ in range(20):
        grid.sweep()
    assert {name.decode() for name in grid.client.hkeys(grid.keys("meters"))} == {"a:ann"}


def test_a_quota_preview_matches_the_admission_and_writes_nothing(grid: Grid) -> None:
    """Compare a series of jobs of an agent, its team, a key's team and an agent without a table."""
    turn_at(grid, 20 * DAY)
    turn_at(grid, HOUR, period="day")
    turn_at(grid, 3 * DAY, period="week")
    assert grid.scripts.preview_quota("ann", "k", 5, 5) == ("k", None)  # no limits
    limit(
        grid,
        PEOPLE + "monthly_jobs = 4\n[agents.eve]\nmonthly_dollars = 0.02\n[agents.mute]\nmonthly_jobs = 0",
    )
    grid.seat(concurrency=4)
    outcomes = set()
    for agent, cost, tokens in (
        ("eve", 15_000, 0), ("eve", 15_000, 0), ("ann", 6_000, 300), ("ann", 6_000, 0), ("ann", 1, 800),
        ("ann", 1, 400), ("ann", 1, 300), ("ann", 1, 1), ("bob", 1, 0), ("bob", 1, 0),
        ("mute", 0, 0), ("ann", 20_000, 0),
    ):  # fmt: skip
        before = read_all_keys(grid)
        _, look = grid.scripts.preview_quota(agent, "-", cost, tokens)
        assert read_all_keys(grid) == before
        reply = ask(grid, cost, agent, more={"tokens:0": f"{tokens} 0"})
        assert (look or Accepted()) == reply
        outcomes.add(reply.what if isinstance(reply, QuotaReached) else "ok")
    assert outcomes == {"ok", "agent_money", "agent_jobs", "team_tokens"}
    assert grid.scripts.preview_quota("ann", "other", 0, 0).team == "t"
    team, refusal = grid.scripts.preview_quota("eve", "t", 0, 900)
    assert refusal is not None
    assert (team, refusal.what, refusal.name) == ("t", "team_tokens", "t")


def read_all_keys(grid: Grid) -> dict[bytes, bytes | None]:
    """Return all keys of the grid with their content."""
    return {key: grid.client.dump(key) for key in grid.client.scan_iter(grid.keys("*"))}
