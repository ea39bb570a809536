"""A damaged entry costs only itself: if something other than a script has written it or what it names, it is
left out and reported, and whatever stands behind it goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from celery import Celery

from gridq.app import app
from gridq.errors import JobDamaged
from gridq.messaging import wake_ups
from gridq.messaging.answers import publish_answer
from gridq.router.sweep import Sweeper
from gridq.store.replies import Accepted, Claim
from gridq.store.scripts import Scripts
from tests.conftest import GridEnv
from tests.unit.store.limits import limit, read_parked_agents
from tests.unit.store.plans import ANY, ERROR, HOUR, Grid, one, plan, step, wide

AGENTS = ("ann", "ben", "cal")
POOR = '[agents."*"]\nmonthly_dollars = 0\n'
RICH = '[agents."*"]\nmonthly_dollars = 9\n'


@pytest.fixture
def grid(grid_env: GridEnv) -> Grid:
    """Scripts whose data is not audited afterwards: it is damaged."""
    made = Grid(grid_env.client, grid_env.settings)
    wake_ups.write_templates(app, made.client, made.keys)
    return made


def damage(grid: Grid, *names: str) -> None:
    """Write text where a script keeps something else."""
    key = grid.keys(*names)
    grid.client.delete(key)
    grid.client.set(key, "text", px=HOUR)


def sweep_up(grid: Grid, most: int = 50) -> list[tuple[str, str]]:
    """Sweep until nothing is left to do. Return what was reported, each entry with its set."""
    found: list[tuple[str, str]] = []
    for _ in range(most):
        swept = grid.sweep()
        found += [(entry.kind, entry.entry) for entry in swept.broken]
        assert all(entry.fault for entry in swept.broken)
        if not swept.more:
            return found
    raise AssertionError(found)


# -- what remains of a change of limits


def park_all(grid: Grid) -> None:
    limit(grid, RICH)
    for agent in AGENTS:
        grid.job(one(cost=1), agent=agent)
    limit(grid, POOR)
    assert read_parked_agents(grid) == set(AGENTS)


def test_an_agent_whose_places_are_damaged_does_not_keep_others_parked(grid: Grid) -> None:
    park_all(grid)
    damage(grid, "parked", "ben")
    limit(grid, RICH)
    assert read_parked_agents(grid) == {"ben"}
    assert len(grid.pending()) == len(AGENTS) - 1
    assert set(sweep_up(grid)) == {("parked_agents", "ben")}
    assert not grid.client.exists(grid.keys("limits_work"), grid.keys("long_work"))


def test_one_damaged_place_of_a_parked_agent_is_left_out(grid: Grid) -> None:
    park_all(grid)
    grid.client.sadd(grid.keys("parked", "ben"), "no-class")
    limit(grid, RICH)
    assert read_parked_agents(grid) == set()
    assert sweep_up(grid) == [("parked:ben", "no-class")]


@pytest.mark.parametrize("piece", ["nonsense", "unknown * 0", "unpark * nowhere", "class * 0 bench:bad 0/0|"])
def test_a_damaged_piece_of_work_does_not_stop_those_behind_it(grid: Grid, piece: str) -> None:
    grid.seat()
    limit(grid, '[grid]\nbudgets = [{dollars = 5, per = "day"}]\n')
    seat, work = grid.keys("seat", "m.a"), grid.keys("limits_work")
    grid.client.hdel(seat, "shared_budgets")
    damage(grid, "ready", "bench:bad", "0/0|")
    grid.client.rpush(work, piece, "seats * 0")
    grid.client.pexpire(work, HOUR)
    grid.client.zadd(grid.keys("long_work"), {"limits:": 0})
    assert ("limits_work", piece) in sweep_up(grid)
    assert grid.client.hget(seat, "shared_budgets") == b"g", "by the piece behind it"
    assert not grid.client.exists(work, grid.keys("long_work"))


def test_a_list_of_work_that_is_none_is_left_out(grid: Grid) -> None:
    """Also by the completions that would add to it, and until the next change of limits replaces it."""
    limit(grid, RICH)
    grid.seat()
    for agent in AGENTS:
        grid.job(one(cost=1), agent=agent)
    damage(grid, "limits_work")
    grid.client.zadd(grid.keys("long_work"), {"limits:": 0})
    for _ in AGENTS:
        assert grid.complete(grid.take(), used=10_000_000)[0] == 1
    assert {kind for kind, _ in sweep_up(grid)} == {"limits_work"}
    assert not grid.client.exists(grid.keys("long_work"))
    limit(grid, POOR)
    assert sweep_up(grid) == []


def test_a_queue_whose_classes_are_damaged_does_not_stop_a_park(grid: Grid) -> None:
    """The stage that used the agent's money up is recorded, and the agent parked in its other queues."""
    limit(grid, '[agents."*"]\nmonthly_dollars = 1\n')
    grid.seat("m.a", ANY, "bench:other", "bench:bad")
    for queue in (ANY, ANY, "bench:other"):
        grid.job(one(queue=queue, cost=1))
    damage(grid, "classes", "bench:bad")
    grid.client.sadd(grid.keys("queues"), "bench:bad")
    assert grid.complete(grid.take(), used=2_000_000)[0] == 1
    assert read_parked_agents(grid) == {"ann"}
    assert not isinstance(grid.claim(), Claim)
    assert ("queues", "bench:bad") in sweep_up(grid)


def test_a_damaged_seat_does_not_keep_new_limits_from_others(grid: Grid) -> None:
    for name in ("m.a", "m.b", "m.c"):
        grid.seat(name)
    damage(grid, "seat", "m.b")
    limit(grid, '[grid]\nbudgets = [{dollars = 5, per = "day"}]\n')
    for name in ("m.a", "m.c"):
        assert grid.client.hget(grid.keys("seat", name), "shared_budgets") == b"g"
    assert ("seats", "m.b") in sweep_up(grid)


# -- waiting stages


def wrong_type(grid: Grid, job: str) -> None:
    damage(grid, "job", job)


def without_deadline(grid: Grid, job: str) -> None:
    grid.client.hdel(grid.keys("job", job), "deadline")


def damaged_header(grid: Grid, job: str) -> None:
    grid.client.hset(grid.keys("job", job), "header:0", "text")


@pytest.mark.parametrize("ruin", [wrong_type, without_deadline, damaged_header])
def test_a_damaged_job_at_the_head_of_a_queue_does_not_hold_up_the_others(
    grid: Grid, ruin: Callable[[Grid, str], None]
) -> None:
    grid.seat()
    for job in ("j1", "j2"):
        grid.job(one(), job)
    ruin(grid, "j1")
    assert grid.take().job == "j2"
    assert sweep_up(grid) == [(f"waiting:{ANY}:0/0|:ann", "j1:0")]
    assert isinstance(grid.ended("j1").to_error(), JobDamaged)
    assert grid.claim("m.a", slot="1") in ("none", "full")


def test_a_damaged_piece_of_a_large_jobs_work_ends_that_job(
    grid: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Scripts, "advance", lambda *_: None)
    for job in ("j1", "j2"):
        grid.job(plan(*(step() for _ in range(1000))), job)
    grid.client.lset(grid.keys("work", "j1"), 0, "restart 99 1")
    assert sweep_up(grid) == [("long_work", "j1")]
    assert isinstance(grid.ended("j1").to_error(), JobDamaged)
    assert len(grid.pending()) == 1000


def test_an_agent_whose_waiting_stages_are_damaged_does_not_hold_up_others(grid: Grid) -> None:
    grid.seat()
    grid.job(one(), agent="ann")
    theirs = grid.job(one(), agent="ben")
    (cls,) = grid.client.hkeys(grid.keys("classes", ANY))
    damage(grid, "waiting", ANY, cls.decode(), "ann")
    assert grid.take().job == theirs


def test_a_damaged_class_does_not_hold_up_others(grid: Grid) -> None:
    grid.seat()
    grid.job(one())
    (cls,) = grid.client.hkeys(grid.keys("classes", ANY))
    other = grid.job(one(cost=1))
    damage(grid, "ready", ANY, cls.decode())
    assert grid.take().job == other


def test_a_damaged_queue_does_not_hold_up_the_others_of_a_seat(grid: Grid) -> None:
    grid.seat("m.a", "bench:bad", ANY)
    damage(grid, "classes", "bench:bad")
    job = grid.job(one())
    assert grid.take().job == job


def test_a_damaged_seat_keeps_no_work_from_others(grid: Grid) -> None:
    """Stages are admitted, and a seat that is whole is woken and gets them."""
    for name in ("m.bad", "m.a"):
        grid.seat(name)
    damage(grid, "seat", "m.bad")
    limit(grid, f'[queues."{ANY}"]\nmax_pending = 5\n')
    jobs = [grid.job(one()) for _ in range(2)]
    for job in jobs:
        claim = grid.take("m.a")
        assert claim.job == job
        grid.done(claim)
    assert not grid.client.sismember(grid.keys("serving", ANY), "m.bad")


def test_a_damaged_batch_job_keeps_no_interactive_one_out(grid: Grid) -> None:
    """Others are dropped in its place."""
    grid.seat()
    limit(grid, f'[queues."{ANY}"]\nmax_pending = 2\npolicy = "drop-oldest-batch"\n')
    old, _ = grid.job(one(), prio=1), grid.job(one(), prio=1)
    damage(grid, "job", old)
    assert isinstance(grid.admit(one(), prio=0), Accepted)


def test_one_damaged_lease_of_a_seat_that_left_keeps_no_other_lease_open(grid: Grid) -> None:
    grid.job(wide(3), "j1")
    grid.seat(concurrency=3)
    bad, *others = (grid.take(slot=str(slot)) for slot in range(3))
    grid.client.hdel(grid.keys("lease_info"), bad.lease)
    assert grid.scripts.leave("m.a", "i1", "go")
    held = {lease.decode() for lease in grid.client.zrange(grid.keys("leases"), 0, -1)}
    assert not held & {claim.lease for claim in others}
    assert len(sweep_up(grid)) == 1


# -- the sweep and its reports


QUEUES = (
    "seats",
    "leases",
    "delays",
    "quarantine",
    "ended_jobs",
    "chained",
    "long_work",
    "unavailable_seats",
)


@pytest.mark.parametrize("name", QUEUES)
def test_a_sweep_does_the_rest_where_one_of_its_queues_is_damaged(grid: Grid, name: str) -> None:
    late = grid.job(one(), "late")
    grid.age("deadlines", late)
    if name == "ended_jobs":  # a job that ends is noted there
        grid.client.delete(grid.keys("job", late))
    damage(grid, name)
    assert name in {entry.kind for entry in grid.sweep().broken}
    assert not grid.client.zscore(grid.keys("deadlines"), late)
    grid.client.delete(grid.keys(name))


def test_damage_that_stays_is_logged_once(grid: Grid, caplog: pytest.LogCaptureFixture) -> None:
    damage(grid, "quarantine")
    sweeper = Sweeper(grid.scripts, grid.config, lambda job: None)
    with caplog.at_level(logging.ERROR, logger="gridq.router.sweep"):
        for _ in range(3):
            sweeper.sweep()
    grid.client.delete(grid.keys("quarantine"))
    assert len([record for record in caplog.records if "quarantine" in record.getMessage()]) == 1


def test_a_submission_whose_keys_are_damaged_leaves_the_inbox(grid: Grid) -> None:
    grid.enqueue("j1")
    damage(grid, "submitted", "j1")
    grid.age("deadlines", "j1")
    assert ("deadlines", "j1") in sweep_up(grid)
    assert not grid.client.exists(grid.keys("inbox"))


def test_a_damaged_answer_is_put_aside(grid: Grid, caplog: pytest.LogCaptureFixture) -> None:
    grid.seat()
    job = grid.job(one(), celery=True)
    grid.done(grid.take())
    damage(grid, "result", job)
    publish_answer(Celery("test"), grid.scripts, job)
    assert not grid.client.exists(grid.keys("answers"))
    assert job in caplog.text


def test_a_caller_does_not_fail_for_what_another_has_left(grid: Grid) -> None:
    """What was called has succeeded; the damage in what follows is the sweep's to report."""
    grid.job(plan(*(step() for _ in range(1000))), "j1")
    grid.client.set(grid.keys("long_work"), "text", px=HOUR)
    grid.scripts.advance("j1")
    grid.client.delete(grid.keys("long_work"))
    assert grid.scripts.stop("j1", "cancelled", ERROR) == "plain"
