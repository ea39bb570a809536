"""enqueue.lua and admit.lua: one job for one idempotency key, one body for one id."""

from __future__ import annotations

from typing import Any

import pytest

from gridq.jobs.record import build_plan_fields
from gridq.protocol.states import JobState
from gridq.store.replies import (
    Accepted,
    AdmitReply,
    AlreadyKnown,
    EnqueueReply,
    NoSeat,
    OtherBody,
    QuotaReached,
    SameJob,
)
from gridq.store.scripts import NewJob
from tests.unit.store.limits import limit
from tests.unit.store.plans import HOUR, Grid, chain, one

pytestmark = pytest.mark.usefixtures("key_hygiene")


def enqueue(grid: Grid, job: str, key: str = "ann:k", body: str = "b", **more: Any) -> EnqueueReply:
    given: dict[str, Any] = {
        "agent": "ann", "deadline_ms": HOUR, "result_ttl_ms": 5000, "celery": False, "stream": False,
        "graph": b"{}", "input": b"1", "options": b"{}",
    }  # fmt: skip
    return grid.scripts.enqueue(job, idempotency_key=key, body_digest=body, **given | more)


def admit(grid: Grid, job: str, key: str = "ann:k", body: str = "b", **more: Any) -> AdmitReply:
    fields, ready, needs = build_plan_fields(one())
    given: dict[str, Any] = {
        "agent": "ann", "priority": 0, "deadline_ms": HOUR, "result_ttl_ms": 5000, "celery": False,
        "stream": False,
        "wait_for_seat": True, "input": b"1", "answer": 0, "steps": 1, "queues": needs, "ready": ready,
        "fields": fields,
    }  # fmt: skip
    return grid.scripts.admit(NewJob(job=job, idempotency_key=key, body_digest=body, **given | more))


def key_life(grid: Grid, key: str = "ann:k") -> int:
    return int(grid.client.pttl(grid.keys("idempotency", key)))


def test_another_body_under_a_key_is_refused_in_both_entries(grid: Grid) -> None:
    assert admit(grid, "j1") == Accepted()
    assert enqueue(grid, "j2", body="other") == OtherBody("j1")
    assert admit(grid, "j3", body="other") == OtherBody("j1")
    assert grid.client.zrange(grid.keys("jobs"), 0, -1) == [b"j1"]


def test_a_key_lives_as_long_as_its_job_and_result(grid: Grid) -> None:
    grid.seat()
    enqueue(grid, "j1")
    assert HOUR < key_life(grid) <= 2 * HOUR
    admit(grid, "j1", "", "", deadline_ms=None)
    assert HOUR < key_life(grid) <= 2 * HOUR
    grid.done(grid.take())
    assert 0 < key_life(grid) <= 5000
    assert grid.client.pttl(grid.keys("result", "j1")) <= 5000
    admit(grid, "j2", "ann:other")
    assert HOUR < key_life(grid, "ann:other") <= 2 * HOUR
    grid.scripts.stop("j2", "cancelled", "{}")
    assert 0 < key_life(grid, "ann:other") <= 5000


def test_a_cancelled_job_keeps_its_key(grid: Grid) -> None:
    enqueue(grid, "j1")
    grid.scripts.stop("j1", "cancelled", "{}")
    assert enqueue(grid, "j2") == SameJob("j1")
    assert grid.ended("j1").state is JobState.CANCELLED


def test_a_job_refused_in_the_inbox_frees_its_key(grid: Grid) -> None:
    enqueue(grid, "j1")
    assert grid.scripts.stop("j1", "failed", "{}", inbox_only=True) == "plain"
    assert not grid.client.exists(grid.keys("idempotency", "ann:k"))
    assert enqueue(grid, "j2", body="other") == Accepted()
    # A late router can only refuse a job that is still in the inbox.
    admit(grid, "j2", "", "", deadline_ms=None)
    assert grid.scripts.stop("j2", "failed", "{}", inbox_only=True) == "over"
    assert enqueue(grid, "j3", body="other") == SameJob("j2")


def test_a_refused_submission_stores_no_key(grid: Grid) -> None:
    assert admit(grid, "j1", wait_for_seat=False) == NoSeat(("bench:any",))
    assert not grid.client.exists(grid.keys("idempotency", "ann:k"))
    limit(grid, "[agents.ann]\nmonthly_jobs = 0")
    assert isinstance(admit(grid, "j1"), QuotaReached)
    assert not grid.client.exists(grid.keys("idempotency", "ann:k"))


@pytest.mark.parametrize("ended", [False, True])
def test_one_id_has_one_body_in_both_entries(grid: Grid, ended: bool) -> None:
    grid.seat()
    assert enqueue(grid, "j1", "", "a") == Accepted()
    assert admit(grid, "j1", "", "b") == OtherBody("j1")
    assert admit(grid, "j1", "", "a") == AlreadyKnown()  # and a router admits it, with what it came with
    assert grid.claim() == "none"
    assert admit(grid, "j1", "", "", deadline_ms=None) == Accepted()
    if ended:
        grid.done(grid.take())
    assert admit(grid, "j1", "", "b") == OtherBody("j1")
    assert enqueue(grid, "j1", "", "b") == OtherBody("j1")
    assert enqueue(grid, "j1", "", "a") == AlreadyKnown()
    assert admit(grid, "j1", "", "a") == AlreadyKnown()


@pytest.mark.parametrize("ended", [False, True])
def test_an_id_generated_by_the_grid_cannot_be_reused(grid: Grid, ended: bool) -> None:
    grid.seat()
    assert admit(grid, "j1", "", "") == Accepted()
    if ended:
        grid.done(grid.take())
    assert admit(grid, "j1", "", "a") == OtherBody("j1")
    assert enqueue(grid, "j1", "", "a") == OtherBody("j1")
    assert admit(grid, "j1", "", "") == AlreadyKnown()


def test_the_input_of_the_existing_job_is_kept(grid: Grid) -> None:
    """A refused submission's long input is dropped; that of the existing job is not."""
    grid.seat()
    for name in ("j1:in", "j2:in"):
        grid.client.set(grid.keys("value", name), b"[]", px=HOUR)
    assert enqueue(grid, "j1", "ann:k", input=b"@j1:in") == Accepted()
    assert enqueue(grid, "j1", "ann:k", "other", input=b"@j1:in") == OtherBody("j1")
    assert enqueue(grid, "j2", "ann:k", input=b"@j2:in") == SameJob("j1")
    assert not grid.client.exists(grid.keys("value", "j2:in"))
    admit(grid, "j1", "", "", deadline_ms=None)
    assert admit(grid, "j1", "", "other", input=b"@j1:in") == OtherBody("j1")
    assert grid.client.exists(grid.keys("value", "j1:in"))


def test_a_job_without_a_key_stores_none(grid: Grid) -> None:
    grid.job(chain(2), "j1")
    assert not [name for name in grid.own() if name.startswith("idempotency")]
    assert grid.field("j1", "body") is None
