"""Options about seats: `=seat` pins a stage to a seat, `prefer` wakes a seat first."""

from __future__ import annotations

import pytest

from gridq.jobs.record import build_plan_fields
from gridq.store.replies import Accepted
from gridq.store.scripts import NewJob
from tests.unit.store.plans import ANY, Grid, one

pytestmark = pytest.mark.usefixtures("key_hygiene")


def submit(grid: Grid, job: str, **fields: str) -> None:
    """Admit a job of one stage with more fields."""
    given = one()
    plan, ready, needs = build_plan_fields(given)
    more = [word for name, text in fields.items() for word in (name, text)]
    wish = NewJob(
        job=job, agent="ann", priority=0, deadline_ms=60_000, result_ttl_ms=60_000, celery=False,
        stream=False, wait_for_seat=True, input=b"1", answer=given.answer, steps=1, queues=needs, ready=ready,
        fields=[*plan, *more],
    )  # fmt: skip
    reply = grid.scripts.admit(wish)
    assert reply == Accepted()


def test_a_pinned_stage_is_claimed_only_by_its_seat(grid: Grid) -> None:
    for name in ("m.a", "m.b"):
        grid.seat(name)
    submit(grid, "j1", **{"excluded:0": "=m.b", "unfit:0": "=m.b"})
    assert grid.claim("m.a") == "none"
    grid.seat("m.late")
    assert grid.claim("m.late") == "none"
    assert grid.take("m.b").job == "j1"


def test_a_pinned_stage_that_failed_there_waits_for_the_same_seat(grid: Grid) -> None:
    for name in ("m.a", "m.b"):
        grid.seat(name)
    submit(grid, "j1", **{"excluded:0": "=m.b", "unfit:0": "=m.b"})
    grid.fail(grid.take("m.b"), "seat", pause_ms=1)
    assert grid.claim("m.a") == "none"
    assert grid.claim("m.b") == "none"
    grid.scripts.sweep()  # its back-off is over
    assert grid.claim("m.a") == "none"
    assert grid.take("m.b").job == "j1"
    assert grid.field("j1", "excluded:0") == "=m.b"


def test_a_preferred_seat_that_is_idle_is_woken_first(grid: Grid) -> None:
    for name in ("m.a", "m.b", "m.c"):
        grid.seat(name)
        assert grid.claim(name) == "none"  # now it is idle
    submit(grid, "j1", preferred_seat="m.b")
    wake_ups = {name: grid.client.llen(grid.keys.queue(f"seat:{name}")) for name in ("m.a", "m.b", "m.c")}
    assert wake_ups == {"m.a": 0, "m.b": 1, "m.c": 0}
    assert grid.client.llen(grid.keys.queue(ANY)) == 0


def test_a_busy_preferred_seat_delays_no_job(grid: Grid) -> None:
    for name in ("m.a", "m.b"):
        grid.seat(name)
    submit(grid, "busy")
    assert grid.take("m.b").job == "busy"
    assert grid.claim("m.a") == "none"
    submit(grid, "j1", preferred_seat="m.b")
    assert grid.client.llen(grid.keys.queue("seat:m.a")) == 1
    assert grid.take("m.a").job == "j1"
