"""Ended jobs are counted once each."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import redis

from gridq.gateway.metrics import job_metrics as module
from gridq.gateway.metrics.histogram import Histogram
from gridq.gateway.metrics.job_metrics import OTHER_AGENTS, JobMetrics
from gridq.store.connection import now_ms
from gridq.store.keys import Keys
from tests.conftest import GridEnv

HOUR = 3_600_000


class EndedJobs:
    """Jobs that have ended, as the scripts leave them."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self.client = client
        self.keys = keys

    def add(self, job: str, *, state: str = "done", agent: str = "ann", at: int | None = None,
            **row: object) -> None:  # fmt: skip
        now = now_ms(self.client) if at is None else at
        self.client.hset(self.keys("summary", job), mapping={"state": state, "agent": agent})
        self.client.zadd(self.keys("ended_jobs"), {job: now + HOUR})
        self.client.zadd(self.keys("jobs"), {job: now})
        if row:
            full = {"queue": "llm:any", "worker": "gpu0@m", "wait_ms": 20.0, "run_ms": 2000.0, **row}
            self.client.rpush(self.keys("rows", job), json.dumps([full]))


@pytest.fixture
def ended_jobs(grid_env: GridEnv) -> Iterator[EndedJobs]:
    keys = Keys(grid_env.prefix)
    yield EndedJobs(grid_env.client, keys)
    grid_env.client.unlink(keys("ended_jobs"), keys("jobs"))


@pytest.fixture
def metrics(ended_jobs: EndedJobs) -> JobMetrics:
    ended_jobs.add("before", at=now_ms(ended_jobs.client) - 5000)
    made = JobMetrics(HOUR)
    made.update(ended_jobs.client, ended_jobs.keys)
    return made


def test_jobs_that_ended_since_the_start_are_counted_once(ended_jobs: EndedJobs, metrics: JobMetrics) -> None:
    assert (metrics.submitted, sum(metrics.ended.values())) == (0, 0)
    ended_jobs.add("a", micro_dollars=30, tokens_in=5, tokens_out=7, failures=1, losses=1)
    ended_jobs.add("b", state="failed", agent="bob")
    for _ in range(3):
        metrics.update(ended_jobs.client, ended_jobs.keys)
    assert metrics.ended == {"done": 1, "failed": 1}
    assert metrics.stages == {("llm:any", "done"): 1}
    assert metrics.tokens == {("llm:any", "in"): 5, ("llm:any", "out"): 7}
    assert metrics.retries == {"llm:any": 2}
    assert (metrics.agents, metrics.seats, metrics.micro_dollars) == ({"ann": 30}, {"m.gpu0": 30}, 30)
    assert dict(metrics.waits["llm:any"].cumulative_buckets())["0.025"] == 1.0
    assert metrics.runs["llm:any"].sum == 2.0


def test_jobs_that_end_in_one_millisecond_are_all_counted(ended_jobs: EndedJobs, metrics: JobMetrics) -> None:
    now = now_ms(ended_jobs.client)
    ended_jobs.add("m", at=now)
    metrics.update(ended_jobs.client, ended_jobs.keys)
    for job in ("a", "n", "z"):
        ended_jobs.add(job, at=now)
    metrics.update(ended_jobs.client, ended_jobs.keys)
    metrics.update(ended_jobs.client, ended_jobs.keys)
    assert metrics.ended == {"done": 4}


def test_jobs_of_the_current_millisecond_are_counted_at_the_next_update(
    ended_jobs: EndedJobs, metrics: JobMetrics
) -> None:
    for number in range(20):
        ended_jobs.add(f"j{number}")
        metrics.update(ended_jobs.client, ended_jobs.keys)
    until = now_ms(ended_jobs.client)
    while now_ms(ended_jobs.client) <= until + 1:
        pass
    metrics.update(ended_jobs.client, ended_jobs.keys)
    assert metrics.submitted == 20


def test_an_update_is_bounded_and_the_next_continues(
    ended_jobs: EndedJobs, metrics: JobMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGE_JOBS", 2)
    monkeypatch.setattr(module, "MAX_JOBS_PER_UPDATE", 4)
    for number in range(7):
        ended_jobs.add(f"j{number}")
    metrics.update(ended_jobs.client, ended_jobs.keys)
    assert metrics.lagging
    assert sum(metrics.ended.values()) < 7
    while metrics.lagging:
        metrics.update(ended_jobs.client, ended_jobs.keys)
    assert metrics.ended == {"done": 7}


def test_the_number_of_agents_is_bounded(
    ended_jobs: EndedJobs, metrics: JobMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_AGENTS", 2)
    for number in range(5):
        ended_jobs.add(f"j{number}", agent=f"a{number}", micro_dollars=1)
    ended_jobs.add("again", agent="a0", micro_dollars=1)
    metrics.update(ended_jobs.client, ended_jobs.keys)
    assert len(metrics.agents) == 3
    assert metrics.agents[OTHER_AGENTS] == 3
    assert metrics.micro_dollars == 6


def test_a_histogram_counts_up_to_each_bound() -> None:
    found = Histogram()
    for seconds in (0.0, 0.005, 0.006, 2000.0):
        found.observe(seconds)
    buckets = dict(found.cumulative_buckets())
    assert (buckets["0.005"], buckets["0.025"], buckets["1800.0"], buckets["+Inf"]) == (2, 3, 3, 4)


def test_prompt_tokens_are_counted_by_whether_they_were_cached(
    ended_jobs: EndedJobs, metrics: JobMetrics
) -> None:
    ended_jobs.add("a", tokens_in=50, tokens_cached=40)
    ended_jobs.add("b", tokens_in=7)
    ended_jobs.add("c", tokens_in=3, tokens_cached=9)  # an endpoint that counts in its own way
    ended_jobs.add("d", tokens_out=5)
    metrics.update(ended_jobs.client, ended_jobs.keys)
    assert metrics.prompt_tokens == {("llm:any", "true"): 43, ("llm:any", "false"): 17}
