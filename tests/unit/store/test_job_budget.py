"""A job's own budget: its recorded stages are paid from it, and the one that goes over ends the job."""

from __future__ import annotations

import pytest

from gridq.protocol.states import JobState
from gridq.store import values
from gridq.store.replies import Claim
from tests.unit.store.plans import Grid, chain, one, wide

pytestmark = pytest.mark.usefixtures("key_hygiene")


def budget(grid: Grid, job: str, micro: int) -> None:
    grid.client.hset(grid.keys("job", job), "budget", micro)


def test_the_stage_that_exceeds_the_job_budget_ends_the_job(grid: Grid) -> None:
    grid.seat()
    job = grid.job(chain(3))
    budget(grid, job, 100)
    grid.done(grid.take(), used=100)  # all of it: not over yet
    assert grid.end(job) is None
    lease = grid.take().lease
    assert grid.complete(lease, used=1) == (1, "plain", "none")
    end = grid.end(job)
    assert end is not None
    assert end.state is JobState.FAILED
    error = values.decode(end.payload)
    assert (error["code"], error["details"]["path"]) == ("quota.job_budget", "root")
    assert "$0.000001 more" in error["details"]["reason"]
    assert grid.claim() == "none"  # the third stage is gone
    assert grid.complete(lease, used=1)[0] == 0  # the reply was lost: the same again


def test_the_last_stage_may_exceed_the_job_budget(grid: Grid) -> None:
    grid.seat()
    job = grid.job(one())
    budget(grid, job, 5)
    grid.done(grid.take(), used=50)
    end = grid.end(job)
    assert end is not None
    assert end.state is JobState.DONE


def test_exceeding_the_job_budget_stops_running_siblings(grid: Grid) -> None:
    grid.seat(concurrency=3)
    job = grid.job(wide(3))
    budget(grid, job, 5)
    first, second = grid.take(slot="0"), grid.take(slot="1")
    grid.complete(first, used=6)
    assert grid.scripts.find_fenced([second.lease]) == [second.lease]
    assert grid.claim(slot="2") == "none"


def test_a_free_stage_does_not_exceed_a_budget_of_zero(grid: Grid) -> None:
    grid.seat()
    job = grid.job(chain(2))
    budget(grid, job, 0)
    _, _, after = grid.complete(grid.take(), go_on=True)
    assert isinstance(after, Claim)
    assert after.job == job
