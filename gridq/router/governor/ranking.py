"""The order of seats, as a function of plain data: by what each of their windows has left against the time
it has left, by whether a call costs money, and by how reliable they are; the least recently used on ties.

**The rule.** Of a window let `left` be the share of its limit that is left, and `time` the share of its time
that is. Used evenly, both fall together from 1 to 0. With `left` above `time` something of it will lapse
unused; with `left` below, it will run dry before it turns. `left / time` is how fast it may be used from now
on, in multiples of even use, and `left / (left + time)` the same between 0 and 1: a half is even, nothing is
dry, and near the turn it nears 1 as long as much is left. Giving each stage to the seat with most brings all
windows to one pace, so none runs dry early while another lapses.

- Of several windows the tightest binds: what a short one would lose, the long one behind it could not give.
- A window that its first use begins, and that has not begun, counts as 1: the sooner it begins, the sooner
  there is the next, at the price of one use.
- A window of less than an hour is a rate. It says only whether it is dry: what is left of a minute is no
  reason to spend a month.
- No window at all is a half: nothing of it lapses, nothing runs dry.
- Windows of a subscription are paid for whether they are used or not. Where each call costs money, what is
  left is no loss, so such a seat is worth a third: it goes first only where a subscription has less than a
  fifth of what even use would have left it. Of two like it, the cheaper.
- Times the reliability: a window that is about to lapse is no reason to fail.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from gridq.protocol.meters import Meter, rolling_window_ms

WORST = 900
"""The last rank. A rank is the idle set's leading digits: it must stay under 10^3 for the time behind it to
keep its milliseconds.
"""

STEPS = 20
"""Reliabilities within a step of each other tie: one failure in many says nothing."""

EVEN = 0.5
"""The pace of a window that is used evenly, and of a seat that has none."""

RATE_MS = 3_600_000
"""Windows that are shorter are rates."""

PAID = 1 / 3
"""What a seat is worth where each call costs money, against one that is paid for."""

DEAR = 0.1
"""How much less the dearest such seat is worth than the cheapest, at most."""

USUAL = 10_000_000
"""Micro-dollars a million tokens, in and out together: the price at which half of that is taken off."""

Calendar = Mapping[str, tuple[int, int | None]]
"""Of `month`, `week` and `day` the window now: its start (0) and its end (None) in ms, where nobody knows."""


@dataclass(frozen=True, slots=True)
class Seat:
    """One live seat: what it serves, the meters that bind it, which part of its attempts comes to something
    (0 to 1), and what a million tokens in and out cost, in micro-dollars (None: it is paid for as a whole).
    """

    seat: str
    queues: tuple[str, ...]
    meters: tuple[Meter, ...] = ()
    reliability: float = 1.0
    prices: tuple[int, int] | None = None


def rank(seats: Iterable[Seat], now_ms: float, calendar: Calendar) -> dict[str, dict[str, int]]:
    """For each queue its seats' ranks, 0 the best. Seats within a thousandth or so of each other tie."""
    ranks: dict[str, dict[str, int]] = {}
    for seat in seats:
        for queue, worth in worths(seat, now_ms, calendar).items():
            ranks.setdefault(queue, {})[seat.seat] = round((1.0 - worth) * WORST)
    return ranks


def worths(seat: Seat, now_ms: float, calendar: Calendar) -> dict[str, float]:
    """What a seat is worth in each of its queues, from 0 to 1."""
    factor = _cost(seat.prices) * round(seat.reliability * STEPS) / STEPS
    everywhere: float | None = None
    somewhere: dict[str, float] = {}
    for meter in seat.meters:
        known = pace(meter, now_ms, calendar)
        if known is None:
            continue
        if not meter.queues:
            everywhere = known if everywhere is None else min(everywhere, known)
        for queue in meter.queues:
            somewhere[queue] = min(known, somewhere.get(queue, known))
    usual = factor * (EVEN if everywhere is None else everywhere)
    found = dict.fromkeys(seat.queues, usual)
    for queue in found.keys() & somewhere.keys():
        found[queue] = factor * min(somewhere[queue], 1.0 if everywhere is None else everywhere)
    return found


def pace(meter: Meter, now_ms: float, calendar: Calendar) -> float | None:
    """How a window stands, 0 (dry) to 1; None where it says nothing: a rate, or stages at once, with room."""
    left = meter.remaining_fraction
    if left == 0.0:
        return 0.0
    if meter.resource == "parallel":
        return None
    length = _length(meter.window)
    if length is None:  # the meter's own turn may be past: an idle seat's sheet is not written
        start, end = calendar.get(meter.window, (0, None))
        time = (end - now_ms) / (end - start) if start and end else 1.0
    elif length < RATE_MS:
        return None
    elif meter.resets_at is None:
        return 1.0
    else:
        time = (meter.resets_at - now_ms) / length
    return left / (left + min(1.0, max(0.0, time)))


_length = lru_cache(256)(rolling_window_ms)


def _cost(prices: tuple[int, int] | None) -> float:
    """What a seat is worth for its prices; one that asks for nothing is as good as paid for."""
    price = sum(prices) if prices else 0
    return PAID * (1.0 - DEAR * price / (price + USUAL)) if price else 1.0
