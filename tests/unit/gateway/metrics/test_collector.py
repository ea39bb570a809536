"""Metrics name a bounded number of agents."""

from __future__ import annotations

from gridq.gateway.metrics.collector import group_agents
from gridq.gateway.metrics.job_metrics import MAX_AGENTS, OTHER_AGENTS
from gridq.limits.accounts import Account


def account(name: str, spent: int, limit: int | None = None, what: str = "money") -> Account:
    return Account(
        "agent", name, what, limit, spent, reserved=1, resource="money" if what == "money" else "jobs"
    )


def test_few_agents_and_other_accounts_are_kept_separate() -> None:
    accounts = [account(f"a{number}", number) for number in range(MAX_AGENTS)]
    accounts += [
        Account("owner", f"o{number}", "tokens a day", 9, 1, resource="tokens")
        for number in range(2 * MAX_AGENTS)
    ]
    assert sorted(group_agents(accounts), key=str) == sorted(accounts, key=str)


def test_many_agents_are_summed_up_except_those_nearest_to_a_limit() -> None:
    strangers = [
        account(f"s{number}", 100 + number, what=what)
        for number in range(MAX_AGENTS + 10)
        for what in ("money", "jobs")
    ]
    near, far = account("near", 50, 60), account("far", 0, 10**6)
    near_jobs = account("near", 0, what="jobs")
    groups = group_agents([*strangers, far, near, near_jobs])
    names = {each.name for each in groups}
    assert len(names) == MAX_AGENTS + 1
    assert names >= {"near", "far", OTHER_AGENTS}
    assert near_jobs in groups
    # Of the strangers those that used least are together: ten, and the two in whose place the others stand.
    others = {each.what: each for each in groups if each.name == OTHER_AGENTS}
    least = sum(100 + number for number in range(12))
    assert {what: (each.spent, each.reserved, each.limit) for what, each in others.items()} == {
        "money": (least, 12, None),
        "jobs": (least, 12, None),
    }
    assert others["money"].is_money
    assert not others["jobs"].is_money
