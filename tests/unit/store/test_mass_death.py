"""Very much is due at once, of one sort or of all: batch after batch within a turn of the sweeper, each of
them bounded, and no sort waits for another.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from gridq.router.sweep import BATCH_ITEMS, Sweeper
from tests.pieces import emit
from tests.unit.store.plans import ANY, HOUR, Grid, chain, one, wide

pytestmark = pytest.mark.usefixtures("key_hygiene")

MANY = 1000


class Watched(Sweeper):
    """A sweeper that notes what each call of the script found; the last sweep is always one just before."""

    def __init__(self, grid: Grid, answer: Callable[[str], None] = lambda job: None) -> None:
        super().__init__(grid.scripts, grid.config, answer)
        self.batches: list[dict[str, int]] = []
        sweep = grid.scripts.sweep

        def noting(*args: Any) -> Any:
            grid.client.delete(grid.keys("last_sweep"))
            swept = sweep(*args)
            self.batches.append(swept.found)
            return swept

        self.scripts = _Noting(noting)  # type: ignore[assignment]


class _Noting:
    def __init__(self, sweep: Callable[..., Any]) -> None:
        self.sweep = sweep


def fill(grid: Grid, seats: int, concurrency: int) -> list[str]:
    """Seats whose every slot has a stage; their names."""
    names = [f"m.s{number}" for number in range(seats)]
    for number in range(seats * concurrency // 50):
        grid.job(wide(50), f"job{number}")
    for name in names:
        grid.seat(name, concurrency=concurrency)
        for slot in range(concurrency):
            grid.take(name, slot=str(slot))
    assert grid.client.zcard(grid.keys("leases")) == seats * concurrency
    grid.keep_seats(names)
    return names


def die(grid: Grid, *sets: str) -> None:
    """All that stands in these sets of times is due now."""
    for name in sets:
        members = grid.client.zrange(grid.keys(name), 0, -1)
        grid.client.zadd(grid.keys(name), dict.fromkeys(members, 1))


@pytest.mark.parametrize(("seats", "concurrency"), [(1000, 1), (50, 20)])
def test_a_thousand_lapsed_leases_are_back_after_one_sweep(grid: Grid, seats: int, concurrency: int) -> None:
    fill(grid, seats, concurrency)
    die(grid, "leases", "seats")
    sweeper = Watched(grid)
    found = sweeper.sweep()
    assert found["seats"] == seats
    assert int(grid.client.hget(grid.keys("attempts_lost"), "count")) == MANY
    assert not grid.client.exists(grid.keys("leases"), grid.keys("lease_info"), grid.keys("seats"))
    assert len(grid.pending()) == MANY
    assert all(batch["died"] <= BATCH_ITEMS and batch["seats"] <= BATCH_ITEMS for batch in sweeper.batches)
    assert len(sweeper.batches) <= MANY * 2 / BATCH_ITEMS + 1
    grid.seat("m.new", concurrency=MANY)
    for slot in range(MANY):
        grid.take("m.new", slot=str(slot))


def test_many_leases_of_live_seats_may_lapse_at_once(grid: Grid) -> None:
    fill(grid, 50, 20)
    die(grid, "leases")
    sweeper = Watched(grid)
    assert sweeper.sweep()["died"] == MANY
    assert len(sweeper.batches) == MANY / BATCH_ITEMS + 1
    assert sweeper.sweep()["died"] == 0
    assert len(grid.pending()) == MANY


def test_several_routers_share_the_sweep(grid: Grid) -> None:
    fill(grid, 50, 20)
    die(grid, "leases")
    found: list[dict[str, int]] = []
    sweepers = [Watched(grid) for _ in range(4)]
    threads = [threading.Thread(target=lambda each=each: found.append(each.sweep())) for each in sweepers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(each["died"] for each in found) == MANY
    assert len(grid.pending()) == MANY


def test_no_kind_of_due_entries_waits_for_another(grid: Grid) -> None:
    """With more of each kind due than a batch takes, the first batch takes some of each, one sweep all."""
    number = BATCH_ITEMS + 50
    fill(grid, 10, number // 10)
    for job in range(number):
        grid.enqueue(f"queued{job}", celery=False)
        grid.enqueue(f"late{job}", celery=True)
        grid.job(one(queue="bench:nobody"), f"out{job}", celery=True)
        grid.scripts.stop(f"out{job}", "cancelled", "{}")
    for job in range(number):
        grid.client.zadd(grid.keys("deadlines"), {f"late{job}": 1})
        grid.client.zadd(grid.keys("delays"), {f"loss:out{job}:0:m.s0": 1})
    die(grid, "leases", "inbox", "answers", "ended_jobs")
    answered: Counter[str] = Counter()
    sweeper = Watched(grid, lambda job: answered.update([job]))
    found = sweeper.sweep()
    first = sweeper.batches[0]
    assert all(first[sort] == BATCH_ITEMS for sort in ("died", "due", "expired", "woken")), first
    assert (found["died"], found["expired"], found["due"]) == (number, number, number)
    assert grid.client.zcount(grid.keys("ended_jobs"), "-inf", grid.now()) == 0
    assert found["woken"] == BATCH_ITEMS, "the routers' queue has room for so many"
    sweeper.start()
    try:
        while len(answered) < BATCH_ITEMS:
            threading.Event().wait(0.01)
    finally:
        sweeper.stop()
    assert max(answered.values()) == 1
    grid.clear(ANY, "gridq:router")


@pytest.mark.parametrize("why", ["died", "due", "expired"])
def test_long_jobs_are_ended_a_few_per_batch(grid: Grid, why: str) -> None:
    """A streamed stage that is lost ends its job, as its deadline and its queue timeout do. However many are
    due at once, others are served in between.
    """
    grid.seat(concurrency=3)
    grid.keep_seats(["m.a"])
    for number in range(3):
        grid.job(chain(3000), f"long{number}", stream=True, queue_timeout_ms=HOUR)
        if why == "died":
            assert emit(grid.scripts, grid.take(slot=str(number)).lease, "root", ['"a"'], 0)
    die(grid, {"died": "leases", "due": "delays", "expired": "deadlines"}[why])
    ended = []
    while (swept := grid.sweep()).more:
        ended.append(swept.found[why])
    assert ended[:3] == [1, 1, 1], "and each leaves the rest of its job to further calls"
    assert len(ended) > 3
    assert not grid.client.exists(grid.keys("long_work"))
    assert all(grid.ended(f"long{number}").state.is_final for number in range(3))


def test_a_hanging_result_backend_does_not_delay_the_sweep(grid: Grid) -> None:
    grid.seat()
    grid.job(one(), "j1", celery=True)
    grid.scripts.stop("j1", "cancelled", "{}")
    grid.job(one(), "j2")
    lease = grid.take().lease
    die(grid, "answers")
    called, back = threading.Event(), threading.Event()

    def hang(job: str) -> None:
        called.set()
        back.wait()

    sweeper = Watched(grid, hang)
    sweeper.start()
    try:
        assert called.wait(30)
        grid.client.zadd(grid.keys("leases"), {lease: 1}, xx=True)  # a slow machine may have lost it by now
        while not grid.pending():
            threading.Event().wait(0.01)
    finally:
        back.set()
        sweeper.stop()
