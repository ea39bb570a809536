"""Budgets of agents and teams: nothing is reserved twice, and reservations are released."""

from __future__ import annotations

import json

import pytest

from gridq.errors import AgentMoneyExceeded, TeamJobsExceeded, TeamMoneyExceeded
from gridq.limits import api_keys
from gridq.limits.accounts import build_quota_error, read_accounts
from gridq.limits.quotas_file import Limits
from gridq.limits.quotas_loader import lift, put_in_force
from gridq.protocol.states import JobState
from gridq.store.replies import Accepted, KeyRefused, QuotaReached
from tests.unit.store.limits import DAY, HOUR, account, ask, limit, read_parked_agents, turn, turn_at
from tests.unit.store.plans import Grid, chain, one, plan, quota, quota_of, step

pytestmark = pytest.mark.usefixtures("key_hygiene")

ANN = "[agents.ann]\nmonthly_dollars = 0.01\n"  # 10,000 micro-dollars
TEAM = '[teams.t]\nmonthly_dollars = 0.01\n[agents.ann]\nteam = "t"\n[agents.bob]\nteam = "t"\n'


def test_without_limits_no_accounts_are_stored(grid: Grid) -> None:
    grid.seat()
    grid.job(one(cost=9_000))
    grid.done(grid.take(), used=10)
    assert not grid.own() & {"limits", "reserved", "reservations", "calendar", "parked_agents"}
    assert not [name for name in grid.own() if name.startswith("spent")]
    assert read_accounts(grid.client, grid.keys, "UTC").is_single_tenant


def test_a_job_reserves_its_estimate_until_it_is_spent(grid: Grid) -> None:
    grid.seat()
    limit(grid, ANN)
    grid.job(plan(step(cost=2_000), step(0, cost=3_000)))
    assert (account(grid, "ann").reserved, account(grid, "ann").spent) == (5_000, 0)
    grid.done(grid.take(), used=1_500)
    assert (account(grid, "ann").reserved, account(grid, "ann").spent) == (3_500, 1_500)
    grid.done(grid.take(), used=6_000)  # dearer than it said
    assert (account(grid, "ann").reserved, account(grid, "ann").spent) == (0, 7_500)
    assert account(grid, "ann").remaining == 2_500
    assert account(grid, "ann", "jobs").spent == 1


def test_a_job_over_the_limit_is_refused_and_writes_nothing(grid: Grid) -> None:
    grid.seat()
    limit(grid, ANN)
    turn_at(grid, DAY)
    grid.job(one(cost=6_000))
    before = grid.own()
    value = b'"x"'
    refusal = quota(ask(grid, 4_001, value=value))
    assert refusal.what == "agent_money"
    assert grid.own() == before
    assert account(grid, "ann", "jobs").spent == 1
    assert ask(grid, 4_000) == Accepted()
    error = build_quota_error(refusal, "UTC")
    assert isinstance(error, AgentMoneyExceeded)
    assert error.path == "agents.ann.monthly_dollars"
    assert "$0.01 a month" in str(error)
    assert error.details["reserved"] == 6_000
    assert "released what they reserved" in (error.fix or "")


def test_a_refused_job_s_long_input_is_dropped(grid: Grid) -> None:
    grid.seat()
    limit(grid, ANN)
    grid.client.set(grid.keys("value", "j1:in"), b"[]", px=HOUR)
    assert isinstance(grid.admit(one(cost=20_000), "j1", value=b"@j1:in"), QuotaReached)
    assert not grid.client.exists(grid.keys("value", "j1:in"))


def test_a_job_that_never_fits_gets_no_retry_time(grid: Grid) -> None:
    grid.seat()
    limit(grid, ANN)
    turn_at(grid, DAY)
    error = build_quota_error(quota(ask(grid, 10_001)), "UTC")
    assert error.details["retry_at"] is None
    assert "to 0.010001 or more" in (error.fix or "")


def test_a_limit_of_zero_differs_from_no_limit(grid: Grid) -> None:
    grid.seat()
    limit(grid, '[agents.ann]\nmonthly_dollars = 0\n[agents.bob]\nmonthly_dollars = "none"\nmonthly_jobs = 0')
    assert quota(ask(grid, 0)).what == "agent_money"
    assert quota(ask(grid, 5, "bob")).what == "agent_jobs"
    assert ask(grid, 10**12, "cleo") == Accepted()  # nobody limits cleo
    limit(grid, '[agents."*"]\nmonthly_jobs = 1')
    assert [type(ask(grid, 0, agent)) for agent in ("cleo", "dora", "dora")] == [
        QuotaReached,
        Accepted,
        QuotaReached,
    ]


def test_all_limits_bind_and_all_are_charged_or_none(grid: Grid) -> None:
    grid.seat()
    limit(grid, TEAM + "monthly_jobs = 1\n")  # bob's
    assert ask(grid, 6_000) == Accepted()
    refusal = ask(grid, 4_001, "bob")
    assert isinstance(build_quota_error(refusal, "UTC"), TeamMoneyExceeded)
    assert account(grid, "bob", "jobs").spent == 0
    assert (account(grid, "t").reserved, account(grid, "t", "jobs").spent) == (6_000, 1)
    assert ask(grid, 4_000, "bob") == Accepted()
    assert account(grid, "t").remaining == 0
    limit(grid, TEAM.replace("monthly_dollars = 0.01", "monthly_jobs = 2"))
    assert isinstance(build_quota_error(quota(ask(grid, 0)), "UTC"), TeamJobsExceeded)


@pytest.mark.parametrize("end", ["done", "failed", "cancelled", "expired", "running", "vanished"])
def test_a_reservation_is_released_however_a_job_ends(grid: Grid, end: str) -> None:
    """Use of successful attempts stays spent; use of others is charged to their seat."""
    grid.seat(budget=1_000_000)
    limit(grid, TEAM)
    job = grid.job(chain(2, cost=3_000))
    grid.done(grid.take(), used=1_000)
    claim = grid.take()
    if end == "done":
        grid.done(claim, used=2_000)
    elif end == "failed":
        grid.fail(claim, "stage", used=500)
    elif end == "cancelled":
        assert grid.scripts.stop(job, "cancelled", "{}") == "plain"
    elif end == "expired":
        grid.age("deadlines", job)
        grid.sweep()
    elif end == "running":
        grid.scripts.stop(job, "cancelled", "{}")
        grid.complete(claim, used=2_500)  # too late: the seat's waste
        assert grid.left() == 1_000_000 - 1_000 - 2_500
    else:  # no router has swept for so long that the job's keys are gone
        grid.client.delete(grid.keys("job", job))
        grid.age("deadlines", job)
        grid.sweep()
        grid.complete(claim)
    spent = 3_000 if end == "done" else 1_000
    for name in ("ann", "t"):
        assert (account(grid, name).reserved, account(grid, name).spent) == (0, spent)
    assert "reservations" not in grid.own()


def test_unsuccessful_attempts_cost_the_agent_nothing(grid: Grid) -> None:
    grid.seat("m.a", budget=1_000_000)
    grid.seat("m.b", budget=1_000_000)
    limit(grid, ANN)
    grid.job(one(cost=1_000))
    grid.fail(grid.take("m.a"), "seat", pause_ms=0, used=700)
    lost = grid.take("m.b")
    grid.lapse(lost)
    grid.wait_over()
    grid.done(grid.take("m.a"), used=900)
    grid.complete(lost, used=800)
    assert account(grid, "ann").spent == 900
    assert grid.left("m.a") == 1_000_000 - 700 - 900
    assert grid.left("m.b") == 1_000_000 - 800


def test_a_new_month_resets_spending_but_not_reservations(grid: Grid) -> None:
    grid.seat()
    limit(grid, ANN)
    turn_at(grid, DAY)
    grid.job(one(cost=4_000))
    grid.done(grid.take(), used=4_000)
    grid.job(one(cost=5_000))
    assert isinstance(ask(grid, 2_000), QuotaReached)
    turn(grid)
    assert (account(grid, "ann").spent, account(grid, "ann").reserved) == (0, 5_000)
    assert isinstance(ask(grid, 5_001), QuotaReached)  # what runs now will be spent in this month
    assert ask(grid, 5_000) == Accepted()
    grid.done(grid.take(), used=5_000)
    assert (account(grid, "ann").spent, account(grid, "ann").reserved) == (5_000, 5_000)


def test_a_refusal_has_the_reset_time(grid: Grid) -> None:
    grid.seat()
    limit(grid, ANN)
    now = grid.now()
    grid.client.hset(grid.keys("calendar"), "month", f"{now - DAY} {now + DAY}")
    grid.job(one(cost=4_000))
    grid.done(grid.take(), used=9_000)
    error = build_quota_error(quota(ask(grid, 2_000)), "Europe/Berlin")
    assert account(grid, "ann").resets_at == now + DAY
    assert error.details["retry_at"][-6:] in ("+01:00", "+02:00")
    assert error.details["retry_at"] in (error.fix or "")


def test_spending_is_deleted_after_its_month(grid: Grid) -> None:
    grid.seat()
    limit(grid, ANN)
    turn_at(grid, DAY)
    grid.job(one(cost=1))
    (name,) = [name for name in grid.own() if name.startswith("spent")]
    assert DAY < grid.client.pttl(grid.keys.own + name) <= 3 * DAY


# -- parking


def test_an_overdrawn_agent_is_parked_until_the_month_resets(grid: Grid) -> None:
    grid.seat(concurrency=2)
    limit(grid, ANN)
    turn_at(grid, DAY)
    grid.job(one(cost=5_000), "j1")
    grid.job(one(cost=5_000), "j2")
    grid.job(one(), "b1", agent="bob")
    grid.done(grid.take(slot="0"), used=10_001)
    assert read_parked_agents(grid) == {"ann"}
    assert account(grid, "ann").parked
    assert grid.take(slot="0").job == "b1"
    assert grid.claim(slot="1") == "none"
    grid.sweep()
    assert grid.claim(slot="1") == "none"
    turn(grid)
    grid.clear("bench:any", "seat:m.a")
    grid.sweep()
    assert read_parked_agents(grid) == set()
    assert grid.wake_ups("seat:m.a") + grid.wake_ups("bench:any") > 0  # it wakes by itself
    assert grid.take(slot="1").job == "j2"


def test_an_exactly_used_up_limit_does_not_park(grid: Grid) -> None:
    """A job whose estimate was exact runs to its end."""
    grid.seat()
    limit(grid, ANN)
    grid.job(chain(3, cost=3_000))
    for used in (4_000, 6_000):
        grid.done(grid.take(), used=used)
    assert read_parked_agents(grid) == set()
    grid.done(grid.take(), used=0)


def test_a_raised_limit_unparks_at_once(grid: Grid) -> None:
    grid.seat()
    limit(grid, ANN)
    grid.job(chain(2, cost=2_000), "j1")
    grid.done(grid.take(), used=20_000)
    assert grid.claim() == "none"
    limit(grid, ANN.replace("0.01", "0.015"))
    assert read_parked_agents(grid) == {"ann"}
    limit(grid, ANN.replace("0.01", "0.03"))
    assert grid.take().job == "j1"


def test_a_lowered_limit_parks_waiting_but_not_running_stages(grid: Grid) -> None:
    grid.seat(concurrency=2)
    limit(grid, ANN)
    grid.job(chain(2, cost=1_000), "j1")
    grid.done(grid.take(), used=1_000)
    grid.job(chain(2, cost=1_000), "j2")
    grid.job(one(cost=1_000), "j3")
    running = grid.take()
    limit(grid, ANN.replace("0.01", "0.0005"))
    assert read_parked_agents(grid) == {"ann"}
    assert account(grid, "ann").remaining == 500 - 1_000 - account(grid, "ann").reserved
    assert isinstance(ask(grid, 0), QuotaReached)
    assert grid.done(running, used=200) in ("", "plain")
    assert grid.claim() == "none"  # what became ready stands aside too
    lift(grid.scripts)
    assert len({grid.take(slot=str(slot)).lease for slot in range(2)}) == 2


def test_a_limit_of_zero_parks_an_agent_without_spending(grid: Grid) -> None:
    grid.seat()
    limit(grid, ANN)
    grid.job(one(cost=1_000))
    limit(grid, ANN.replace("0.01", "0"))
    assert grid.claim() == "none"
    limit(grid, ANN)
    grid.take()


def test_pure_and_local_stages_of_a_parked_agent_continue(grid: Grid) -> None:
    """They are free, and may be all that lies between a paid answer and its caller."""
    grid.seat("m.a", "bench:any", "gridq:local")
    limit(grid, ANN)
    job = grid.job(plan(step(cost=1_000), step(0, queue="gridq:local")))
    grid.done(grid.take(), used=11_000)
    grid.done(grid.take())
    assert grid.ended(job).state is JobState.DONE
    assert read_parked_agents(grid) == set()


def test_a_team_over_its_money_parks_all_its_agents(grid: Grid) -> None:
    grid.seat(concurrency=3)
    limit(grid, TEAM)
    grid.job(one(cost=2_000), "a1")
    grid.job(one(cost=2_000), "b1", agent="bob")
    grid.job(one(cost=2_000), "b2", agent="bob")
    grid.job(one(cost=2_000), "c1", agent="cleo")
    first = grid.take()
    grid.done(first, used=10_001)
    assert grid.take(slot="1").agent == "cleo"
    assert grid.claim(slot="2") == "none"
    assert {"bob"} <= read_parked_agents(grid) <= {"ann", "bob"}
    limit(grid, TEAM.replace("0.01", "1"))
    assert grid.take(slot="2").agent in ("ann", "bob")


def test_a_parked_job_may_be_cancelled_and_expires_with_a_reason(grid: Grid) -> None:
    grid.seat()
    limit(grid, ANN)
    grid.job(chain(2, cost=1_000), "j1")
    grid.job(one(cost=1_000), "j2")
    grid.done(grid.take(), used=20_000)
    grid.scripts.stop("j1", "cancelled", "{}")
    grid.age("deadlines", "j2")
    grid.sweep()
    error = json.loads(grid.ended("j2").payload)
    assert error["code"] == "job.deadline"
    assert "over its limits" in error["details"]["reason"]
    assert grid.pending() == []
    limit(grid, ANN.replace("0.01", "1"))
    assert grid.claim() == "none"
    assert not grid.own() & {"parked_agents", "parked:ann"}


def test_a_returned_stage_of_a_parked_agent_is_parked(grid: Grid) -> None:
    grid.seat("m.a", concurrency=2)
    grid.seat("m.b")
    limit(grid, ANN)
    grid.job(one(cost=1_000), "j1")
    grid.job(one(cost=1_000), "j2")
    first, second = grid.take("m.a", "0"), grid.take("m.a", "1")
    grid.done(first, used=20_000)
    assert grid.fail(second, "seat") == "again"
    assert grid.claim("m.b") == "none"
    limit(grid, "")
    assert grid.take("m.b").job == second.job


def test_active_limits_show_their_source(grid: Grid) -> None:
    put_in_force(grid.scripts, Limits(digest="d"), "host:/etc/q.toml")
    found = read_accounts(grid.client, grid.keys, "UTC")
    assert found.active_limits is not None
    assert (found.active_limits.source, found.active_limits.digest) == ("host:/etc/q.toml", "d")
    assert abs(found.active_limits.applied_at - grid.now()) < HOUR
    assert not found.is_single_tenant
    assert lift(grid.scripts)
    assert not lift(grid.scripts)


# -- keys


def test_a_key_is_required_once_one_exists(grid: Grid) -> None:
    grid.seat()
    assert grid.admit(one()) == Accepted()
    made, _ = api_keys.create(grid.client, grid.keys, "ann", team="t")
    assert grid.admit(one(), "j8") == KeyRefused("missing")
    assert grid.admit(one(), "j8", key="nobody") == KeyRefused("unknown")
    assert grid.admit(one(), "j8", key=made.id, agent="bob") == KeyRefused("unknown")
    assert "job:j8" not in grid.own()
    assert grid.admit(one(), "j8", key=made.id) == Accepted()
    api_keys.revoke(grid.client, grid.keys, made.id)
    assert grid.admit(one(), "j9", key=made.id) == KeyRefused("revoked")
    api_keys.forget(grid.client, grid.keys, made.id)
    assert grid.admit(one(), "j9") == Accepted()


def test_a_key_s_team_counts_unless_the_file_names_one(grid: Grid) -> None:
    grid.seat()
    made, _ = api_keys.create(grid.client, grid.keys, "ann", team="key-team")
    limit(grid, "[teams.key-team]\nmonthly_jobs = 1\n")
    assert grid.admit(one(), key=made.id) == Accepted()
    assert quota_of(grid.admit(one(), key=made.id)) == ("team_jobs", "key-team")
    limit(grid, '[teams.t]\nmonthly_jobs = 1\n[agents.ann]\nteam = "t"\n[teams.key-team]\nmonthly_jobs = 1\n')
    assert grid.admit(one(), key=made.id) == Accepted()
    assert quota_of(grid.admit(one(), key=made.id)) == ("team_jobs", "t")


def test_a_key_ends_by_the_server_s_clock(grid: Grid) -> None:
    grid.seat()
    old, _ = api_keys.create(grid.client, grid.keys, "ann")
    new, _ = api_keys.rotate(grid.client, grid.keys, old.id, overlap=3600)
    assert grid.admit(one(), key=old.id) == Accepted()
    assert grid.admit(one(), key=new.id) == Accepted()
    record = json.loads(grid.client.hget(grid.keys("api_keys"), old.id))
    grid.client.hset(grid.keys("api_keys"), old.id, json.dumps(record | {"ends": grid.now() - 1}))
    assert grid.admit(one(), key=old.id) == KeyRefused("revoked")
