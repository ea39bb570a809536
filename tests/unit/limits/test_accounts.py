"""Refusals and accounts."""

from __future__ import annotations

import pytest

from gridq.errors import AgentJobsExceeded, AgentMoneyExceeded, TeamMoneyExceeded
from gridq.limits.accounts import Account, build_quota_error, find_window
from gridq.protocol.money import format_dollars
from gridq.store.replies import QuotaReached

TURN = 1_796_083_200_000  # 2026-12-01T00:00:00Z


@pytest.mark.parametrize(
    ("micro", "text"),
    [
        (0, "$0.00"),
        (1, "$0.000001"),
        (1_500_000, "$1.50"),
        (-2_345_600, "-$2.3456"),
        (10**15, "$1000000000.00"),
    ],
)
def test_dollars_are_exact(micro: int, text: str) -> None:
    assert format_dollars(micro) == text


def test_a_used_up_budget_may_be_retried_after_the_month() -> None:
    reply = QuotaReached("agent_money", "ann", 9000000, 500000, 10000000, 2000000, TURN, "month")
    error = build_quota_error(reply, "Europe/Berlin")
    assert type(error) is AgentMoneyExceeded
    assert error.details["retry_at"] == "2026-12-01T01:00:00+01:00"
    assert str(error) == (
        "quota.agent_money: The agent 'ann' has too little money left for this job (at"
        " agents.ann.monthly_dollars); expected at least $2.00 left; $9.00 of $10.00 a month is used, "
        "$0.50 is reserved. Fix: raise agents.ann.monthly_dollars in the quotas file, or submit it"
        " again after 2026-12-01T01:00:00+01:00"
    )


def test_an_unknown_grid_time_zone_does_not_prevent_a_refusal() -> None:
    reply = QuotaReached("agent_money", "ann", 9000000, 500000, 10000000, 2000000, TURN, "month")
    error = build_quota_error(reply, "Mars/Gale")
    assert type(error) is AgentMoneyExceeded
    assert error.details["retry_at"] == "2026-12-01T00:00:00+00:00"


def test_a_reservation_may_be_released_sooner() -> None:
    error = build_quota_error(QuotaReached("team_money", "t", 1, 9999999, 10000000, 5, TURN, "month"), "UTC")
    assert type(error) is TeamMoneyExceeded
    assert "when running jobs have ended" in (error.fix or "")


def test_without_a_calendar_there_is_no_retry_time() -> None:
    error = build_quota_error(QuotaReached("agent_jobs", "ann", 3, 0, 3, 1, None, "month"), "UTC")
    assert type(error) is AgentJobsExceeded
    assert error.message == "The agent 'ann' has no jobs left this month"
    assert error.reason == "3 of 3 jobs a month are used"
    assert error.details["retry_at"] is None


def test_a_limit_of_zero_has_no_retry_time() -> None:
    error = build_quota_error(QuotaReached("agent_jobs", "ann", 0, 0, 0, 1, TURN, "month"), "UTC")
    assert error.details["retry_at"] is None
    assert "to 1 or more" in (error.fix or "")


def test_no_limit_has_no_remainder() -> None:
    assert Account("agent", "ann", "money", None, 5, 3, resource="money").remaining is None
    assert Account("agent", "ann", "money", 6, 5, 3, resource="money").remaining == -2


def test_the_current_window_is_found_like_in_the_scripts() -> None:
    assert find_window("", 5) == (0, None)
    assert find_window("1 4 9", 4) == (4, 9)
    assert find_window("1 4 9", 20) == (9, None)
    assert find_window("7 9", 5) == (0, 7)
