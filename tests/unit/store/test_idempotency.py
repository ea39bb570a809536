"""enqueue.lua and admit.lua: one job for one idempotency key, one body for one id."""

from __future__ import annotations

from typing import Any

import pytest

from gridq.jobs.record import build_plan_fields
from gridq.protocol.states import JobState
from gridq.store.admitting import arguments
from tests.unit.store.limits import limit
from tests.unit.store.plans import HOUR, Grid, chain, one

pytestmark = pytest.mark.usefixtures("key_hygiene")


def enqueue(grid: Grid, job: str, key: str = "ann:k", body: str = "b", **more: Any) -> bool | list[str]:
    given: dict[str, Any] = {
        "agent": "ann", "deadline_ms": HOUR, "ttl_ms": 5000, "celery": False, "stream": False,
        "graph": b"{}", "value": b"1", "options": b"{}",
    }  # fmt: skip
    return grid.scripts.enqueue(job, idempotency=key, body=body, **given | more)


def admit(grid: Grid, job: str, key: str = "ann:k", body: str = "b", **more: Any) -> list[str]:
    fields, ready, needs = build_plan_fields(one())
    given: dict[str, Any] = {
        "agent": "ann", "prio": 0, "deadline_ms": HOUR, "ttl_ms": 5000, "celery": False, "stream": False,
        "wait": True, "value": b"1", "answer": 0, "steps": 1, "needs": needs, "ready": ready,
        "fields": fields,
    }  # fmt: skip
    return grid.scripts.admit(arguments(job, idempotency=key, body=body, **given | more))


def key_life(grid: Grid, key: str = "ann:k") -> int:
    return int(grid.client.pttl(grid.keys("idempotency", key)))


def test_the_same_key_and_body_is_the_job_that_has_it_by_either_door(grid: Grid) -> None:
    grid.seat()
    assert enqueue(grid, "j1") is True
    assert enqueue(grid, "j2") == ["same", "j1"]
    assert admit(grid, "j3") == ["same", "j1"]
    assert admit(grid, "j1", "", "", deadline_ms=None, value=b"") == ["ok"]  # a router
    assert enqueue(grid, "j4") == ["same", "j1"]
    assert admit(grid, "j5") == ["same", "j1"]
    grid.done(grid.take())
    assert enqueue(grid, "j6") == ["same", "j1"]
    assert admit(grid, "j7") == ["same", "j1"]
    assert grid.client.zrange(grid.keys("jobs"), 0, -1) == [b"j1"]


def test_another_body_under_a_key_is_refused_and_names_the_job(grid: Grid) -> None:
    assert admit(grid, "j1") == ["ok"]
    assert enqueue(grid, "j2", body="other") == ["conflict", "j1"]
    assert admit(grid, "j3", body="other") == ["conflict", "j1"]
    assert grid.client.zrange(grid.keys("jobs"), 0, -1) == [b"j1"]


def test_agents_do_not_meet(grid: Grid) -> None:
    assert admit(grid, "j1", "ann:k") == ["ok"]
    assert admit(grid, "j2", "bob:k", "other", agent="bob") == ["ok"]
    assert enqueue(grid, "j3", "cid:k", agent="cid") is True


def test_a_key_lives_as_its_job_and_then_as_the_result(grid: Grid) -> None:
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
    assert enqueue(grid, "j2") == ["same", "j1"]
    assert grid.ended("j1").state is JobState.CANCELLED


def test_what_is_refused_leaves_no_key(grid: Grid) -> None:
    assert admit(grid, "j1", wait=False) == ["noseat", "bench:any"]
    assert not grid.client.exists(grid.keys("idempotency", "ann:k"))
    limit(grid, "[agents.ann]\nmonthly_jobs = 0")
    assert admit(grid, "j1")[0] == "quota"
    assert not grid.client.exists(grid.keys("idempotency", "ann:k"))


def test_a_key_of_the_inbox_goes_with_the_refusal_of_its_job(grid: Grid) -> None:
    enqueue(grid, "j1")
    assert grid.scripts.stop("j1", "failed", "{}", inbox_only=True) == "plain"
    assert not grid.client.exists(grid.keys("idempotency", "ann:k"))
    assert enqueue(grid, "j2", body="other") is True
    # A router that is late refuses only what still stands in the inbox.
    admit(grid, "j2", "", "", deadline_ms=None)
    assert grid.scripts.stop("j2", "failed", "{}", inbox_only=True) == "over"
    assert enqueue(grid, "j3", body="other") == ["same", "j2"]


def test_a_repeated_call_is_no_conflict_with_itself(grid: Grid) -> None:
    assert enqueue(grid, "j1") is True
    assert enqueue(grid, "j1") is False
    assert admit(grid, "j2", "ann:2") == ["ok"]
    assert admit(grid, "j2", "ann:2") == ["known"]


@pytest.mark.parametrize("ended", [False, True])
def test_one_id_is_one_body_by_either_door(grid: Grid, ended: bool) -> None:
    grid.seat()
    assert enqueue(grid, "j1", "", "a") is True
    assert admit(grid, "j1", "", "b") == ["conflict", "j1"]
    assert admit(grid, "j1", "", "a") == ["known"]  # and a router admits it, with what it came with
    assert grid.claim() == "none"
    assert admit(grid, "j1", "", "", deadline_ms=None) == ["ok"]
    if ended:
        grid.done(grid.take())
    assert admit(grid, "j1", "", "b") == ["conflict", "j1"]
    assert enqueue(grid, "j1", "", "b") == ["conflict", "j1"]
    assert enqueue(grid, "j1", "", "a") is False
    assert admit(grid, "j1", "", "a") == ["known"]


@pytest.mark.parametrize("ended", [False, True])
def test_an_id_that_the_grid_made_is_nobodys_to_give(grid: Grid, ended: bool) -> None:
    grid.seat()
    assert admit(grid, "j1", "", "") == ["ok"]
    if ended:
        grid.done(grid.take())
    assert admit(grid, "j1", "", "a") == ["conflict", "j1"]
    assert enqueue(grid, "j1", "", "a") == ["conflict", "j1"]
    assert admit(grid, "j1", "", "") == ["known"]


def test_the_input_of_the_job_that_is_there_stays(grid: Grid) -> None:
    """A refused submission's long input is dropped, that of the job which has the id is not."""
    grid.seat()
    for name in ("j1:in", "j2:in"):
        grid.client.set(grid.keys("value", name), b"[]", px=HOUR)
    assert enqueue(grid, "j1", "ann:k", value=b"@j1:in") is True
    assert enqueue(grid, "j1", "ann:k", "other", value=b"@j1:in") == ["conflict", "j1"]
    assert enqueue(grid, "j2", "ann:k", value=b"@j2:in") == ["same", "j1"]
    assert not grid.client.exists(grid.keys("value", "j2:in"))
    admit(grid, "j1", "", "", deadline_ms=None)
    assert admit(grid, "j1", "", "other", value=b"@j1:in") == ["conflict", "j1"]
    assert grid.client.exists(grid.keys("value", "j1:in"))


def test_a_job_that_is_found_by_its_key_is_answered_through_celery_where_that_is_asked(grid: Grid) -> None:
    grid.seat()
    admit(grid, "j1")
    assert enqueue(grid, "j2", celery=True) == ["same", "j1"]
    assert grid.done(grid.take()) == "celery"


def test_a_key_holds_nothing_of_a_quota_twice(grid: Grid) -> None:
    limit(grid, "[agents.ann]\nmonthly_jobs = 1")
    assert admit(grid, "j1") == ["ok"]
    assert admit(grid, "j2") == ["same", "j1"]
    assert admit(grid, "j3", "ann:3")[0] == "quota"


def test_a_job_without_a_key_costs_no_more(grid: Grid) -> None:
    grid.job(chain(2), "j1")
    assert not [name for name in grid.own() if name.startswith("idempotency")]
    assert grid.field("j1", "body") is None
