"""complete.lua: which of the stages that a completion makes ready are rung for."""

from __future__ import annotations

import pytest

from gridq.protocol.queue_names import make_seat_queue
from tests.unit.store.plans import ANY, Grid, chain, plan, step

pytestmark = pytest.mark.usefixtures("key_hygiene")

SEAT, OTHER = make_seat_queue("m.a"), make_seat_queue("m.b")


def test_a_stage_taken_by_the_same_slot_needs_no_wake_up(grid: Grid) -> None:
    grid.seat(concurrency=4)
    grid.job(chain(3))
    first = grid.take()
    grid.clear(SEAT, ANY)
    _, _, second = grid.complete(first, go_on=True)
    assert not isinstance(second, str)
    assert grid.wake_ups(SEAT) + grid.wake_ups(ANY) == 0


def test_the_other_stages_of_a_fan_out_send_wake_ups(grid: Grid) -> None:
    grid.seat(concurrency=8)
    grid.job(plan(step(), step(0), step(0), step(0), step(1, 2, 3)))
    first = grid.take()
    grid.clear(SEAT, ANY)
    grid.complete(first, go_on=True)
    assert grid.wake_ups(SEAT) + grid.wake_ups(ANY) >= 2


def test_a_stage_of_another_queue_sends_a_wake_up(grid: Grid) -> None:
    grid.seat("m.a", ANY)
    grid.seat("m.b", "bench:other")
    grid.job(plan(step(), step(0, queue="bench:other")))
    first = grid.take()
    grid.clear(SEAT, OTHER)
    _, _, after = grid.complete(first, go_on=True)
    assert after == "none"
    assert grid.wake_ups(OTHER) == 1


def test_a_slot_that_claims_another_stage_leaves_a_wake_up(grid: Grid) -> None:
    """The slot claims the older stage of another queue; the stage it made ready is for another seat."""
    grid.seat("m.a", ANY, "bench:other")
    grid.seat("m.b", "bench:other")
    grid.job(plan(step(), step(0, queue="bench:other")), "j1")
    first = grid.take()
    grid.job(plan(step()), "j2")
    grid.clear(SEAT, OTHER, ANY, "bench:other")
    _, _, after = grid.complete(first, go_on=True)
    assert not isinstance(after, str)
    assert grid.wake_ups(SEAT) + grid.wake_ups(OTHER) + grid.wake_ups(ANY) + grid.wake_ups("bench:other") >= 1


def test_a_slot_that_stops_sends_a_wake_up_for_what_it_made_ready(grid: Grid) -> None:
    grid.seat()
    grid.job(chain(2))
    first = grid.take()
    grid.clear(SEAT, ANY)
    grid.complete(first, go_on=False)
    assert grid.wake_ups(SEAT) + grid.wake_ups(ANY) >= 1
