"""A week of three seats with different windows, by the rule and by the one before it: the seat with the
largest share left of its tightest window. Pure: time is a number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from gridq.protocol.meters import Meter, first_use_window_ms
from gridq.router.governor.ranking import Calendar, Seat, rank

HOUR = 3_600_000
DAY, WEEK = 24 * HOUR, 168 * HOUR
TICK = 600_000
"""Between two rankings."""


@dataclass
class Window:
    """A window of requests, as the scripts keep it."""

    kind: str
    limit: int
    used: int = 0
    turn: int | None = None
    lapsed: int = 0
    offered: int = 0

    def present(self, now: int) -> None:
        """Empty it where it has turned; what was in it had been used, or lapsed."""
        if self.turn is not None and self.turn <= now:
            self.lapsed += self.limit - self.used
            self.offered += self.limit
            self.used, self.turn = 0, None
        if self.turn is None and first_use_window_ms(self.kind) is None:
            self.turn = calendar(now)[self.kind][1]

    def use(self, now: int) -> None:
        self.turn = self.turn or now + (first_use_window_ms(self.kind) or 0)
        self.used += 1

    @property
    def meter(self) -> Meter:
        return Meter(
            account="own",
            resource="requests",
            window=self.kind,
            limit=self.limit,
            used=self.used,
            resets_at=self.turn,
        )


@dataclass
class Place:
    """A seat: its windows, and whether each call costs money."""

    windows: list[Window]
    prices: tuple[int, int] | None = None
    served: int = 0
    last: int = 0

    @property
    def share(self) -> float:
        return min((1 - window.used / window.limit for window in self.windows), default=1.0)


@dataclass
class Week:
    """Result of a week. `apart`: the share of time in which one seat was empty while another had half or
    more.
    """

    places: dict[str, Place]
    refused: int = 0
    served: int = 0
    apart: float = 0.0

    @property
    def lost(self) -> float:
        """The part of the demand that nobody had room for."""
        return self.refused / (self.refused + self.served)

    def lapsed(self, place: str, kind: str) -> float:
        """The part of a window that lapsed, of all that ended in the week."""
        [window] = [each for each in self.places[place].windows if each.kind == kind]
        return window.lapsed / window.offered


def calendar(now: int) -> dict[str, tuple[int, int | None]]:
    return {
        kind: (now // length * length, (now // length + 1) * length)
        for kind, length in (("day", DAY), ("week", WEEK))
    }


Rule = Callable[[dict[str, Place], int], dict[str, float]]


def share_by_pace(places: dict[str, Place], now: int) -> dict[str, float]:
    """The rule, as the governor writes it down."""
    now_calendar: Calendar = calendar(now)
    seats = [
        Seat(name, ("q",), tuple(window.meter for window in place.windows), prices=place.prices)
        for name, place in places.items()
    ]
    return {name: -place for name, place in rank(seats, now, now_calendar)["q"].items()}


def share_by_capacity(places: dict[str, Place], now: int) -> dict[str, float]:
    """The rule before."""
    return {name: round(place.share, 3) for name, place in places.items()}


def office(now: int, rate: float) -> float:
    """Stages an hour: by day from Monday to Friday, twice as many on Thursday, little by night and at the
    weekend.
    """
    day, hour = now % WEEK // DAY, now % DAY / HOUR
    if day >= 5:
        return rate * 0.1
    return rate * (2.0 if day == 3 else 1.0) if 8 <= hour < 18 else rate * 0.15


def live(rule: Rule, places: dict[str, Place], rate: float) -> Week:
    """A week's demand of `rate` stages an hour, each given to the first by rank that has room."""
    week = Week(places)
    due, apart = 0.0, 0
    for now in range(WEEK, 2 * WEEK, TICK):
        for place in places.values():
            for window in place.windows:
                window.present(now)
        worth = rule(places, now)
        due += office(now, rate) * TICK / HOUR
        while due >= 1.0:
            due -= 1.0
            open_ones = [name for name, place in places.items() if place.share > 0]
            if not open_ones:
                week.refused += 1
                continue
            best = places[max(open_ones, key=lambda name: (worth[name], -places[name].last))]
            week.served += 1
            best.served, best.last = best.served + 1, week.served
            for window in best.windows:
                window.use(now)
        shares = [place.share for place in places.values()]
        apart += min(shares) <= 0 and max(shares) >= 0.5
    for place in places.values():
        for window in place.windows:
            window.present(2 * WEEK)
    week.apart = apart * TICK / WEEK
    return week


def subscriptions() -> dict[str, Place]:
    """One with a window of five hours and one of a week, one with a day's, one with a week's."""
    return {
        "hours": Place([Window("5h", 100), Window("week", 1500)]),
        "day": Place([Window("day", 300)]),
        "week": Place([Window("week", 2500)]),
    }


def test_windows_are_used_evenly() -> None:
    before, after = (live(rule, subscriptions(), 66) for rule in (share_by_capacity, share_by_pace))
    assert before.served + before.refused == after.served + after.refused
    figures = {
        name: (week.lost, week.apart, week.lapsed("day", "day"), week.lapsed("hours", "week"))
        for name, week in (("before", before), ("after", after))
    }
    print(figures)
    assert after.lost == 0.0 < 0.03 < before.lost, figures
    assert after.apart < 0.02 < 0.2 < before.apart, figures
    assert after.lapsed("day", "day") < 0.7 * before.lapsed("day", "day"), figures


@pytest.mark.parametrize("rate", [40, 90, 120])
def test_pace_ranking_never_serves_less(rate: float) -> None:
    before, after = (live(rule, subscriptions(), rate) for rule in (share_by_capacity, share_by_pace))
    assert after.lost <= before.lost


def test_a_paid_key_is_used_only_when_subscriptions_do_not_suffice() -> None:
    def places() -> dict[str, Place]:
        return {**subscriptions(), "key": Place([], prices=(3_000_000, 15_000_000))}

    before, after, scarce = (
        live(share_by_capacity, places(), 40),
        live(share_by_pace, places(), 40),
        live(share_by_pace, places(), 120),
    )
    paid = [week.places["key"].served / week.served for week in (before, after, scarce)]
    print(paid)
    assert paid[1] == 0.0 < 0.5 < paid[0], paid
    assert scarce.lost == 0.0
    assert 0.3 < paid[2] < 0.4, paid
    assert scarce.lapsed("week", "week") < 0.05
    assert scarce.lapsed("day", "day") < 0.2
