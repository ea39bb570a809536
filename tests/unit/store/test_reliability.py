"""Outcomes kept for each seat: fail.lua, renew.lua, register.lua, the sweep, and rank.lua."""

from __future__ import annotations

import pytest

from gridq.router.governor.governor import Governor
from gridq.seats import registry
from gridq.store.reliability import HALF_LIFE_MS, PRIOR_SUCCESSES, compute_reliability
from tests.unit.store.plans import ANY, Grid, one

pytestmark = pytest.mark.usefixtures("key_hygiene")


def _read_counts(grid: Grid, seat: str = "m.a") -> tuple[float, float]:
    """Return the successes and failures in the seat's record."""
    record = grid.client.hget(grid.keys("seat", seat), "reliability")
    good, bad, _ = (record or b"0 0 0").split()
    return float(good), float(bad)


def _reliability(grid: Grid, seat: str = "m.a") -> float:
    [found] = [each for each in registry.read_live_seats(grid.client, grid.keys) if each.seat == seat]
    return found.reliability


def _age_record(grid: Grid, half_lives: float, seat: str = "m.a") -> None:
    """Let what was counted be so much older."""
    good, bad, at = grid.client.hget(grid.keys("seat", seat), "reliability").split()
    was = int(at) - int(half_lives * HALF_LIFE_MS)
    grid.client.hset(grid.keys("seat", seat), "reliability", b" ".join((good, bad, b"%d" % was)))


def _fail(grid: Grid, seat: str, times: int) -> None:
    for _ in range(times):
        job = grid.job(one())
        grid.fail(grid.take(seat), "seat")
        grid.scripts.stop(job, "cancelled", "{}")


@pytest.mark.parametrize(
    ("record", "part"),
    [
        (None, 1.0),
        (b"", 1.0),
        ("0 0 0", 1.0),
        ("98 0 1000", 1.0),
        ("0 2 1000", 0.5),
        (f"0 4 {1000 - HALF_LIFE_MS}", 0.5),
        ("6 2 999999", 0.8),
    ],
)
def test_reliability_is_the_faded_share_of_successes(record: str | None, part: float) -> None:
    assert PRIOR_SUCCESSES == 2
    assert compute_reliability(record, 1000) == pytest.approx(part)


@pytest.mark.parametrize(("kind", "bad"), [("seat", 1), ("died", 1), ("stage", 0), ("back", 0), ("lost", 0)])
def test_only_failures_of_the_seat_reduce_its_reliability(grid: Grid, kind: str, bad: int) -> None:
    grid.seat()
    grid.job(one())
    claim = grid.take()
    grid.fail(claim, kind)
    grid.fail(claim, kind)
    assert _read_counts(grid) == (0, bad)


def test_a_lost_attempt_reduces_reliability_once(grid: Grid) -> None:
    grid.seat()
    grid.job(one())
    claim = grid.take()
    grid.lapse(claim)
    grid.fail(claim, "seat")
    assert _read_counts(grid) == (0, 1)
    assert _reliability(grid) == pytest.approx(2 / 3, abs=0.001)


def test_successes_are_counted_as_the_total_of_an_incarnation(grid: Grid) -> None:
    grid.seat()

    def renew(recorded: int | None, inc: str = "i1") -> float:
        assert grid.scripts.renew("m.a", inc, [], recorded=recorded) == []
        return _read_counts(grid)[0]

    assert renew(3) == 3
    assert renew(3) == pytest.approx(3, abs=0.1)  # its reply was lost
    assert renew(None) == pytest.approx(3, abs=0.1)
    assert renew(5) == pytest.approx(5, abs=0.1)
    assert renew(4) == pytest.approx(5, abs=0.1)  # an earlier call that comes late
    grid.seat()
    assert renew(6) == pytest.approx(6, abs=0.1)  # the same incarnation says again what it is
    grid.seat(inc="i2")
    assert renew(2, "i2") == pytest.approx(8, abs=0.1)


def test_a_renewal_without_news_writes_nothing(grid: Grid) -> None:
    grid.seat()
    grid.scripts.renew("m.a", "i1", [])
    assert grid.client.hmget(grid.keys("seat", "m.a"), "reliability", "recorded_stages") == [None, None]


def test_old_outcomes_fade(grid: Grid) -> None:
    grid.seat()
    _fail(grid, "m.a", 4)
    assert _reliability(grid) == pytest.approx(2 / 6, abs=0.01)
    _age_record(grid, 2)
    assert _reliability(grid) == pytest.approx(2 / 3, abs=0.01)
    _fail(grid, "m.a", 1)
    assert _read_counts(grid)[1] == pytest.approx(2, abs=0.05)
    _age_record(grid, 12)
    assert _reliability(grid) == pytest.approx(1, abs=0.005)


def test_a_vanished_seat_record_is_not_recreated(grid: Grid) -> None:
    grid.seat()
    grid.job(one())
    claim = grid.take()
    grid.client.delete(grid.keys("seat", "m.a"))
    grid.fail(claim, "seat")
    assert not grid.client.exists(grid.keys("seat", "m.a"))


def test_the_more_reliable_of_two_idle_seats_is_woken_first(grid: Grid) -> None:
    grid.seat("m.a")
    _fail(grid, "m.a", 3)
    grid.seat("m.b")
    assert [grid.claim(seat) for seat in ("m.a", "m.b")] == ["none", "none"]
    governor = Governor(grid.scripts)
    grid.clear("seat:m.a", "seat:m.b", ANY)

    def count_wake_ups() -> list[int]:
        job = grid.job(one())
        wake_ups = [grid.wake_ups("seat:m.a"), grid.wake_ups("seat:m.b")]
        grid.scripts.stop(job, "cancelled", "{}")
        grid.clear("seat:m.a", "seat:m.b")
        for seat in ("m.a", "m.b"):  # the former idle for longer
            assert grid.claim(seat) == "none"
        return wake_ups

    assert count_wake_ups() == [1, 0]  # nobody has ranked them yet
    governor.rank_seats()
    assert count_wake_ups() == [0, 1]
    _age_record(grid, 12)
    governor.rank_seats()
    assert count_wake_ups() == [1, 0]


def test_a_rank_applies_to_idle_seats_at_once(grid: Grid) -> None:
    grid.seat("m.a")
    grid.seat("m.b")
    before = dict(grid.client.zrange(grid.keys("idle", ANY), 0, -1, withscores=True))
    grid.scripts.rank(ANY, {"m.a": 450, "m.b": 0, "m.c": 7}, 60_000)
    after = dict(grid.client.zrange(grid.keys("idle", ANY), 0, -1, withscores=True))
    assert after == {b"m.a": before[b"m.a"] + 450e13, b"m.b": before[b"m.b"]}
    grid.scripts.rank(ANY, {"m.a": 0, "m.b": 0}, 60_000)
    assert dict(grid.client.zrange(grid.keys("idle", ANY), 0, -1, withscores=True)) == before
    assert grid.client.zcard(grid.keys("rank", ANY)) == 3, "both, and what a new one would be"
