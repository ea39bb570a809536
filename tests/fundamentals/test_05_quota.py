"""Limit what an agent may use."""

from __future__ import annotations

import pytest

import gridq
from gridq.client import Client
from gridq.errors import AgentJobsExceeded

ECHO = {"root": {"op": "Stage", "id": "bench_echo"}}


def test_the_third_job_is_refused(grid: Client) -> None:
    """The quotas file of this grid gives the agent `intern` two jobs a month. The refusal says which limit,
    and when to try again.
    """
    for number in range(2):
        assert gridq.result(gridq.submit(ECHO, number, agent="intern"), timeout=30) == number
    with pytest.raises(AgentJobsExceeded) as refused:
        gridq.submit(ECHO, 3, agent="intern")
    assert refused.value.details["limit"] == 2
    assert "retry_at" in refused.value.details


def test_other_agents_are_not_affected(grid: Client) -> None:
    assert gridq.result(gridq.submit(ECHO, "fine", agent="ann"), timeout=30) == "fine"
