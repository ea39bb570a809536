"""Scores compare what is left of a window with the time that is left."""

from __future__ import annotations

import pytest

from gridq.protocol.meters import Meter
from gridq.protocol.models import Resource
from gridq.router.governor.ranking import (
    EVEN_PACE,
    METERED_FACTOR,
    WORST_RANK,
    Seat,
    pace,
    rank,
    score_queues,
)

HOUR = 3_600_000
NOW = 1_000 * HOUR
CALENDAR = {
    "day": (NOW - 18 * HOUR, NOW + 6 * HOUR),
    "week": (NOW - 42 * HOUR, NOW + 126 * HOUR),
    "month": (NOW - 360 * HOUR, NOW + 360 * HOUR),
}
"""A quarter of the day is left, three of the week, half of the month."""


def meter(
    window: str,
    left: int,
    turn: int | None = None,
    resource: Resource = "requests",
    queues: tuple[str, ...] = (),
) -> Meter:
    """One of a limit of 100; `turn` in hours from now."""
    at = None if turn is None else NOW + turn * HOUR
    return Meter(
        account="own",
        resource=resource,
        window=window,
        limit=100,
        used=100 - left,
        resets_at=at,
        queues=queues,
    )


def score(*meters: Meter, reliability: float = 1.0, prices: tuple[int, int] | None = None) -> float:
    return score_queues(Seat("m.s", ("q",), meters, reliability, prices), NOW, CALENDAR)["q"]


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (meter("day", 25), EVEN_PACE),
        (meter("day", 75), 0.75),
        (meter("week", 75), EVEN_PACE),
        (meter("week", 25), 0.25),
        (meter("month", 50), EVEN_PACE),
        (meter("day", 0), 0.0),
        (meter("5h", 100), 1.0),
        (meter("5h", 80, 4), EVEN_PACE),
        (meter("5h", 80, 1), 0.8),
        (meter("5h", 0, 1), 0.0),
        (meter("7d", 50, 84), EVEN_PACE),
        (meter("5m", 1, 0), None),
        (meter("5m", 0, 0), 0.0),
        (meter("-", 1, resource="parallel"), None),
        (meter("-", 0, resource="parallel"), 0.0),
        (meter("5h", 50, 50), 1 / 3),  # the server's clock was set back
    ],
)
def test_a_window_on_pace_has_an_even_score(of: Meter, expected: float | None) -> None:
    score = pace(of, NOW, CALENDAR)
    assert score is None if expected is None else score == pytest.approx(expected)


@pytest.mark.parametrize("month", [(0, None), (0, NOW + HOUR), (NOW - HOUR, None)])
def test_without_a_calendar_only_the_remainder_counts(month: tuple[int, int | None]) -> None:
    scores = [pace(meter("month", left), NOW, {"month": month}) for left in (40, 60, 100)]
    assert scores == [pytest.approx(2 / 7), pytest.approx(3 / 8), EVEN_PACE]


def test_a_window_ending_soon_scores_higher_than_a_fuller_one_ending_late() -> None:
    assert score(meter("5h", 60, 1)) > score(meter("week", 95))


def test_the_tightest_window_binds() -> None:
    assert score(meter("5h", 90, 1), meter("week", 25)) == pytest.approx(0.25)
    assert score(meter("5h", 100), meter("week", 75)) == pytest.approx(EVEN_PACE)
    assert score(meter("5h", 90, 1), meter("5m", 0)) == 0.0


def test_a_seat_without_windows_ranks_between_scarce_and_expiring_ones() -> None:
    assert score(meter("day", 20)) < score() < score(meter("day", 30))


def test_a_rate_only_counts_when_used_up() -> None:
    assert score(meter("1m", 1)) == score()
    assert score(meter("1m", 10), meter("day", 75)) == pytest.approx(0.75)


def test_seats_with_a_price_per_call_rank_after_paid_ones() -> None:
    prices = (3_000_000, 15_000_000)
    assert score(prices=prices) < METERED_FACTOR * EVEN_PACE
    # As long as a fifth of what even use would have left is left, and though the key's own money is behind:
    assert score(meter("day", 5)) >= METERED_FACTOR * EVEN_PACE > score(meter("day", 4))
    assert score(meter("month", 100, resource="money"), prices=prices) < score(meter("day", 25))
    assert score(prices=(0, 0)) == score()


def test_the_cheaper_of_two_keys_ranks_first_unless_its_budget_runs_out() -> None:
    cheap, dear = (100_000, 400_000), (15_000_000, 75_000_000)
    assert score(prices=cheap) > score(prices=dear)
    assert score(meter("month", 25, resource="money"), prices=cheap) < score(
        meter("month", 50, resource="money"), prices=dear
    )


@pytest.mark.parametrize(
    ("reliability", "part"), [(1.0, 1.0), (0.5, 0.5), (0.0, 0.0), (0.98, 1.0), (0.97, 0.95)]
)
def test_reliability_scales_the_score_in_steps(reliability: float, part: float) -> None:
    assert score(meter("day", 75), reliability=reliability) == pytest.approx(0.75 * part)


def test_an_expiring_window_does_not_outweigh_low_reliability() -> None:
    assert score(meter("5h", 100), reliability=0.4) < score(meter("day", 25))


def test_seats_are_ranked_for_each_queue_they_serve() -> None:
    fresh = Seat("fresh", ("llm:a", "llm:any"), (meter("5h", 100),))
    spent = Seat("spent", ("llm:any",), (meter("day", 0),))
    free = Seat("free", ("llm:any",))
    assert rank([spent, fresh, free], NOW, CALENDAR) == {
        "llm:a": {"fresh": 0},
        "llm:any": {"fresh": 0, "free": WORST_RANK // 2, "spent": WORST_RANK},
    }


def test_a_familys_meter_counts_in_the_queues_in_which_it_binds() -> None:
    family = meter("day", 5, queues=("llm:claude", "llm:any"))
    scores = score_queues(Seat("m.s", ("llm:claude", "llm:haiku"), (meter("day", 75), family)), NOW, CALENDAR)
    assert scores == {"llm:claude": pytest.approx(0.05 / 0.30), "llm:haiku": pytest.approx(0.75)}
