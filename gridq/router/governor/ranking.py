"""The order of seats, as a function of plain data: how much of their budgets is left for the time that is
left, whether a call costs money, and how reliable they are. The least recently used seat goes first on ties.

**The rule.** For a budget's window, let `left` be the share of its limit that remains, and `time` the share
of its time that remains. With even use both fall from 1 to 0 together. If `left` is above `time`, part of the
budget will lapse unused; if it is below, the budget will run out before it resets. The pace is `left / (left
+ time)`: 0.5 is even use, 0 is used up, and a budget with much left shortly before its reset is close to 1.
Giving each stage to the seat with the highest pace keeps all budgets at one pace, so that none runs out early
while another lapses.

- Of several budgets the tightest counts: the others cannot be used beyond it.
- A window that begins with its first use and has not begun counts as 1: the sooner it begins, the sooner the
  next one does, at the price of one use.
- A window shorter than an hour is a rate. Only whether it is used up counts: what is left of a minute is no
  reason to spend a month's budget.
- A seat without budgets counts as 0.5: nothing lapses, nothing runs out.
- A subscription is paid for whether it is used or not. Where each call costs money, unused budget is no loss,
  so such a seat is worth a third: it goes first only if a subscription has less than a fifth of what even
  use would have left. Of two such seats the cheaper goes first.
- The result is multiplied by the seat's reliability: a budget about to lapse is no reason to fail.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from gridq.protocol.meters import Meter, first_use_window_ms

WORST_RANK = 900
"""The last rank. A rank forms the leading digits of a score in the idle set: it must stay under 1000 so that
the time behind it keeps its milliseconds.
"""

RELIABILITY_STEPS = 20
"""Reliabilities within one step of each other tie: one failure in many means nothing."""

EVEN_PACE = 0.5
"""The pace of a budget that is used evenly, and of a seat without budgets."""

RATE_WINDOW_MS = 3_600_000
"""Shorter windows are rates."""

METERED_FACTOR = 1 / 3
"""The worth of a seat whose calls cost money, relative to a subscription."""

PRICE_SPREAD = 0.1
"""The most by which the dearest metered seat is worth less than the cheapest."""

TYPICAL_PRICE = 10_000_000
"""Micro-dollars per million tokens, in and out together: at this price half of PRICE_SPREAD is taken off."""

Calendar = Mapping[str, tuple[int, int | None]]
"""The current `month`, `week` and `day`: start and end in ms; (0, None) if not known."""


@dataclass(frozen=True, slots=True)
class Seat:
    """One live seat: its queues, the meters that apply to it, its reliability (0 to 1), and its prices per
    million tokens in and out, in micro-dollars (None: a flat rate).
    """

    seat: str
    queues: tuple[str, ...]
    meters: tuple[Meter, ...] = ()
    reliability: float = 1.0
    prices: tuple[int, int] | None = None


def rank(seats: Iterable[Seat], now_ms: float, calendar: Calendar) -> dict[str, dict[str, int]]:
    """Return each queue's seats with their ranks, 0 the best. Seats within about a thousandth tie."""
    ranks: dict[str, dict[str, int]] = {}
    for seat in seats:
        for queue, score in score_queues(seat, now_ms, calendar).items():
            ranks.setdefault(queue, {})[seat.seat] = round((1.0 - score) * WORST_RANK)
    return ranks


def score_queues(seat: Seat, now_ms: float, calendar: Calendar) -> dict[str, float]:
    """Return a seat's score in each of its queues, from 0 to 1."""
    factor = _price_factor(seat.prices) * round(seat.reliability * RELIABILITY_STEPS) / RELIABILITY_STEPS
    everywhere: float | None = None
    somewhere: dict[str, float] = {}
    for meter in seat.meters:
        value = pace(meter, now_ms, calendar)
        if value is None:
            continue
        if not meter.queues:
            everywhere = value if everywhere is None else min(everywhere, value)
        for queue in meter.queues:
            somewhere[queue] = min(value, somewhere.get(queue, value))
    usual = factor * (EVEN_PACE if everywhere is None else everywhere)
    found = dict.fromkeys(seat.queues, usual)
    for queue in found.keys() & somewhere.keys():
        found[queue] = factor * min(somewhere[queue], 1.0 if everywhere is None else everywhere)
    return found


def pace(meter: Meter, now_ms: float, calendar: Calendar) -> float | None:
    """Return the pace of a budget, from 0 (used up) to 1; None if it does not count: a rate, or a limit of
    concurrent stages, with room left.
    """
    left = meter.remaining_fraction
    if left == 0.0:
        return 0.0
    if meter.resource == "parallel":
        return None
    length = _length(meter.window)
    if length is None:  # the meter's own reset may be past: an idle seat's budget is not updated
        start, end = calendar.get(meter.window, (0, None))
        time = (end - now_ms) / (end - start) if start and end else 1.0
    elif length < RATE_WINDOW_MS:
        return None
    elif meter.resets_at is None:
        return 1.0
    else:
        time = (meter.resets_at - now_ms) / length
    return left / (left + min(1.0, max(0.0, time)))


_length = lru_cache(256)(first_use_window_ms)


def _price_factor(prices: tuple[int, int] | None) -> float:
    """Return the factor for a seat's prices. A seat that costs nothing counts as a subscription."""
    price = sum(prices) if prices else 0
    return METERED_FACTOR * (1.0 - PRICE_SPREAD * price / (price + TYPICAL_PRICE)) if price else 1.0
