"""Loaded models and sessions are preferred, for a bounded time."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.unit.store.plans import Grid, one

pytestmark = pytest.mark.usefixtures("key_hygiene")

COLD, WARM = "bench:cold", "bench:warm"


def warm(grid: Grid, *queues: str, seat: str = "m.a", pass_over: Mapping[str, float] | None = None) -> None:
    assert grid.scripts.renew(seat, "i1", [], queues, pass_over=pass_over) == []


def set_warm_since(grid: Grid, seconds: float, seat: str = "m.a") -> None:
    """Let the seat's models have been loaded for so long."""
    grid.client.hset(grid.keys("seat", seat), "warm_since", grid.now() - round(seconds * 1000))


def set_waiting(grid: Grid, job: str, queue: str, agent: str = "ann") -> None:
    """Let a job's first stage have waited for an hour."""
    for cls in grid.classes(queue):
        key = grid.keys("waiting", queue, cls, agent)
        if grid.client.zscore(key, f"{job}:0") is not None:
            grid.client.zadd(key, {f"{job}:0": grid.now() - 3_600_000})


def test_stages_for_the_loaded_model_go_first(grid: Grid) -> None:
    grid.seat("m.a", COLD, WARM, concurrency=2)
    warm(grid, WARM)
    grid.job(one(queue=COLD), "first", agent="ann")
    grid.job(one(queue=WARM), "second", agent="bob")
    assert [grid.take(slot=slot).job for slot in "01"] == ["second", "first"]


def test_without_a_loaded_model_the_oldest_stage_is_taken_first(grid: Grid) -> None:
    grid.seat("m.a", COLD, WARM, concurrency=2)
    warm(grid, WARM)
    warm(grid)
    grid.job(one(queue=COLD), "first", agent="ann")
    grid.client.zincrby(grid.keys("waiting", COLD, "0/0|", "ann"), -5, "first:0")
    grid.job(one(queue=WARM), "second", agent="ann")
    assert [grid.take(slot=slot).job for slot in "01"] == ["first", "second"]


def test_no_stage_is_passed_over_for_longer_than_the_bound(grid: Grid) -> None:
    grid.seat("m.a", COLD, WARM, concurrency=2)
    warm(grid, WARM)
    grid.job(one(queue=COLD), "first", agent="ann")
    grid.job(one(queue=WARM), "second", agent="ann")
    set_waiting(grid, "first", COLD)
    assert [grid.take(slot=slot).job for slot in "01"] == ["first", "second"]


def test_a_seat_states_for_how_long_its_loaded_models_go_first(grid: Grid) -> None:
    """Two models that do not fit together: however long all have waited, the loaded one has its run."""
    grid.seat("m.a", COLD, WARM, concurrency=4)
    warm(grid, WARM, pass_over={COLD: 30.0})
    for number in range(2):
        grid.job(one(queue=COLD), f"cold{number}", agent="ann")
        grid.job(one(queue=WARM), f"warm{number}", agent="ann")
        set_waiting(grid, f"cold{number}", COLD)
    set_warm_since(grid, 29)
    first = grid.take(slot="0")
    assert first.job == "warm0"
    set_warm_since(grid, 31)
    assert grid.take(slot="1").job == "cold0"
    warm(grid, COLD, pass_over={WARM: 30.0})  # it is being loaded: the run of its model begins
    assert grid.take(slot="2").job == "cold1"


def test_no_slot_waits_until_the_loaded_models_are_not_in_use(grid: Grid) -> None:
    """The slot is left for work of the loaded model that comes meanwhile."""
    grid.seat("m.a", COLD, WARM, concurrency=4)
    warm(grid, WARM, pass_over={COLD: 30.0})
    grid.job(one(queue=WARM), "warm0", agent="ann")
    grid.job(one(queue=COLD), "cold0", agent="ann")
    first = grid.take(slot="0")
    assert (first.job, grid.claim(slot="1")) == ("warm0", "none")
    grid.clear("seat:m.a")
    grid.job(one(queue=WARM), "warm1", agent="ann")
    assert grid.wake_ups("seat:m.a") == 1
    second = grid.take(slot="1")
    assert second.job == "warm1"
    grid.done(second)
    assert grid.claim(slot="1") == "none"
    grid.clear("seat:m.a")
    warm(grid, WARM, pass_over={COLD: 30.0})
    assert grid.wake_ups("seat:m.a") == 1, "a renewal looks whether its time has come"
    grid.done(first)
    assert grid.take(slot="0").job == "cold0"


def test_an_urgent_stage_waits_for_no_batch_of_the_loaded_model(grid: Grid) -> None:
    grid.seat("m.a", COLD, WARM, concurrency=2)
    warm(grid, WARM, pass_over={COLD: 30.0})
    grid.job(one(queue=WARM), "batch0", prio=1)
    first = grid.take(slot="0")
    grid.job(one(queue=WARM), "batch1", prio=1)
    grid.job(one(queue=COLD), "interactive", prio=0)
    assert grid.claim(slot="1") == "none"
    grid.done(first)
    assert grid.take(slot="0").job == "interactive"


def test_a_stage_is_passed_over_for_the_usual_time_if_its_model_fits_beside_the_loaded_ones(
    grid: Grid,
) -> None:
    grid.seat("m.a", COLD, WARM, concurrency=2)
    warm(grid, WARM, pass_over={COLD: 30.0})
    warm(grid, WARM, pass_over={})
    grid.job(one(queue=COLD), "cold", agent="ann")
    grid.job(one(queue=WARM), "warm", agent="ann")
    set_waiting(grid, "cold", COLD)
    assert grid.take().job == "cold"


def test_priority_counts_for_more_than_a_loaded_model(grid: Grid) -> None:
    grid.seat("m.a", COLD, WARM, concurrency=2)
    warm(grid, WARM)
    grid.job(one(queue=WARM), "batch", prio=1)
    grid.job(one(queue=COLD), "interactive", prio=0)
    assert grid.take().job == "interactive"


def test_the_seat_with_the_loaded_model_is_woken(grid: Grid) -> None:
    grid.seat("m.a", WARM)
    grid.seat("m.b", WARM)
    grid.clear("seat:m.a", "seat:m.b")
    warm(grid, WARM, seat="m.b")
    grid.job(one(queue=WARM))
    assert (grid.wake_ups("seat:m.a"), grid.wake_ups("seat:m.b")) == (0, 1)
    grid.job(one(queue=WARM))  # it is busy now: the other
    assert (grid.wake_ups("seat:m.a"), grid.wake_ups("seat:m.b")) == (1, 1)


def test_a_seat_that_goes_has_no_model_loaded(grid: Grid) -> None:
    grid.seat("m.a", WARM)
    warm(grid, WARM)
    assert grid.client.exists(grid.keys("warm", WARM))
    grid.scripts.leave("m.a", "i1", "go")
    assert not grid.client.exists(grid.keys("warm", WARM))
    grid.seat("m.a", COLD, WARM, inc="i2")
    assert grid.client.hget(grid.keys("seat", "m.a"), "warm") == b""


def test_a_sessions_next_job_wakes_the_seat_that_served_it(grid: Grid) -> None:
    grid.seat("m.a", WARM, concurrency=4)
    grid.seat("m.b", WARM, concurrency=4)
    grid.job(one(queue=WARM), session="s1")
    grid.done(grid.take("m.b"))
    assert grid.claim("m.b") == "none"
    grid.clear("seat:m.a", "seat:m.b")
    grid.job(one(queue=WARM), session="s1")
    assert (grid.wake_ups("seat:m.a"), grid.wake_ups("seat:m.b")) == (0, 1)
    grid.clear("seat:m.a", "seat:m.b")
    grid.job(one(queue=WARM), session="s1", agent="bob")  # another's session of that name
    assert (grid.wake_ups("seat:m.a"), grid.wake_ups("seat:m.b")) == (1, 0)


def test_a_seat_takes_its_sessions_from_the_head_first(grid: Grid) -> None:
    grid.seat("m.a", WARM, concurrency=4)
    grid.job(one(queue=WARM), "before", session="s1")
    grid.done(grid.take())
    grid.job(one(queue=WARM), "other")
    grid.job(one(queue=WARM), "mine", session="s1")
    assert [grid.take(slot=slot).job for slot in "01"] == ["mine", "other"]


def test_a_session_does_not_pass_a_stage_that_waited_for_the_bound(grid: Grid) -> None:
    grid.seat("m.a", WARM, concurrency=4)
    grid.job(one(queue=WARM), "before", session="s1")
    grid.done(grid.take())
    grid.job(one(queue=WARM), "other")
    set_waiting(grid, "other", WARM)
    grid.job(one(queue=WARM), "mine", session="s1")
    assert [grid.take(slot=slot).job for slot in "01"] == ["other", "mine"]


def test_sessions_are_hints_and_do_not_pile_up(grid: Grid) -> None:
    grid.seat("m.a", WARM)
    seats = grid.keys("sessions", "ann")
    grid.client.hset(seats, mapping={f"s{number}": "m.a" for number in range(10_001)})
    grid.client.pexpire(seats, 1000)
    grid.job(one(queue=WARM), session="new")
    grid.take()
    assert grid.client.hgetall(seats) == {b"new": b"m.a"}
    assert grid.client.pttl(seats) > 500_000


def test_a_guessed_session_is_remembered_only_of_a_seat_that_keeps_prompts(grid: Grid) -> None:
    sessions = grid.keys("sessions", "ann")
    for keeps_prompts, remembered in ((False, {}), (True, {b"@@s1": b"m.a"})):
        grid.seat("m.a", WARM, keeps_prompts=keeps_prompts)
        grid.job(one(queue=WARM), session="@@s1")
        grid.done(grid.take())
        assert grid.client.hgetall(sessions) == remembered
    grid.seat("m.a", WARM)  # it no longer does
    grid.job(one(queue=WARM), session="@@s2")
    grid.done(grid.take())
    assert grid.client.hgetall(sessions) == {b"@@s1": b"m.a"}
