"""The order of seats, as a function of plain data: by what is left of their budgets and how reliable they
are; the least recently used on ties.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

WORST = 900
"""The last rank. A rank is the idle set's leading digits: it must stay under 10^3 for the time behind it to
keep its milliseconds.
"""


STEPS = 20
"""Reliabilities within a step of each other tie: one failure in many says nothing."""


@dataclass(frozen=True, slots=True)
class SeatShare:
    """One live seat: what it serves, how much of its budget is left (both None: it has none, which is a share
    of 1), and which part of its attempts comes to something (0 to 1).
    """

    seat: str
    queues: tuple[str, ...]
    left: int | None = None
    budget: int | None = None
    reliability: float = 1.0

    @property
    def share(self) -> float:
        """The part of the budget that is left, from 0 to 1."""
        if self.left is None or self.budget is None:
            return 1.0
        return min(1.0, max(0.0, self.left / self.budget)) if self.budget > 0 else 0.0

    @property
    def worth(self) -> float:
        """What the seat is ranked by, from 0 to 1: its share times its reliability in steps."""
        return self.share * round(self.reliability * STEPS) / STEPS


def rank(seats: Iterable[SeatShare]) -> dict[str, dict[str, int]]:
    """For each queue its seats' ranks, 0 the best. Seats within a thousandth or so of each other tie."""
    ranks: dict[str, dict[str, int]] = {}
    for seat in seats:
        place = round((1.0 - seat.worth) * WORST)
        for queue in seat.queues:
            ranks.setdefault(queue, {})[seat.seat] = place
    return ranks
