"""A job's own budget, from its submission to its end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from gridq.errors import JobBudgetExceeded
from gridq.jobs.record import JobOptions
from gridq.submission.request import JobRequest
from tests.builders import seq, stage
from tests.conftest import GridEnv
from tests.fakes.bench_profile import BENCH
from tests.local_grid import DEFAULT_SEATS, LocalGrid


@pytest.fixture
def grid(grid_env: GridEnv) -> Iterator[LocalGrid]:
    config = grid_env.settings.model_copy(update={"profiles": (BENCH,), "inline_value": 100})
    with LocalGrid(grid_env.client, config, DEFAULT_SEATS) as started:
        yield started


SPENDS = {"root": seq(stage("bench_spend", micro_dollars=30_000), stage("bench_spend", micro_dollars=30_000))}


def test_a_job_fails_at_the_stage_that_exceeds_its_budget(grid: LocalGrid) -> None:
    assert grid.client.run(SPENDS, {}, 30, budget_cents=6)["micro_dollars"] == 30_000
    graph = {"root": seq(SPENDS["root"], stage("bench_echo"))}
    with pytest.raises(JobBudgetExceeded, match=r"used \$0\.01 more") as caught:
        grid.client.run(graph, {}, 30, budget_cents=5)
    assert caught.value.path == "root.stages[0].stages[1]"


def test_a_job_estimated_over_its_budget_is_refused_and_leaves_nothing(grid: LocalGrid) -> None:
    admission = grid.client.admission
    graph = b'{"root": {"op": "Stage", "id": "bench_echo"}}'
    admission._compiled[graph] = replace(admission.compile(graph), micro_dollars=10_001)
    about = JobOptions(budget_cents=1)
    value = b'"' + b"x" * 200 + b'"'
    with pytest.raises(JobBudgetExceeded) as caught:
        admission.admit(JobRequest("j", graph, value, about))
    assert caught.value.fix == "submit it with a budget_cents of 1.0001 or more"
    left = list(grid.scripts.client.scan_iter(f"{grid.config.prefix}.*:j*"))
    assert left == []
