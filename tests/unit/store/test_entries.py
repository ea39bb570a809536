"""The ledger: what each script enters, and that it does so once."""

from __future__ import annotations

import uuid

import pytest

from gridq.limits import ledger
from gridq.store.replies import AlreadyKnown, QuotaReached
from tests.unit.store.ledger_entries import TEAM, check_ledger, find_entries
from tests.unit.store.limits import DAY, limit, turn_at
from tests.unit.store.plans import HOUR, Grid, chain, one, plan, step, wide

pytestmark = pytest.mark.usefixtures("key_hygiene")


def read_sums(grid: Grid) -> list[tuple[str, str, int | None, int, int]]:
    """Return what, seat, micro-dollars, tokens in and out of each attempt."""
    return [(e.what, e.seat, e.micro_dollars, e.tokens_in, e.tokens_out) for e in find_entries(grid)]


# -- what is entered


def test_a_recorded_attempt_has_an_entry(grid: Grid) -> None:
    turn_at(grid, DAY)
    limit(grid, TEAM)
    grid.seat(budget=50_000)
    grid.job(one(cost=900), "j1")
    grid.done(grid.take(), used=70, tokens=(12, 34))
    (found,) = find_entries(grid)
    assert (found.job, found.step, found.attempt, found.seat) == ("j1", 0, 1, "m.a")
    assert (found.agent, found.team, found.queue, found.charged) == ("ann", "t", "bench:any", "agent")
    assert (found.micro_dollars, found.tokens_in, found.tokens_out) == (70, 12, 34)
    assert abs(found.at - grid.now()) < HOUR
    turns = grid.client.hget(grid.keys("calendar"), "month")
    assert found.month == turns.split()[0].decode()
    assert found.ms is not None
    check_ledger(grid)


def test_without_limits_no_agent_is_charged(grid: Grid) -> None:
    grid.seat()
    grid.job(one())
    grid.done(grid.take(), used=70)
    (found,) = find_entries(grid)
    assert (found.agent, found.team, found.month, found.charged) == ("ann", "", "", "agent")
    assert not [name for name in grid.own() if name.startswith("spent")]
    check_ledger(grid)


def test_an_unknown_price_is_not_recorded_as_zero(grid: Grid) -> None:
    """Calls of a subscription use tokens at an unknown cost."""
    limit(grid, TEAM)
    grid.seat(budget=50_000)
    grid.job(one(cost=900))
    claim = grid.take()
    grid.fail(claim, "back", used=None, tokens=(3, 4))
    grid.complete(claim, used=None, tokens=(3, 9))
    grid.done(grid.take(), used=None, tokens=(5, 6))
    assert read_sums(grid) == [
        ("back", "m.a", None, 3, 4),
        ("late", "m.a", None, 0, 5),
        ("done", "m.a", None, 5, 6),
    ]
    assert grid.left() == 50_000
    check_ledger(grid)


def test_huge_numbers_are_recorded(grid: Grid) -> None:
    """A provider's counts are recorded as they are."""
    grid.seat()
    grid.job(one())
    claim = grid.take()
    grid.fail(claim, "back", tokens=(10**19, 0))
    grid.complete(claim, used=10**14, tokens=(10**19, 10**17))
    assert read_sums(grid) == [("back", "m.a", 0, 10**19, 0), ("late", "m.a", 10**14, 0, 10**17)]


def test_admitted_jobs_have_an_entry(grid: Grid) -> None:
    limit(grid, TEAM + "[agents.bob]\nmonthly_jobs = 1\n")
    grid.seat()
    grid.job(one(), "j1")
    grid.job(one(), "b1", agent="bob")
    assert isinstance(grid.admit(one(), "b2", agent="bob"), QuotaReached)
    assert grid.admit(one(), "j1") == AlreadyKnown()
    assert [(e.job, e.agent, e.team, e.month) for e in find_entries(grid, "job")] == [
        ("j1", "ann", "t", "0"),
        ("b1", "bob", "-", "0"),
    ]
    check_ledger(grid)


@pytest.mark.parametrize("kind", ["stage", "seat", "died", "back", "lost"])
def test_unsuccessful_attempts_are_charged_to_the_seat_only(grid: Grid, kind: str) -> None:
    limit(grid, TEAM)
    grid.seat(budget=50_000)
    grid.job(one(cost=900))
    claim = grid.take()
    grid.fail(claim, kind, used=30, tokens=(5, 0))
    grid.fail(claim, kind, used=30, tokens=(5, 0))
    assert read_sums(grid) == [("failed" if kind == "stage" else kind, "m.a", 30, 5, 0)]
    assert find_entries(grid)[0].charged == "seat"
    check_ledger(grid)


def test_later_reports_record_the_difference(grid: Grid) -> None:
    """A stopping worker returns its stage while its thread still runs."""
    limit(grid, TEAM)
    grid.seat(budget=50_000)
    grid.job(one(cost=900))
    claim = grid.take()
    grid.fail(claim, "back", used=30, tokens=(5, 0))
    grid.fail(claim, "back", used=40, tokens=(5, 7))
    grid.fail(claim, "back", used=30, tokens=(5, 0))  # an earlier call comes again
    grid.complete(claim, used=70, tokens=(5, 9))
    grid.complete(claim, used=70, tokens=(5, 9))
    assert read_sums(grid) == [
        ("back", "m.a", 30, 5, 0),
        ("late", "m.a", 10, 0, 7),
        ("late", "m.a", 30, 0, 2),
    ]
    assert {(e.agent, e.queue) for e in find_entries(grid)} == {("ann", "bench:any")}
    assert grid.left() == 50_000 - 70
    check_ledger(grid)


def test_late_tokens_without_cost_are_recorded(grid: Grid) -> None:
    grid.seat()
    grid.job(one())
    claim = grid.take()
    grid.lapse(claim)
    grid.fail(claim, "lost", tokens=(3, 4))
    grid.fail(claim, "lost", tokens=(3, 4))
    assert read_sums(grid) == [("lost", "m.a", None, 0, 0), ("late", "m.a", 0, 3, 4)]


def test_a_late_report_of_a_lost_lease_is_recorded(grid: Grid) -> None:
    limit(grid, TEAM)
    grid.seat("m.a", budget=50_000)
    grid.seat("m.b", budget=50_000)
    grid.job(one(cost=900))
    old = grid.take("m.a")
    grid.lapse(old)
    new = grid.take("m.b")
    grid.complete(old, used=70)
    grid.done(new, used=50)
    assert read_sums(grid) == [
        ("lost", "m.a", None, 0, 0),
        ("late", "m.a", 70, 0, 0),
        ("done", "m.b", 50, 0, 0),
    ]
    check_ledger(grid)


def test_a_lapsed_attempt_completed_in_time_is_recorded(grid: Grid) -> None:
    limit(grid, TEAM)
    grid.seat(budget=50_000)
    grid.job(chain(2, cost=900))
    claim = grid.take()
    grid.lapse(claim)
    assert grid.complete(claim, used=70)[0] == 1
    assert grid.complete(claim, used=70)[0] == 0
    assert read_sums(grid) == [("lost", "m.a", None, 0, 0), ("done", "m.a", 70, 0, 0)]
    assert [e.charged for e in find_entries(grid)] == ["seat", "agent"]
    check_ledger(grid)


def test_running_attempts_of_a_cancelled_job_are_recorded(grid: Grid) -> None:
    limit(grid, TEAM)
    grid.seat(concurrency=2, budget=50_000)
    job = grid.job(wide(3, cost=900))
    first, second = grid.take(slot="0"), grid.take(slot="1")
    grid.scripts.stop(job, "cancelled", "{}")
    grid.fail(first, "back", used=0)
    grid.complete(second, used=70)
    grid.complete(second, used=70)
    assert read_sums(grid) == [("cancelled", "m.a", None, 0, 0)] * 2 + [("late", "m.a", 70, 0, 0)]
    assert {e.agent for e in find_entries(grid)} == {"ann"}  # though its job is no more
    check_ledger(grid)


def test_a_late_report_of_a_vanished_job_is_recorded(grid: Grid) -> None:
    limit(grid, TEAM)
    grid.seat(budget=50_000)
    job = grid.job(one(cost=900))
    claim = grid.take()
    grid.client.delete(grid.keys("job", job))
    grid.complete(claim, used=70)
    assert read_sums(grid) == [("late", "m.a", 70, 0, 0)]
    grid.age("deadlines", job)
    grid.sweep()
    check_ledger(grid)


@pytest.mark.parametrize("how", ["go", "died", "anew"])
def test_the_leases_of_a_leaving_seat_are_recorded_as_lost(grid: Grid, how: str) -> None:
    grid.seat(concurrency=2)
    grid.job(wide(2))
    for slot in ("0", "1"):
        grid.take(slot=slot)
    if how == "anew":
        grid.seat(inc="i2")
    else:
        grid.scripts.leave("m.a", "i1", how)
    assert read_sums(grid) == [("lost", "m.a", None, 0, 0)] * 2


def test_free_built_in_stages_are_not_recorded(grid: Grid) -> None:
    """Built-in and local stages are many and free; stages of a model are always recorded."""
    grid.seat("m.a", "gridq:local", "gridq:pure", "bench:any")
    job = grid.job(
        plan(step(queue="gridq:local"), step(0, queue="gridq:pure"), step(1), step(2, queue="gridq:local"))
    )
    grid.done(grid.take())
    grid.fail(grid.take(), "back")
    grid.done(grid.take())
    grid.done(grid.take())
    grid.done(grid.take(), tokens=(1, 0))  # yet it said that it used something
    assert grid.end(job)
    assert [(e.step, e.queue) for e in find_entries(grid)] == [(2, "bench:any"), (3, "gridq:local")]


# -- its life and size


def test_the_sweep_trims_the_ledger_and_renews_its_ttl(grid: Grid) -> None:
    grid.seat()
    grid.job(one())
    grid.done(grid.take())
    key = grid.keys("ledger")
    days = grid.config.ledger_days * DAY
    assert days - HOUR < grid.client.pttl(key) <= days
    grid.client.persist(key)
    grid.sweep()
    assert days - HOUR < grid.client.pttl(key) <= days
    old, late = grid.keys("ledger"), {"e": "late" + " " * 12}
    grid.client.delete(old)
    first, many = grid.now() - days - DAY, grid.client.pipeline()
    for number in range(3_000):
        many.xadd(old, late, id=f"{first + number}-1")
    many.xadd(old, late)
    many.execute()
    for left in (2_000, 1_000, 100):
        grid.sweep()
        assert grid.client.xlen(key) <= left + 100
    assert find_entries(grid)[-1].at > grid.now() - DAY


def test_an_entry_takes_few_bytes(grid: Grid) -> None:
    limit(
        grid,
        TEAM.replace("ann", "research-assistant")
        .replace("[teams.t]", "[teams.research]")
        .replace('"t"', '"research"'),
    )
    grid.seat("workstation-3f2a.anthropic", "llm:claude-opus-4-6")
    for _ in range(150):
        grid.job(one(queue="llm:claude-opus-4-6"), str(uuid.uuid4()), agent="research-assistant")
        grid.done(grid.take("workstation-3f2a.anthropic"), used=1_234, tokens=(3_210, 987))
    assert (
        grid.client.memory_usage(grid.keys("ledger"), samples=0) / grid.client.xlen(grid.keys("ledger")) < 250
    )


def test_pages_give_each_entry_once(grid: Grid, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "PAGE_SIZE", 2)
    grid.seat()
    for number in range(5):
        grid.job(one(), f"j{number}")
        grid.done(grid.take())
    assert [e.job for e in find_entries(grid)] == [f"j{number}" for number in range(5)]
    last = find_entries(grid)[-1]
    assert list(ledger.read_entries(grid.client, grid.keys, since=last.at, until=last.at))[-1] == last
    assert list(ledger.read_entries(grid.client, grid.keys, after=last.id)) == []
