"""claim.lua: the best pending stage that a seat may run."""

from __future__ import annotations

import json

import pytest

from gridq.jobs.record import COST_STEPS_MICRO_DOLLARS
from gridq.store.replies import Claim
from tests.unit.store.plans import ANY, Grid, one, plan, step, wide

pytestmark = pytest.mark.usefixtures("key_hygiene")


def _served(grid: Grid, number: int, seat: str = "m.a") -> list[str]:
    """The agents of the next stages that a seat gets, each done at once."""
    agents = []
    for _ in range(number):
        claim = grid.take(seat)
        agents.append(claim.agent)
        grid.done(claim)
    return agents


# -- one stage ---------------------------------------------------------------------------------------------


def test_a_claim_has_the_data_of_its_stage(grid: Grid) -> None:
    grid.seat()
    grid.job(plan(step(), step(0)), "j1", prio=1, agent="bob", value=b'"in"', deadline_ms=60_000)
    first = grid.take()
    assert (first.job, first.attempt, first.agent, first.priority, first.queue) == ("j1", 1, "bob", 1, ANY)
    assert (first.input, first.refs, first.values, first.stream) == (b'"in"', (), (), False)
    assert 0 < first.remaining_ms <= 60_000
    assert json.loads(first.spec)[0] == "root"
    grid.done(first, b'"out"')
    second = grid.take()
    assert (second.input, second.refs, second.values) == (b"", (0,), (b'"out"',))


def test_a_claim_with_nothing_pending_returns_none_or_gone(grid: Grid) -> None:
    assert grid.claim() == "gone"
    grid.seat()
    assert grid.claim() == "none"
    assert grid.claim(inc="i0") == "gone"


def test_a_slot_that_holds_a_lease_gets_it_again(grid: Grid) -> None:
    grid.seat(concurrency=2)
    grid.job(wide(3), "j1")
    first = grid.take()
    again = grid.take()
    assert (again.lease, again.spec, again.input) == (first.lease, first.spec, first.input)
    assert grid.field("j1", "attempts:0") == "1"
    assert grid.take(slot="1").lease != first.lease


def test_a_slot_that_lost_its_lease_gets_another_stage(grid: Grid) -> None:
    grid.seat()
    grid.seat("m.b")
    grid.job(wide(2), "j1")
    first = grid.take()
    grid.lapse(first)
    assert grid.take().lease.startswith("j1:1:")


def test_a_seat_claims_no_more_stages_than_slots(grid: Grid) -> None:
    grid.seat(concurrency=2)
    grid.job(wide(3))
    first = grid.take(slot="0")
    grid.take(slot="1")
    assert grid.claim(slot="2") == "full"
    grid.done(first)
    grid.take(slot="2")
    assert grid.claim(slot="0") == "full"


def test_a_stage_past_its_deadline_is_not_claimed(grid: Grid) -> None:
    grid.seat()
    grid.job(one(), "j1")
    grid.client.hset(grid.keys("job", "j1"), "deadline", 1)
    assert grid.claim() == "none"
    grid.age("deadlines", "j1")
    assert grid.sweep()[0]["expired"] == 1


def test_a_stage_whose_job_expired_is_dropped(grid: Grid) -> None:
    grid.seat()
    grid.job(one(), "j1")
    grid.job(one(), "j2")
    grid.client.delete(grid.keys("job", "j1"))
    assert grid.take().job == "j2"
    assert grid.classes() == {}


def test_a_seat_takes_only_what_it_serves(grid: Grid) -> None:
    grid.seat("m.a", "bench:a", "bench:b")
    grid.job(one(queue="bench:c"))
    grid.job(one(queue="bench:b"), "j2")
    assert grid.take().job == "j2"
    grid.done(grid.take())
    assert grid.claim() == "none"


# -- budgets -----------------------------------------------------------------------------------------------


def test_a_stage_over_the_remaining_budget_is_not_claimed(grid: Grid) -> None:
    grid.seat(budget=5_000)
    grid.job(one(cost=5_001), "dear")
    assert grid.claim() == "none"
    grid.job(one(cost=900), "cheap")
    assert grid.take().job == "cheap"


def test_a_reservation_is_settled_by_actual_use(grid: Grid) -> None:
    grid.seat(concurrency=2, budget=15_000)
    grid.job(wide(3, cost=9_000))
    first = grid.take()
    assert grid.left() == 5_000  # the step of the ladder, 10,000
    assert grid.claim(slot="1") == "none"
    grid.done(first, used=2_500)
    assert grid.left() == 12_500
    second = grid.take()
    assert grid.left() == 2_500
    grid.fail(second, "back", used=400)
    assert grid.left() == 12_100


def test_a_budget_of_zero_takes_free_stages_only(grid: Grid) -> None:
    grid.seat(budget=0)
    grid.job(one(), "free")
    grid.job(one(cost=1), "dear")
    assert grid.take().job == "free"
    assert grid.done(grid.take()) == "plain"
    assert grid.claim() == "none"


# -- order -------------------------------------------------------------------------------------------------


def test_first_come_first_served_for_one_agent(grid: Grid) -> None:
    grid.seat()
    for name in "abc":
        grid.job(one(), name)
        grid.client.ping()
    order = []
    for _ in range(3):
        claim = grid.take()
        order.append(claim.job)
        grid.done(claim)
    assert order == ["a", "b", "c"]


def test_a_returned_stage_keeps_its_place(grid: Grid) -> None:
    grid.seat()
    grid.job(one(), "j1")
    claim = grid.take()
    ready = grid.field("j1", "ready_at:0")
    while grid.now() <= int(ready or 0):
        pass
    grid.job(wide(5), "j2")
    grid.fail(claim, "back")
    assert grid.field("j1", "ready_at:0") == ready
    assert grid.take().job == "j1"


def test_interactive_goes_before_batch_over_all_agents(grid: Grid) -> None:
    grid.seat()
    grid.job(wide(5), agent="ann", prio=0)
    _served(grid, 3)
    grid.job(wide(5), agent="bob", prio=1)
    grid.job(wide(2), agent="ann", prio=1)
    # ann has had more, and still her interactive stages come first; then bob catches up.
    assert _served(grid, 3) == ["ann", "ann", "ann"]
    assert _served(grid, 1) == ["bob"]


def test_old_batch_stages_count_as_interactive(grid: Grid) -> None:
    config = grid.config.model_copy(update={"batch_age": 0.0})
    aged = Grid(grid.client, config)
    grid.seat()
    grid.job(one(), "j1", agent="bob", prio=1)
    grid.job(one(), "j2", agent="ann", prio=0)
    grid.client.hset(grid.keys("virtual_time", "bench"), mapping={"ann": 5, "bob": 1})
    assert aged.take().job == "j1"


def test_agents_share_evenly_whatever_they_sent(grid: Grid) -> None:
    grid.seat()
    grid.job(wide(60), agent="ann")
    grid.job(wide(10), agent="bob")
    served = _served(grid, 20)
    assert abs(served.count("ann") - served.count("bob")) <= 1


def test_expensive_stages_count_more_in_the_fair_share(grid: Grid) -> None:
    grid.seat()
    grid.job(wide(30, cost=100_000), agent="ann")  # weight 11
    grid.job(wide(60), agent="bob")
    assert _served(grid, 24).count("ann") in (2, 3)


@pytest.mark.parametrize("returns", [False, True])
def test_an_agent_that_joins_late_gets_an_even_share(grid: Grid, returns: bool) -> None:
    """The share is even for an agent that was served before and has been idle, too."""
    grid.seat()
    if returns:
        grid.job(one(), agent="bob")
    grid.job(wide(100), agent="ann")
    _served(grid, 50)
    grid.job(wide(100), agent="bob")
    assert 9 <= _served(grid, 20).count("bob") <= 11


@pytest.mark.parametrize("late", ["slow", "fast"])
def test_queues_of_different_speed_share_evenly_with_an_agent_that_joins_late(grid: Grid, late: str) -> None:
    grid.seat("m.fast", "bench:fast")
    grid.seat("m.slow", "bench:slow")
    grid.job(wide(40, queue="bench:slow"), agent="ann")
    grid.job(wide(200, queue="bench:fast"), agent="bob")
    rounds = [("m.slow", 2), ("m.fast", 150)]
    for seat, number in rounds if late == "slow" else reversed(rounds):
        _served(grid, number, seat)
    grid.job(wide(60, queue=f"bench:{late}"), agent="eve")
    served = _served(grid, 20, f"m.{late}")
    assert 9 <= served.count("eve") <= 11


def test_fair_shares_are_kept_per_kind(grid: Grid) -> None:
    grid.seat("m.a", "gpu:x", "llm:x")
    grid.seat("m.b", "llm:x")
    grid.job(wide(80, queue="llm:x"), agent="ann")
    _served(grid, 40, "m.b")
    grid.job(wide(40, queue="gpu:x"), agent="bob")
    assert _served(grid, 4, "m.a").count("ann") >= 1  # llm's clock is far on, and yet not last


# -- classes -----------------------------------------------------------------------------------------------


def test_stages_of_another_class_do_not_hide_a_stage(grid: Grid) -> None:
    grid.seat("m.a", budget=500)
    grid.job(wide(10_000, cost=900), agent="ann")
    grid.job(one(), "j2", agent="bob")
    assert grid.take().job == "j2"
    assert grid.classes() == {"0/1000|": 10_000}
    assert grid.fail(grid.take(), "back") == "again"
    grid.scripts.stop(grid.pending()[0].split(":")[0], "cancelled", "{}")


def _exclude(grid: Grid, *seats: str) -> str:
    """A job of one stage that each of `seats` has failed once; its id."""
    job = grid.job(one(), agent=f"agent-{'-'.join(seats)}")
    for seat in seats:
        claim = grid.take(seat)
        assert claim.job == job
        grid.fail(claim, "seat", pause_ms=3_000_000)
    return job


def test_beyond_64_classes_stages_share_one_class_that_is_served(grid: Grid) -> None:
    grid.seat("m.z")
    names = [f"m.s{number}" for number in range(90)]
    jobs = []
    for name in names:
        grid.seat(name)
        jobs.append(_exclude(grid, name))
    classes = grid.classes()
    assert len(classes) <= 67
    assert classes["0/0|*"] == 90 - 65
    # The last seat may take all but its own, and one that none has excluded takes all there are.
    claimed = {grid.take(names[-1]).job}
    assert jobs[-1] not in claimed
    served = [grid.take("m.z")]
    while True:
        _, _, after = grid.complete(served[-1], go_on=True)
        if not isinstance(after, Claim):
            break
        served.append(after)
    assert claimed | {claim.job for claim in served} == set(jobs)


def test_a_stage_behind_many_excluded_ones_in_the_shared_class_is_found(grid: Grid) -> None:
    """The head of the class excludes the seat; the claim looks further, at other agents and further on."""
    grid.seat("m.z")
    for number in range(70):
        grid.seat(f"m.s{number}")
        _exclude(grid, f"m.s{number}")
    grid.seat("m.last")
    job = grid.job(wide(40), agent="aaa")
    claims: list[Claim] = []
    while len(claims) < 30:
        claim = grid.take("m.last", slot="0")
        if claim.job == job:
            claims.append(claim)
            grid.fail(claim, "seat", pause_ms=3_000_000)
        else:
            grid.done(claim)
    found = 0
    while isinstance(after := grid.claim("m.last"), Claim):
        found += after.job == job
        grid.done(after)
    assert found == 10


def test_an_agent_does_not_hide_others_in_the_shared_class(grid: Grid) -> None:
    jobs = set()
    for number in range(70):
        grid.seat(f"m.s{number}")
        jobs.add(_exclude(grid, f"m.s{number}"))
    grid.seat("m.last", "bench:own")
    own = grid.job(one(queue="bench:own"), agent="aaa")
    claim = grid.take("m.last")
    grid.client.hset(
        grid.keys("job", own), "header:0", f"{ANY} 0 - - - 1 root"
    )  # it comes back into the full queue
    grid.fail(claim, "seat", pause_ms=3_000_000)
    grid.seat("m.last")
    grid.client.zadd(grid.keys("ready", ANY, "0/0|*"), {"aaa": 0})
    grid.client.hset(grid.keys("virtual_time", "bench"), "aaa", 0)
    served = set()
    while isinstance(found := grid.claim("m.last"), Claim):
        served.add(found.job)
        grid.done(found)
    assert served == jobs
    assert grid.classes() == {"0/0|*": 1}


# -- the rest ----------------------------------------------------------------------------------------------


def test_each_cost_step_is_a_class(grid: Grid) -> None:
    grid.seat(budget=10**9)
    grid.job(plan(*(step(cost=cost) for cost in COST_STEPS_MICRO_DOLLARS)))
    assert set(grid.classes()) == {f"0/{cost}|" for cost in COST_STEPS_MICRO_DOLLARS}
    for slot, _ in enumerate(COST_STEPS_MICRO_DOLLARS):
        grid.seat(concurrency=len(COST_STEPS_MICRO_DOLLARS), budget=10**9)
        grid.take(slot=str(slot))
    assert grid.left() == 10**9 - sum(COST_STEPS_MICRO_DOLLARS)
