"""A stage with fallback queues: lib/fallbacks.lua."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest

from gridq.graph.plan import Plan, Scope
from gridq.jobs.record import build_plan_fields, format_chain, parse_chain
from gridq.protocol.models import Limit
from gridq.store.replies import Accepted, Claim, NoSeat, NotLent, QueueLimitReached
from gridq.store.scripts import NewJob
from tests.pieces import emit
from tests.unit.store.ledger_entries import find_entries
from tests.unit.store.limits import limit
from tests.unit.store.plans import ANY, HOUR, Grid, one, plan, step

pytestmark = pytest.mark.usefixtures("key_hygiene")

A, B, C = "bench:a", "bench:b", "bench:c"


def chained(*read_queue: str, **fields: Any) -> Plan:
    """A plan of one step with a chain."""
    return one(queue=read_queue[0], fallbacks=read_queue[1:], **fields)


def where(grid: Grid, *queues: str) -> list[str]:
    """Return the queues in which stages wait."""
    return [queue for queue in queues or (A, B, C) if grid.pending(queue)]


def read_queue(grid: Grid, job: str, number: int = 0) -> str:
    """Return the queue of a step by its chain and header, which must agree."""
    at, names = parse_chain(str(grid.field(job, f"chain:{number}")))
    assert str(grid.field(job, f"header:{number}")).split(" ")[0] == names[at]
    return names[at]


def test_the_first_queue_with_a_seat_takes_the_stage(grid: Grid) -> None:
    grid.seat("m.a", A)
    grid.seat("m.b", B)
    job = grid.job(chained(A, B))
    assert where(grid) == [A]
    claim = grid.take("m.a")
    assert (claim.job, claim.queue, read_queue(grid, job)) == (job, A, A)
    assert not grid.client.exists(grid.keys("chained"))
    grid.done(claim)


def test_without_a_seat_of_the_first_queue_the_next_queue_takes_the_stage(grid: Grid) -> None:
    grid.seat("m.c", C)
    grid.seat("m.b", B)
    grid.job(chained(A, B, C))
    assert grid.wake_ups("seat:m.b") == 1
    assert grid.claim("m.c") == "none"
    claim = grid.take("m.b")
    assert claim.queue == B
    grid.done(claim, used=7)
    assert [entry.queue for entry in find_entries(grid)] == [B]


@pytest.mark.parametrize("why", ["draining", "unavailable", "paused", "no budget", "lent to others", "gone"])
def test_a_seat_that_takes_no_work_triggers_a_fallback(grid: Grid, why: str) -> None:
    grid.seat(
        "m.a", A, draining=why == "unavailable", budget=100 if why == "no budget" else None,
        lent_to=["bob"] if why == "lent to others" else (),
    )  # fmt: skip
    grid.seat("m.b", B)
    if why == "draining":
        grid.scripts.leave("m.a", "i1", "drain")
    if why == "paused":
        grid.client.set(grid.keys("drain", "m.a"), 1, px=60_000)
        grid.scripts.renew("m.a", "i1", [])
    if why == "gone":
        grid.scripts.leave("m.a", "i1", "go")
    grid.job(chained(A, B, cost=900))
    assert where(grid) == [B]
    assert grid.take("m.b").queue == B


def test_busy_and_rate_limited_seats_trigger_no_fallback(grid: Grid) -> None:
    grid.seat("m.a", A, requests_per_minute=1)
    grid.seat("m.b", B)
    first = grid.job(chained(A, B))
    claim = grid.take("m.a")
    grid.job(chained(A, B))
    assert where(grid) == [A]
    assert claim.job == first
    grid.done(claim)
    assert grid.claim("m.a") == "limited"
    grid.sweep()
    assert where(grid) == [A]
    assert grid.claim("m.b") == "none"


def test_the_sweep_moves_a_stage_to_the_fallback_and_back(grid: Grid) -> None:
    grid.seat("m.a", A)
    grid.seat("m.b", B)
    job = grid.job(chained(A, B))
    ready = grid.field(job, "ready_at:0")
    grid.scripts.leave("m.a", "i1", "drain")
    grid.clear("seat:m.b")
    grid.sweep()
    assert where(grid) == [B]
    assert grid.wake_ups("seat:m.b") == 1
    assert grid.field(job, "ready_at:0") == ready  # it keeps its place
    grid.seat("m.a", A)
    grid.sweep()
    assert where(grid) == [A]
    assert grid.take("m.a").queue == A


def test_the_sweep_falls_back_from_a_used_up_budget(grid: Grid) -> None:
    grid.seat("m.a", A, budget=1000)
    grid.seat("m.b", B)
    other = grid.job(one(queue=A, cost=1000))
    grid.job(chained(A, B, cost=1000))
    claim = grid.take("m.a")
    assert claim.job == other
    grid.done(claim, used=990)
    grid.sweep()
    assert where(grid) == [B]


def test_used_up_requests_trigger_a_fallback_and_parallel_limits_do_not(grid: Grid) -> None:
    calm = [
        Limit(resource="parallel", window="-", amount=1),
        Limit(resource="requests", window="1m", amount=1),
    ]
    grid.seat("m.a", A, concurrency=3, limits=calm)
    grid.seat("m.b", B)
    grid.job(chained(A, B))
    first = grid.take("m.a")
    grid.job(chained(A, B))
    grid.sweep()
    assert where(grid) == [A]
    grid.done(first)
    grid.seat("m.a", A, concurrency=3, limits=[Limit(resource="requests", window="5h", amount=1)])
    grid.done(grid.take("m.a"))
    grid.job(chained(A, B))
    assert where(grid) == [B]


def test_the_estimate_decides_about_a_fallback(grid: Grid) -> None:
    grid.seat("m.a", A, limits=[Limit(resource="tokens", window="day", amount=1000)])
    grid.seat("m.b", B)
    grid.done(job_take(grid, one(queue=A)), tokens=(300, 300))
    for estimate, queue in (("200 100", A), ("200 400", B)):
        job = admit_with_fields(grid, chained(A, B), {"tokens:0": estimate}, job=f"told-{queue[-1]}")
        assert read_queue(grid, job) == queue


def job_take(grid: Grid, given: Plan) -> Claim:
    """Admit a job, and its first claim by m.a."""
    grid.job(given)
    return grid.take("m.a")


def test_a_sweep_checks_a_bounded_number_of_chained_stages(grid: Grid) -> None:
    for seat, queue in (("m.a", A), ("m.b", B), ("m.c", C)):
        grid.seat(seat, queue)
    for _ in range(8):
        grid.job(chained(C, A))
        grid.job(chained(A, B))
    grid.scripts.leave("m.a", "i1", "drain")
    moved = [0]
    while moved[-1] < 8:
        assert len(moved) < 17  # each sweep looks at two
        time.sleep(0.002)  # what was looked at stands behind the others by the clock, which counts ms
        grid.sweep(1)
        moved.append(len(grid.pending(B)))
    assert all(after - before <= 1 for before, after in itertools.pairwise(moved))
    assert len(grid.pending(C)) == 8


def test_without_a_live_seat_a_stage_stays_in_its_first_servable_queue(grid: Grid) -> None:
    job = grid.job(chained(A, B, C))
    assert read_queue(grid, job) == A
    grid.seat("m.b", B, budget=0)
    costly = grid.job(chained(A, B, C, cost=5))
    assert read_queue(grid, costly) == B
    grid.sweep()
    assert read_queue(grid, job) == B  # it costs nothing
    assert grid.take("m.b").job == job


def test_one_seat_with_budget_among_many_is_found(grid: Grid) -> None:
    for number in range(70):
        grid.seat(f"m.a{number}", A, budget=0)
    grid.seat("m.rich", A)
    grid.seat("m.b", B)
    for _ in range(20):  # some are looked at by chance before all
        grid.job(chained(A, B, cost=5))
    assert where(grid) == [A]


def test_a_failed_attempt_falls_back_to_the_next_queue(grid: Grid) -> None:
    grid.seat("m.a", A)
    grid.seat("m.b", B)
    grid.job(chained(A, B))
    assert grid.fail(grid.take("m.a"), pause_ms=60_000) == "again"
    claim = grid.take("m.b")
    assert (claim.queue, claim.failures) == (B, 1)
    grid.done(claim)


def test_each_queue_has_all_its_attempts(grid: Grid) -> None:
    grid.seat("m.a", A)
    grid.seat("m.b", B)
    job = grid.job(chained(A, B))
    took = []
    for _ in range(6):
        seat = "m.a" if read_queue(grid, job) == A else "m.b"
        claim = grid.take(seat)
        took.append(claim.queue)
        after = grid.fail(claim)  # no pause: it may try again at once, but others go first
        grid.wait_over()
    assert after == "plain"
    assert sorted(took) == [A, A, A, B, B, B]
    error = grid.ended(job).to_error()
    assert error is not None
    assert error.details["failures"] == 6


def test_a_seat_of_both_queues_fails_three_times_in_each(grid: Grid) -> None:
    grid.seat("m.a", A, B)
    job = grid.job(chained(A, B))
    took = []
    for _ in range(6):
        took.append(grid.take("m.a").queue)
        after = grid.fail(next(iter(grid.held("m.a").values())))
        grid.wait_over()
    assert (took, after) == ([A, A, A, B, B, B], "plain")
    assert grid.end(job) is not None


def test_three_failures_end_the_stage_if_no_other_queue_is_served(grid: Grid) -> None:
    grid.seat("m.a", A)
    grid.job(chained(A, B))
    for _ in range(3):
        after = grid.fail(grid.take("m.a"))
        grid.wait_over()
    assert after == "plain"


def test_a_stage_does_not_fall_back_after_its_first_token(grid: Grid) -> None:
    grid.seat("m.a", A)
    grid.seat("m.b", B)
    job = grid.job(chained(A, B), stream=True)
    claim = grid.take("m.a")
    assert emit(grid.scripts, claim.lease, "root", ['"x"'], 0)
    assert grid.fail(claim) == "plain"
    assert grid.end(job) is not None


def test_a_lost_lease_falls_back_and_its_late_use_counts_in_its_queue(grid: Grid) -> None:
    grid.seat("m.a", A)
    grid.seat("m.b", B)
    job = grid.job(chained(A, B))
    claim = grid.take("m.a")
    grid.lapse(claim)
    assert read_queue(grid, job) == B
    assert grid.complete(claim, used=40)[0] == 1  # nobody else has taken it meanwhile
    assert {entry.queue for entry in find_entries(grid)} == {A}
    assert not grid.client.exists(grid.keys("chained"))


def test_excluded_seats_are_kept_per_queue(grid: Grid) -> None:
    grid.seat("m.a", A, B)
    grid.seat("m.b", B)
    fields = {"excluded:0": "m.a", "unfit:0": "m.a", "chain:0": format_chain([A, B], ["m.a", "m.b"])}
    job = admit_with_fields(grid, chained(A, B), fields)
    assert read_queue(grid, job) == B  # m.a lacks what A asks for, and has what B does
    assert (grid.field(job, "excluded:0"), grid.field(job, "unfit:0")) == ("m.b", "m.b")
    assert grid.claim("m.b") == "none"
    claim = grid.take("m.a")
    assert claim.queue == B
    grid.fail(claim, pause_ms=60_000)
    assert read_queue(grid, job) == B
    assert grid.field(job, "excluded:0") == "m.b,m.a"
    grid.seat("m.c", A)
    grid.sweep()
    assert read_queue(grid, job) == A
    assert grid.field(job, "excluded:0") == "m.a"  # which backs off, beside that it does not fit
    assert grid.take("m.c").queue == A


def admit_with_fields(grid: Grid, given: Plan, fields: dict[str, str], job: str = "wished") -> str:
    """Admit a plan of one step with more fields."""
    plan_fields, ready, needs = build_plan_fields(given)
    plan_fields += [word for pair in fields.items() for word in pair]
    new_job = NewJob(
        job=job, agent="ann", priority=0, deadline_ms=HOUR, result_ttl_ms=HOUR, celery=False, stream=False,
        wait_for_seat=True, input=b"1", answer=0, steps=1, queues=needs, ready=ready, fields=plan_fields,
    )  # fmt: skip
    assert grid.scripts.admit(new_job) == Accepted()
    return job


def test_a_retry_starts_with_the_first_queue(grid: Grid) -> None:
    grid.seat("m.a", A)
    grid.seat("m.b", B)
    given = plan(step(queue=A, fallbacks=(B,), scope=0), scopes=[Scope("root", None, 2, 0, ((0, 0),))])
    job = grid.job(given)
    grid.fail(grid.take("m.a"), pause_ms=60_000)
    claim = grid.take("m.b")
    assert grid.fail(claim, "stage") == "again"
    assert read_queue(grid, job) == A
    assert grid.field(job, "chain_failures:0") is None
    grid.done(grid.take("m.a"))


def test_a_job_is_refused_if_none_of_its_queues_is_served(grid: Grid) -> None:
    grid.seat("m.c", C)
    assert grid.admit(chained(A, B), "j1", wait=False) == NoSeat((f"{A}|{B}",))
    assert grid.admit(chained(A, C), "j2", wait=False) == Accepted()
    grid.seat("m.c", C, lent_to=["bob"])
    assert grid.admit(chained(A, C), "j3", wait=False) == NotLent(f"{A}|{C}", (("m.c", "a:bob"),))
    grid.seat("m.b", B)
    assert grid.admit(chained(A, C, B), "j4", wait=False) == Accepted()
    assert read_queue(grid, "j4") == B


def test_queue_bounds_apply_to_the_queue_that_the_stage_enters(grid: Grid) -> None:
    grid.seat("m.b", B)
    limit(grid, f'[queues."{B}"]\nmax_pending = 1')
    assert grid.admit(chained(A, B), "j1") == Accepted()
    assert grid.admit(chained(A, B), "j2") == QueueLimitReached(B, 1, 1, 1)
    grid.seat("m.a", A)
    assert grid.admit(chained(A, B), "j2") == Accepted()


def test_a_cancelled_stage_leaves_no_chain_entry(grid: Grid) -> None:
    grid.seat("m.b", B)
    job = grid.job(chained(A, B))
    grid.scripts.stop(job, "cancelled", "{}")
    assert where(grid) == []
    assert not grid.client.exists(grid.keys("chained"))


def test_entries_of_vanished_jobs_are_dropped(grid: Grid) -> None:
    grid.client.zadd(grid.keys("chained"), {"gone:0": 1, "not an entry": 2})
    grid.client.pexpire(grid.keys("chained"), 60_000)
    swept = grid.sweep()
    assert not grid.client.exists(grid.keys("chained"))
    assert [broken.entry for broken in swept.broken] == ["not an entry"]


def test_a_stage_without_fallbacks_has_no_chain(grid: Grid) -> None:
    grid.seat()
    job = grid.job(one())
    assert grid.field(job, "chain:0") is None
    assert not grid.client.exists(grid.keys("chained"))
    assert where(grid, ANY) == [ANY]


# -- a model that is not at hand at its seat ----------------------------------------------------------------


def test_a_stage_goes_on_to_another_model_of_the_same_seat(grid: Grid) -> None:
    grid.seat("m.a", A, B)
    job = grid.job(chained(A, B))
    assert grid.fail(grid.take("m.a"), "back", pause_ms=60_000) == "again"
    assert where(grid) == [B]
    claim = grid.take("m.a")
    assert (claim.queue, claim.attempt, read_queue(grid, job)) == (B, 2, B)
    assert grid.fail(claim, "seat") == "again", "the attempts of the other model are all left"


def test_another_seat_of_the_first_model_comes_before_another_model(grid: Grid) -> None:
    grid.seat("m.a", A, B)
    grid.job(chained(A, B))
    claim = grid.take("m.a")
    grid.seat("m.b", A)
    assert grid.fail(claim, "back", pause_ms=60_000) == "again"
    assert where(grid) == [A]
    assert grid.claim("m.a") == "none"
    assert grid.take("m.b").queue == A


@pytest.mark.parametrize("serves_both", [False, True])
def test_a_stage_waits_for_its_first_model_if_its_seat_cannot_take_it_for_another(
    grid: Grid, serves_both: bool
) -> None:
    grid.seat("m.a", A, *([B] if serves_both else []))
    job = grid.job(chained(A, B))
    claim = grid.take("m.a")
    if serves_both:  # but the other model lacks what the stage demands
        grid.client.hset(grid.keys("job", job), "chain:0", format_chain([A, B], ["", "m.a"]))
    assert grid.fail(claim, "back", pause_ms=60_000) == "again"
    assert where(grid) == [A]
    assert grid.claim("m.a") == "none"


def test_a_stage_that_its_owner_hands_back_stays_with_its_model(grid: Grid) -> None:
    grid.seat("m.a", A, B)
    grid.job(chained(A, B))
    assert grid.fail(grid.take("m.a"), "back") == "again"
    assert where(grid) == [A]
