"""Cancel a job."""

from __future__ import annotations

import pytest

import gridq
from gridq.client import Client
from gridq.errors import JobCancelled
from gridq.protocol.states import JobState
from tests.waiting import wait_for

A_MINUTE = {"root": {"op": "Stage", "id": "bench_sleep", "config": {"ms": 60_000}}}


def test_a_cancelled_job_stops_where_it_runs(grid: Client) -> None:
    job = gridq.submit(A_MINUTE)
    wait_for(lambda: any(stage.state == "running" for stage in grid.view(job).stages))
    assert gridq.cancel(job)
    with pytest.raises(JobCancelled):
        gridq.result(job, timeout=30)
    assert grid.status(job) is JobState.CANCELLED
    assert not gridq.cancel(job), "it had ended before"
