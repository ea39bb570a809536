"""Counters and entries agree, whatever turns or changes; each counter that is wrong is named."""

from __future__ import annotations

import threading

import pytest

from gridq.limits import ledger
from gridq.limits.ledger_verification import Difference, verify
from tests.unit.store.ledger_entries import TEAM, check_ledger, find_entries
from tests.unit.store.limits import DAY, limit, turn, turn_at
from tests.unit.store.plans import Grid, one, wide
from tests.waiting import wait_for

pytestmark = pytest.mark.usefixtures("key_hygiene")


# -- windows


def test_a_refilled_budget_has_an_entry(grid: Grid) -> None:
    turn_at(grid, DAY)
    limit(grid, '[seats."m.a"]\nbudget_dollars = 0.02')
    grid.seat(budget=50_000)
    grid.job(wide(2, cost=900))
    grid.done(grid.take(), used=70)
    turn(grid)
    grid.scripts.renew("m.a", "i1", [])
    grid.done(grid.take(), used=40)
    refills = [(e.seat, e.queue, e.micro_dollars) for e in find_entries(grid, "refill")]
    grids, owns = ("m.a", "grid/money/month", 20_000), ("m.a", "own/money/month", 50_000)
    assert sorted(refills) == [grids, grids, owns, owns]
    check_ledger(grid)
    assert grid.left() == 50_000 - 40


@pytest.mark.parametrize("how", ["done", "failed", "lapsed"])
def test_use_settled_after_the_reset_counts_in_the_new_window(grid: Grid, how: str) -> None:
    """This holds even if nothing was claimed or renewed since the reset."""
    turn_at(grid, DAY)
    limit(grid, TEAM)
    grid.seat(concurrency=2, budget=50_000)
    grid.job(wide(2, cost=900))
    first, second = grid.take(slot="0"), grid.take(slot="1")
    grid.done(first, used=300)
    if how == "lapsed":
        grid.lapse(second)
    turn(grid)
    if how == "failed":
        grid.fail(second, "seat", used=70)
    else:
        grid.complete(second, used=70)
    assert grid.left() == 50_000 - 70
    assert [e.what for e in find_entries(grid, "refill", *ledger.ATTEMPTS)][-2:] in (
        ["refill", "done"],
        ["refill", "seat"],
    )
    check_ledger(grid)


def test_use_before_the_ledger_began_is_carried_over(grid: Grid) -> None:
    turn_at(grid, DAY)
    limit(grid, TEAM)
    grid.seat()
    grid.job(one(cost=900))
    grid.done(grid.take(), used=500)
    grid.client.delete(grid.keys("ledger"))
    assert {d.counter for d in verify(grid.client, grid.keys).differences} == {
        "agent ann: jobs of the month",
        "agent ann: money of the month",
        "team t: jobs of the month",
        "team t: money of the month",
    }
    grid.job(one(cost=900))
    grid.done(grid.take(), used=20)
    carried = [(e.agent, e.queue, e.micro_dollars) for e in find_entries(grid, "carried")]
    assert sorted(carried) == [
        ("a:ann", "jobs", 1),
        ("a:ann", "money", 500),
        ("t:t", "jobs", 1),
        ("t:t", "money", 500),
    ]
    assert next(ledger.read_entries(grid.client, grid.keys)).what == "begin"
    check_ledger(grid)


def test_a_seat_whose_window_began_before_the_ledger_is_noted(grid: Grid) -> None:
    grid.seat(budget=1_000)
    grid.client.delete(grid.keys("ledger"))
    grid.job(one())
    grid.done(grid.take(), used=7)
    found = verify(grid.client, grid.keys)
    assert found.differences == ()
    assert [note.partition(" is ")[0] for note in found.notes] == ["seat m.a: money a month"]


def test_verify_agrees_when_budgets_change(grid: Grid) -> None:
    grid.seat(concurrency=3, budget=100_000)
    grid.job(wide(6, cost=900))
    held = grid.take(slot="0")
    limit(grid, '[seats."m.a"]\nbudget_dollars = 0.02')
    grid.done(grid.take(slot="1"), used=70)
    check_ledger(grid)
    grid.seat(concurrency=3, budget=60_000, period="day")
    grid.done(held, used=30)
    check_ledger(grid)
    limit(grid, "")
    grid.done(grid.take(), used=11)
    limit(grid, '[seats."m.a"]\nbudget_dollars = 0.02')
    grid.take()
    check_ledger(grid)
    grid.seat(concurrency=3)
    grid.done(grid.take(slot="2"), used=5)
    grid.seat(concurrency=3, budget=10_000)
    check_ledger(grid)


# -- verify finds


def test_verify_names_every_wrong_counter(grid: Grid) -> None:
    limit(grid, TEAM)
    grid.seat(budget=50_000)
    grid.job(one(cost=900))
    grid.done(grid.take(), used=70)
    check_ledger(grid)
    spent, seat = grid.keys("spent", "0"), grid.keys("seat", "m.a")
    grid.client.hincrby(spent, "money a:ann", 1)
    grid.client.hincrby(spent, "jobs t:t", -1)
    grid.client.hset(seat, "own", grid.client.hget(seat, "own").replace(b"/70/0/", b"/72/3/"))
    assert verify(grid.client, grid.keys).differences == (
        Difference("team t: jobs of the month", 0, 1, "jobs"),
        Difference("agent ann: money of the month", 71, 70, "money"),
        Difference("seat m.a: money a month, reserved", 3, 0, "money"),
        Difference("seat m.a: money a month, used", 72, 70, "money"),
    )


def test_verify_finds_a_missing_entry(grid: Grid) -> None:
    limit(grid, TEAM)
    grid.seat(budget=50_000)
    grid.job(one(cost=900))
    grid.done(grid.take(), used=70)
    grid.client.xdel(grid.keys("ledger"), find_entries(grid)[0].id)
    assert len(verify(grid.client, grid.keys).differences) == 3


def test_verify_is_right_while_the_grid_runs_and_the_month_resets(grid: Grid) -> None:
    """Counters and entries are read at one instant: each settlement is in both or in neither."""
    turn_at(grid, DAY)
    limit(grid, TEAM.replace("1", "1000"))
    grid.seat(concurrency=2, budget=10**12)
    over = threading.Event()
    checks = 0

    def wait_for_checks(count: int) -> None:
        wait_for(lambda: checks >= count, poll=0.001)

    def work() -> None:
        other = Grid(grid.client, grid.config)
        try:
            for number in range(150):
                wait_for_checks(number // 10)
                other.job(one(cost=900), f"w{number}")
                claim = other.take()
                if number % 5 == 0:
                    other.fail(claim, "back", used=number)
                    claim = other.take()
                other.done(claim, used=number, tokens=(number, 1))
        finally:
            over.set()

    worker = threading.Thread(target=work)
    worker.start()
    while not over.is_set():
        check_ledger(grid)
        checks += 1
        if checks % 10 == 0:
            turn(grid)
    worker.join()
    check_ledger(grid)
    assert checks > 10
    assert len(find_entries(grid)) == 150 + 30
