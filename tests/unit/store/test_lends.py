"""A seat that is lent to some agents and teams alone: register.lua, admit.lua, lib/claiming.lua,
waiting_stages.lua.
"""

from __future__ import annotations

import json

import pytest

from gridq.store.replies import Accepted, NoSeat, NotLent
from tests.unit.store.plans import ANY, Grid, one, wide

pytestmark = pytest.mark.usefixtures("key_hygiene")


def agent_of(grid: Grid, lease: str) -> str | None:
    return grid.field(lease.partition(":")[0], "agent")


def key(grid: Grid, agent: str, team: str | None) -> str:
    """The id of an API key."""
    record = {"agent": agent} if team is None else {"agent": agent, "team": team}
    grid.client.hset(grid.keys("api_keys"), f"k-{agent}", json.dumps(record))
    return f"k-{agent}"


def test_a_lent_seat_serves_only_its_borrowers_and_borrowers_go_first(grid: Grid) -> None:
    grid.seat("m.a", lent_to=["ci"])
    for number in range(30):  # more than a look takes in
        grid.job(one(), agent=f"other{number:02}")
    assert grid.claim() == "none"
    job = grid.job(one(), agent="ci")
    assert grid.take().job == job
    assert grid.claim(slot="0") != "none"  # its slot's own lease, once more
    grid.seat("m.b")
    assert agent_of(grid, grid.take("m.b").lease) != "ci"


def test_borrowers_take_turns(grid: Grid) -> None:
    grid.seat(lent_to=["ann", "bob"])
    for agent in ("zoe", "ann", "ann", "bob", "bob"):
        grid.job(one(), agent=agent)
    served = []
    while not isinstance(claim := grid.claim(), str):
        served.append(agent_of(grid, claim.lease))
        grid.done(claim)
    assert (sorted(map(str, served[:2])), len(served)) == (["ann", "bob"], 4)


def test_a_job_that_no_seat_is_lent_to_is_refused_and_writes_nothing(grid: Grid) -> None:
    grid.seat("m.a", lent_to=["ci", "team:research"])
    before = grid.own()
    assert grid.admit(one(), "j1", wait=False) == NotLent(ANY, (("m.a", "a:ci t:research"),))
    assert grid.own() == before
    assert grid.admit(one(), "j2", agent="ci", wait=False) == Accepted()
    assert grid.admit(one(), "j3", wait=True) == Accepted()
    grid.seat("m.b")
    assert grid.admit(one(), "j4", wait=False) == Accepted()


def test_a_team_of_the_key_is_a_borrower(grid: Grid) -> None:
    grid.seat(lent_to=["team:research"])
    ann, bob = key(grid, "ann", "research"), key(grid, "bob", "sales")
    assert isinstance(grid.admit(one(), "b", agent="bob", key=bob, wait=False), NotLent)
    grid.job(one(), "b", agent="bob", key=bob)
    assert grid.claim() == "none"
    assert grid.admit(one(), "a", agent="ann", key=ann, wait=False) == Accepted()
    assert grid.take().job == "a"


def test_the_team_of_the_quotas_file_overrides_that_of_the_key(grid: Grid) -> None:
    grid.seat(lent_to=["team:research"])
    ann = key(grid, "ann", "sales")
    grid.scripts.apply_limits("d", "{}", {"a:ann": "research - -"})
    assert grid.admit(one(), "a", agent="ann", key=ann, wait=False) == Accepted()
    assert grid.take().job == "a"


def test_a_lent_seat_that_joins_later_does_not_serve_other_waiting_jobs(grid: Grid) -> None:
    grid.job(wide(3), "old", agent="bob")
    grid.seat("m.a", lent_to=["ci"])
    assert grid.claim() == "none"
    grid.seat("m.a", lent_to=["bob"])
    assert grid.take().job == "old"


def test_a_lent_seat_is_woken_only_for_its_borrowers(grid: Grid) -> None:
    grid.seat("m.a", lent_to=["ci"])
    grid.seat("m.b")
    grid.job(one(), agent="bob")
    assert (grid.wake_ups("seat:m.a"), grid.wake_ups("seat:m.b")) == (0, 1)
    grid.job(one(), agent="ci")
    assert grid.wake_ups("seat:m.a") == 1


def test_a_stage_that_becomes_ready_wakes_a_lent_seat_only_for_borrowers(grid: Grid) -> None:
    grid.seat("m.b")
    job = grid.job(wide(1), agent="bob")
    claim = grid.take("m.b")
    grid.seat("m.a", lent_to=["ci"])
    grid.clear("seat:m.a", "seat:m.b", ANY)
    grid.done(claim)
    assert (grid.wake_ups("seat:m.a"), grid.wake_ups("seat:m.b")) == (0, 1)
    assert grid.take("m.b").job == job
    grid.job(one(), agent="ci")  # it was passed over, and is rung all the same where it may
    assert grid.wake_ups("seat:m.a") == 1


def test_a_lent_seat_is_woken_for_a_borrower_that_waited_before(grid: Grid) -> None:
    grid.job(one(), agent="ci")
    grid.seat("m.a", lent_to=["ci"])
    assert grid.wake_ups("seat:m.a") == 1


def test_lending_terms_are_removed_with_their_seat(grid: Grid) -> None:
    grid.seat(lent_to=["ci"])
    assert grid.client.hgetall(grid.keys("lent_seats")) == {b"m.a": b"a:ci"}
    grid.seat()
    assert not grid.client.exists(grid.keys("lent_seats"))
    grid.job(one())
    assert grid.take()
    grid.seat(lent_to=["ci"])
    grid.scripts.leave("m.a", "i1", "go")
    assert not grid.client.exists(grid.keys("lent_seats"))


def test_a_lent_seat_skips_other_agents_in_the_shared_class(grid: Grid) -> None:
    grid.seat("m.a", lent_to=["ci", "team:research"])
    for number in range(70):  # more classes than a queue keeps apart
        grid.job(one(cost=10_000 * (number + 1)), agent="bob")
    job = grid.job(one(), agent="ci")
    assert grid.take().job == job


def test_a_seat_with_an_open_breaker_is_live_but_serves_nothing(grid: Grid) -> None:
    grid.seat(draining=True)
    assert grid.admit(one(), "j", wait=False) == NoSeat((ANY,))
    assert grid.claim() == "draining"
    grid.seat(draining=True)
    assert grid.client.hget(grid.keys("concurrency"), ANY) is None
    grid.seat()
    assert grid.client.hget(grid.keys("concurrency"), ANY) == b"1"
    grid.seat(draining=True, concurrency=3)
    assert grid.client.hget(grid.keys("concurrency"), ANY) is None


def test_an_expired_job_names_lending_as_its_reason(grid: Grid) -> None:
    grid.seat(lent_to=["ci", "team:research"])
    late = grid.job(one(), "late", agent="bob", queue_timeout_ms=1)
    grid.job(one(), "due", agent="bob")
    grid.wait_over()
    grid.age("deadlines", "due")
    grid.sweep()
    for job in (late, "due"):
        assert b"all seats that serve it are lent to others" in grid.ended(job).payload


def test_a_seat_cannot_be_lent_to_the_team_dash(grid: Grid) -> None:
    grid.seat(lent_to=["team:-"])
    assert isinstance(grid.admit(one(), "j1", agent="bob", key=key(grid, "bob", None), wait=False), NotLent)
    grid.scripts.apply_limits("d", "{}", {"a:*": "- - -"})
    grid.job(one(), "j2", agent="bob", key="k-bob")
    assert grid.claim() == "none"
