"""Bounded queues: a full one refuses, or its oldest batch job gives way to an interactive one."""

from __future__ import annotations

from typing import Any

import pytest

from gridq.errors import QueueDropped
from gridq.limits.accounts import read_accounts
from gridq.protocol.states import JobState
from gridq.store.replies import Accepted, AlreadyKnown, QueueLimitReached, QuotaReached
from tests.unit.store.limits import account, ask, limit, turn_at
from tests.unit.store.plans import ANY, HOUR, Grid, chain, one, plan, step, wide

pytestmark = pytest.mark.usefixtures("key_hygiene")

REJECT = f'[queues."{ANY}"]\nmax_pending = 2'
DROP = f'[queues."{ANY}"]\nmax_pending = 2\npolicy = "drop-oldest-batch"'


def batch(grid: Grid, job: str, agent: str = "ann", **options: Any) -> str:
    return grid.job(one(), job, prio=1, agent=agent, **options)


def test_a_full_queue_refuses_and_says_how_full_it_is(grid: Grid) -> None:
    limit(grid, REJECT)
    ask(grid)
    ask(grid)
    before = grid.own()
    assert ask(grid) == QueueLimitReached(ANY, 2, 2, 1)
    assert grid.own() == before


def test_what_runs_takes_no_room(grid: Grid) -> None:
    limit(grid, REJECT)
    grid.seat()
    ask(grid)
    ask(grid)
    grid.take()
    assert ask(grid) == Accepted()


def test_the_ready_steps_of_a_job_count_together_and_those_behind_them_do_not(grid: Grid) -> None:
    limit(grid, REJECT)
    assert grid.admit(wide(3)) == QueueLimitReached(ANY, 0, 2, 3)
    assert grid.admit(wide(2)) == Accepted()
    grid.seat()
    grid.scripts.stop("j2", "cancelled", "{}")
    assert grid.admit(chain(50)) == Accepted()


def test_a_queue_may_be_closed(grid: Grid) -> None:
    limit(grid, f'[queues."{ANY}"]\nmax_pending = 0\npolicy = "drop-oldest-batch"')
    assert ask(grid) == QueueLimitReached(ANY, 0, 0, 1)


def test_the_star_bounds_each_capability_without_a_table_but_not_the_grids_own_queues(grid: Grid) -> None:
    limit(grid, f'[queues."*"]\nmax_pending = 1\n[queues."{ANY}"]\nmax_pending = "none"')
    for _ in range(3):
        assert ask(grid) == Accepted()
        assert grid.admit(one(queue="gridq:local")) == Accepted()
    assert grid.admit(one(queue="bench:one")) == Accepted()
    assert grid.admit(one(queue="bench:one")) == QueueLimitReached("bench:one", 1, 1, 1)
    assert grid.admit(one(queue="bench:two")) == Accepted()


def test_limits_without_queues_bound_none(grid: Grid) -> None:
    limit(grid, "[agents.ann]\nmonthly_jobs = 100")
    for _ in range(5):
        assert ask(grid) == Accepted()


def test_a_repeated_call_is_harmless(grid: Grid) -> None:
    limit(grid, DROP)
    batch(grid, "b1")
    batch(grid, "b2")
    assert grid.admit(one(), "i1") == Accepted(("b1",))
    assert grid.admit(one(), "i1") == AlreadyKnown()
    assert grid.pending() == ["i1:0", "b2:0"]


def test_the_oldest_batch_job_gives_way_whoever_sent_it(grid: Grid) -> None:
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


def test_batch_drops_nothing_and_interactive_drops_nothing_interactive(grid: Grid) -> None:
    limit(grid, DROP)
    batch(grid, "b1")
    batch(grid, "b2")
    assert ask(grid, prio=1) == QueueLimitReached(ANY, 2, 2, 1)
    assert ask(grid) == Accepted(("b1",))
    assert ask(grid) == Accepted(("b2",))
    assert ask(grid) == QueueLimitReached(ANY, 2, 2, 1)


def test_all_or_nothing_where_too_few_could_give_way(grid: Grid) -> None:
    limit(grid, DROP)
    batch(grid, "b1")
    ask(grid)
    before = grid.own()
    assert grid.admit(wide(2)) == QueueLimitReached(ANY, 2, 2, 2)
    assert grid.own() == before
    assert grid.end("b1") is None


def test_nobody_gives_way_to_a_job_that_its_quota_refuses(grid: Grid) -> None:
    limit(grid, f"{DROP}\n[agents.eve]\nmonthly_jobs = 0")
    batch(grid, "b1")
    batch(grid, "b2")
    assert isinstance(ask(grid, agent="eve"), QuotaReached)
    assert grid.end("b1") is None


def test_no_more_give_way_than_must(grid: Grid) -> None:
    limit(grid, f'[queues."{ANY}"]\nmax_pending = 4\npolicy = "drop-oldest-batch"')
    grid.job(wide(3), "b1", prio=1)
    batch(grid, "b2")
    assert grid.admit(wide(3), "i1") == Accepted(("b1",))
    assert grid.end("b2") is None


def test_a_job_of_two_queues_drops_in_both_or_in_none(grid: Grid) -> None:
    limit(grid, DROP + '\n[queues."bench:two"]\nmax_pending = 1\npolicy = "drop-oldest-batch"')
    batch(grid, "b1")
    batch(grid, "b2")
    grid.job(one(queue="bench:two"), "i2")
    both = plan(step(), step(queue="bench:two"), step(0, 1))
    assert grid.admit(both, "i3") == QueueLimitReached("bench:two", 1, 1, 1)
    assert grid.end("b1") is None
    grid.scripts.stop("i2", "cancelled", "{}")
    grid.job(one(queue="bench:two"), "b3", prio=1)
    reply = grid.admit(both, "i3")
    assert isinstance(reply, Accepted)
    assert sorted(reply.dropped_jobs) == ["b1", "b3"]


def test_what_gives_way_gives_its_money_back_and_its_running_stage_up(grid: Grid) -> None:
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


def test_parked_batch_work_gives_way_too(grid: Grid) -> None:
    turn_at(grid, HOUR)
    limit(grid, f"{DROP}\n[agents.ann]\nmonthly_dollars = 5")
    batch(grid, "b1")
    batch(grid, "b2")
    limit(grid, f"{DROP}\n[agents.ann]\nmonthly_dollars = 0")
    assert grid.pending() == []  # they stand aside
    assert isinstance(ask(grid, agent="eve"), Accepted)
    assert grid.end("b1") is not None


def test_a_job_that_would_take_long_to_end_is_passed_over(grid: Grid) -> None:
    limit(grid, DROP)
    grid.job(chain(5001), "b1", prio=1)
    batch(grid, "b2")
    assert ask(grid) == Accepted(("b2",))
    assert ask(grid) == QueueLimitReached(ANY, 2, 2, 1)
    grid.scripts.stop("b1", "cancelled", "{}")


def test_one_job_drops_so_many_and_no_more(grid: Grid) -> None:
    limit(grid, f'[queues."{ANY}"]\nmax_pending = 70\npolicy = "drop-oldest-batch"')
    for number in range(70):
        batch(grid, f"b{number}")
    assert grid.admit(wide(65)) == QueueLimitReached(ANY, 70, 70, 65)
    reply = grid.admit(wide(64))
    assert isinstance(reply, Accepted)
    assert len(reply.dropped_jobs) == 64
    assert len(grid.pending()) == 70


def test_of_many_agents_the_oldest_is_found(grid: Grid) -> None:
    limit(grid, f'[queues."{ANY}"]\nmax_pending = 100\npolicy = "drop-oldest-batch"')
    for number in range(100):
        batch(grid, f"b{number}", agent=f"a{number}")
    grid.client.zadd(grid.keys("waiting", ANY, "1/0|", "a77"), {"b77:0": grid.now() - HOUR})
    assert ask(grid) == Accepted(("b77",))


def test_whoever_waits_through_celery_gets_the_error(grid: Grid) -> None:
    limit(grid, DROP)
    batch(grid, "b1", celery=True)
    batch(grid, "b2")
    assert ask(grid) == Accepted(("b1",))
    assert grid.client.zscore(grid.keys("answers"), "b1") is not None


def test_a_job_of_the_inbox_is_refused_and_stays_there(grid: Grid) -> None:
    limit(grid, REJECT)
    ask(grid)
    ask(grid)
    grid.enqueue("q1")
    assert isinstance(grid.admit(one(), "q1", deadline_ms=None, value=b""), QueueLimitReached)
    assert grid.client.zscore(grid.keys("inbox"), "q1") is not None
    grid.scripts.stop("q1", "failed", "{}")


def test_the_ledger_shows_how_full_queues_are(grid: Grid) -> None:
    limit(grid, '[queues."*"]\nmax_pending = 7\n[queues."bench:one"]\nmax_pending = 3')
    ask(grid)
    found = {
        each.name: (each.limit, each.spent) for each in read_accounts(grid.client, grid.keys, "UTC").accounts
    }
    assert found[ANY] == (7, 1)
    assert found["bench:one"] == (3, 0)
