"""Cancel a job that runs."""

from __future__ import annotations

import pytest

import gridq
from gridq.client import Client
from gridq.errors import JobCancelled
from gridq.protocol.states import JobState
from tests.waiting import wait_for

A_MINUTE = {"root": {"op": "Stage", "id": "bench_sleep", "config": {"ms": 60_000}}}


def test_a_cancelled_job_ends_at_once(grid: Client) -> None:
    """`cancel` returns whether it ended the job. The stage is stopped on the seat that runs it."""
    job = gridq.submit(A_MINUTE)
    wait_for(lambda: any(stage.state == "running" for stage in grid.view(job).stages))
    assert gridq.cancel(job)
    with pytest.raises(JobCancelled):
        gridq.result(job, timeout=30)
    assert grid.status(job) is JobState.CANCELLED
    assert not gridq.cancel(job), "it has ended already"
