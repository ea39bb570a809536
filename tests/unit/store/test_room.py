"""Bounded queues: a full queue refuses, or drops its oldest batch job for an interactive one."""

from __future__ import annotations

from typing import Any

import pytest

from gridq.errors import QueueDropped
from gridq.limits.accounts import read_accounts
from gridq.protocol.states import JobState
from gridq.store.replies import Accepted, QueueLimitReached, QuotaReached
from tests.unit.store.limits import account, ask, limit, turn_at
from tests.unit.store.plans import ANY, HOUR, Grid, chain, one, plan, step, wide

pytestmark = pytest.mark.usefixtures("key_hygiene")

DROP = f'[queues."{ANY}"]\nmax_pending = 2\npolicy = "drop-oldest-batch"'


def batch(grid: Grid, job: str, agent: str = "ann", **options: Any) -> str:
    return grid.job(one(), job, prio=1, agent=agent, **options)


def test_the_star_bounds_queues_without_a_table_but_not_built_in_ones(grid: Grid) -> None:
    limit(grid, f'[queues."*"]\nmax_pending = 1\n[queues."{ANY}"]\nmax_pending = "none"')
    for _ in range(3):
        assert ask(grid) == Accepted()
        assert grid.admit(one(queue="gridq:local")) == Accepted()
    assert grid.admit(one(queue="bench:one")) == Accepted()
    assert grid.admit(one(queue="bench:one")) == QueueLimitReached("bench:one", 1, 1, 1, has_seat=False)
    assert grid.admit(one(queue="bench:two")) == Accepted()


def test_the_oldest_batch_job_is_dropped_whoever_sent_it(grid: Grid) -> None:
    limit(grid, DROP)
    batch(grid, "b1", agent="bob")
    grid.client.zadd(grid.keys("waiting", ANY, "1/0|", "bob"), {"b1:0": grid.now() - HOUR})
    batch(grid, "b2", agent="ann")
    assert grid.admit(one(), "i1", agent="eve") == Accepted(("b1",))
    end = grid.ended("b1")
    assert end.state is JobState.FAILED
    error = end.to_error()
    assert isinstance(error, QueueDropped)
    assert error.code == "queue.dropped"
    assert error.details["queue"] == ANY
    assert error.details["limit"] == 2
    assert error.path == "root"
    assert sorted(grid.pending()) == ["b2:0", "i1:0"]


def test_no_job_is_dropped_if_too_few_could_be(grid: Grid) -> None:
    limit(grid, DROP)
    batch(grid, "b1")
    ask(grid)
    before = grid.own()
    assert grid.admit(wide(2)) == QueueLimitReached(ANY, 2, 2, 2, has_seat=False)
    assert grid.own() == before
    assert grid.end("b1") is None


def test_no_job_is_dropped_for_one_that_its_quota_refuses(grid: Grid) -> None:
    limit(grid, f"{DROP}\n[agents.eve]\nmonthly_jobs = 0")
    batch(grid, "b1")
    batch(grid, "b2")
    assert isinstance(ask(grid, agent="eve"), QuotaReached)
    assert grid.end("b1") is None


def test_a_job_of_two_queues_drops_jobs_in_both_or_in_none(grid: Grid) -> None:
    limit(grid, DROP + '\n[queues."bench:two"]\nmax_pending = 1\npolicy = "drop-oldest-batch"')
    batch(grid, "b1")
    batch(grid, "b2")
    grid.job(one(queue="bench:two"), "i2")
    both = plan(step(), step(queue="bench:two"), step(0, 1))
    assert grid.admit(both, "i3") == QueueLimitReached("bench:two", 1, 1, 1, has_seat=False)
    assert grid.end("b1") is None
    grid.scripts.stop("i2", "cancelled", "{}")
    grid.job(one(queue="bench:two"), "b3", prio=1)
    reply = grid.admit(both, "i3")
    assert isinstance(reply, Accepted)
    assert sorted(reply.dropped_jobs) == ["b1", "b3"]


def test_a_dropped_job_releases_its_reservation_and_running_stage(grid: Grid) -> None:
    turn_at(grid, HOUR)
    limit(grid, f"{DROP}\n[agents.ann]\nmonthly_dollars = 5")
    grid.seat(concurrency=2, budget=10_000_000)
    grid.job(plan(step(cost=300_000), step(cost=300_000), step(0, 1)), "b1", prio=1)
    running = grid.take()
    assert account(grid, "ann").reserved == 600_000
    ask(grid, agent="bob")
    assert grid.admit(one(), "i1", agent="eve") == Accepted(("b1",))
    assert account(grid, "ann").reserved == 0
    assert grid.held() == {}
    assert grid.left() == 10_000_000
    assert grid.complete(running, used=250_000)[0] == -1
    assert account(grid, "ann").spent == 0
    assert grid.left() == 9_750_000


def test_parked_batch_jobs_are_dropped_too(grid: Grid) -> None:
    turn_at(grid, HOUR)
    limit(grid, f"{DROP}\n[agents.ann]\nmonthly_dollars = 5")
    batch(grid, "b1")
    batch(grid, "b2")
    limit(grid, f"{DROP}\n[agents.ann]\nmonthly_dollars = 0")
    assert grid.pending() == []  # they stand aside
    assert isinstance(ask(grid, agent="eve"), Accepted)
    assert grid.end("b1") is not None


def test_a_job_too_long_to_end_is_not_dropped(grid: Grid) -> None:
    limit(grid, DROP)
    grid.job(chain(5001), "b1", prio=1)
    batch(grid, "b2")
    assert ask(grid) == Accepted(("b2",))
    assert ask(grid) == QueueLimitReached(ANY, 2, 2, 1, has_seat=False)
    grid.scripts.stop("b1", "cancelled", "{}")


def test_one_job_drops_a_bounded_number_of_jobs(grid: Grid) -> None:
    limit(grid, f'[queues."{ANY}"]\nmax_pending = 70\npolicy = "drop-oldest-batch"')
    for number in range(70):
        batch(grid, f"b{number}")
    assert grid.admit(wide(65)) == QueueLimitReached(ANY, 70, 70, 65, has_seat=False)
    reply = grid.admit(wide(64))
    assert isinstance(reply, Accepted)
    assert len(reply.dropped_jobs) == 64
    assert len(grid.pending()) == 70


def test_the_oldest_job_of_many_agents_is_dropped(grid: Grid) -> None:
    limit(grid, f'[queues."{ANY}"]\nmax_pending = 100\npolicy = "drop-oldest-batch"')
    for number in range(100):
        batch(grid, f"b{number}", agent=f"a{number}")
    grid.client.zadd(grid.keys("waiting", ANY, "1/0|", "a77"), {"b77:0": grid.now() - HOUR})
    assert ask(grid) == Accepted(("b77",))


def test_accounts_show_how_full_queues_are(grid: Grid) -> None:
    limit(grid, '[queues."*"]\nmax_pending = 7\n[queues."bench:one"]\nmax_pending = 3')
    ask(grid)
    found = {
        each.name: (each.limit, each.spent) for each in read_accounts(grid.client, grid.keys, "UTC").accounts
    }
    assert found[ANY] == (7, 1)
    assert found["bench:one"] == (3, 0)


def pin(seat: str, *live: str) -> dict[str, str]:
    """Return the fields of a job whose only step is pinned to a seat while others are live."""
    return {"excluded:0": ",".join([*live, f"={seat}"])}


def test_stages_that_no_seat_could_take_keep_no_place_from_others(grid: Grid) -> None:
    limit(grid, f'[queues."{ANY}"]\nmax_pending = 2')
    grid.seat("m.a")
    for _ in range(2):
        assert grid.admit(one(), more=pin("m.gone", "m.a")) == Accepted()
    assert grid.admit(one(), more=pin("m.gone", "m.a")) == QueueLimitReached(ANY, 2, 2, 1, has_seat=False)
    assert ask(grid) == Accepted()
    assert ask(grid) == Accepted()
    assert ask(grid) == QueueLimitReached(ANY, 2, 2, 1)
    grid.seat("m.gone")
    assert ask(grid) == QueueLimitReached(ANY, 4, 2, 1)


def test_stages_of_an_agent_to_whom_no_seat_is_lent_keep_no_place_from_others(grid: Grid) -> None:
    limit(grid, f'[queues."{ANY}"]\nmax_pending = 2')
    grid.seat("m.a", lent_to=["ann"])
    for agent in ("bob", "eve", "ann", "ann"):
        assert grid.admit(one(), agent=agent) == Accepted()
    assert grid.admit(one(), agent="bob") == QueueLimitReached(ANY, 2, 2, 1, has_seat=False)
    assert grid.admit(one(), agent="ann") == QueueLimitReached(ANY, 2, 2, 1)


def test_parked_stages_keep_no_place_from_others(grid: Grid) -> None:
    turn_at(grid, HOUR)
    bound = f'[queues."{ANY}"]\nmax_pending = 2'
    limit(grid, f"{bound}\n[agents.ann]\nmonthly_dollars = 5")
    grid.seat("m.a")
    for _ in range(2):
        assert ask(grid, agent="ann") == Accepted()
    limit(grid, f"{bound}\n[agents.ann]\nmonthly_dollars = 0")
    assert grid.pending() == []
    assert ask(grid, agent="eve") == Accepted()


def test_stages_that_no_budget_has_room_for_keep_no_place_from_others(grid: Grid) -> None:
    turn_at(grid, HOUR)
    limit(grid, f'[queues."{ANY}"]\nmax_pending = 1')
    grid.seat("m.a", budget=100_000)
    assert grid.admit(one(cost=1_000_000)) == Accepted()
    assert grid.admit(one(cost=10_000)) == Accepted()
    assert grid.admit(one(cost=10_000)) == QueueLimitReached(ANY, 1, 1, 1)
    assert grid.admit(one(cost=1_000_000)) == QueueLimitReached(ANY, 1, 1, 1, has_seat=False)


def test_stages_of_a_mixed_class_are_looked_at_one_by_one(grid: Grid) -> None:
    limit(grid, f'[queues."{ANY}"]\nmax_pending = 70')
    grid.seat("m.a")
    for number in range(70):
        assert grid.admit(one(), more=pin(f"m.gone{number}", "m.a")) == Accepted()
    assert "0/0|*" in grid.classes(ANY)
    assert grid.admit(wide(70)) == Accepted()
    assert ask(grid) == QueueLimitReached(ANY, 70, 70, 1)


def test_a_batch_job_is_dropped_only_if_that_makes_room(grid: Grid) -> None:
    limit(grid, DROP)
    grid.seat("m.a")
    batch(grid, "gone", more=pin("m.gone", "m.a"))
    batch(grid, "b1")
    batch(grid, "b2")
    assert ask(grid) == Accepted(("b1",))
    assert grid.end("gone") is None
    assert grid.admit(one(), more=pin("m.gone", "m.a")) == Accepted()
    assert grid.admit(one(), more=pin("m.gone", "m.a")) == Accepted(("gone",))
    assert grid.end("b2") is None
