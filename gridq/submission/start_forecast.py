"""When a stage that is submitted now would start: a function of what stands in queues and who serves them.

What comes later is not foreseen, so work that others may overtake can start later than is said here, and what
a seat prefers for its loaded model is not looked at. Times are in seconds.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gridq.protocol.models import Service
from gridq.protocol.queue_names import kind_of
from gridq.protocol.running_times import MEMORY, NINETY
from gridq.submission.queue_snapshot import Ask, Board, Group, Seat, together

ROUNDS = 4
"""Stages of each slot that are gone through one by one; those behind them by the slots' rates."""

ORDER = 0.15
"""How far off the order of those who go first may be, as a part of the wait: whose turn it is on seats of
several queues is only known on the average.
"""

SPARE = 1.2
"""By how much more than reckoned the waits were seen to spread (`python -m benchmarks forecast`)."""

SHORTEST = 1e-6
"""Seconds that a stage takes at least."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """When the stage would start, from now.

    `position` 1 is the next of the stages that its `concurrency` slots can serve; None where nobody takes such a
    stage. Eight times of ten it starts between `low` and `high`; all three are None there, and where nobody
    has measured how long stages take here. `rate`: stages that its slots begin in a second. `bottleneck` says
    what it waits for, empty where it would start at once. `turns_in`: until a window turns before which none
    of its seats' budgets has room for the stage, whatever ends meanwhile; 0: some may have before.
    """

    queue: str
    position: int | None
    concurrency: int
    p50: float | None
    low: float | None
    high: float | None
    bottleneck: str = ""
    rate: float | None = None
    turns_in: float = 0.0

    @property
    def now(self) -> bool:
        """Whether it would start at once."""
        return self.p50 == 0.0


def forecast(board: Board, ask: Ask) -> Forecast:
    """When a stage would start that is admitted now: on the seats that come to it first."""
    groups = board.groups(ask)
    concurrency = sum(group.concurrency for group in groups)
    if not concurrency:
        return Forecast(ask.queue, None, 0, None, None, None, _nobody(board, ask))
    found = [_on(group, ask) for group in groups]
    best = min(found, key=lambda one: (one.p50 is None, one.p50 or 0.0, one.position or 0))
    rates = [one.rate for one in found if one.rate]
    bottleneck = "" if best.now else _bottleneck(ask, groups, concurrency)
    turns = 0.0
    if all(group.later for group in groups):
        turns = min(room[0] for room in board.rooms(ask) if room is not None)
    return replace(
        best, concurrency=concurrency, rate=sum(rates) or None, bottleneck=bottleneck, turns_in=turns
    )


def _on(group: Group, ask: Ask) -> Forecast:
    """When it would start on the seats of one group."""
    position = math.floor(group.ahead(ask) + 0.5) + 1
    pace = _pace(group, ask)
    if position <= group.free:
        return Forecast(ask.queue, position, group.concurrency, 0.0, 0.0, 0.0, "", pace.rate)
    if pace.rate is None or not pace.whole:
        return Forecast(ask.queue, position, group.concurrency, None, None, None, "", pace.rate)
    start = _start(pace, position)
    off = SPARE * NINETY * _spread(start, position, position - group.free, pace)
    least = min(seat.back_in or 0.0 for seat in group.seats) if group.later else 0.0
    low = max(start - off, least)
    if any(seat.held_up and not seat.running for seat in group.seats):
        low = least  # what is held elsewhere may be given back at any moment
    return Forecast(ask.queue, position, group.concurrency, start, low, start + off, "", pace.rate)


def elsewhere(board: Board, ask: Ask) -> str | None:
    """The queue of the same kind that would run such a stage now: a family that its queue belongs to, or the
    kind's `any`; None where there is none.
    """
    serving = {seat.seat for seat in board.seats if ask.queue in seat.queues}
    kind = kind_of(ask.queue)
    by_queue: dict[str, set[str]] = defaultdict(set)
    for seat in board.seats:
        for queue in seat.queues:
            by_queue[queue].add(seat.seat)
    free = {seat.seat: seat.free for seat in board.seats}
    wider = [
        queue
        for queue, seats in by_queue.items()
        if queue != ask.queue
        and kind_of(queue) == kind
        and (queue == f"{kind}:any" or (serving and seats > serving))
        and any(free[seat] for seat in seats)
        and forecast(board, replace(ask, queue=queue)).now
    ]
    return min(wider, key=lambda queue: (len(by_queue[queue]), queue.endswith(":any"), queue), default=None)


def _nobody(board: Board, ask: Ask) -> str:
    serving = [seat for seat in board.seats if ask.queue in seat.queues]
    if not serving:
        return f"no live seat serves {ask.queue}"
    if any(seat.back_in is not None and seat.seat not in ask.excluded for seat in serving):
        return _budgets(ask, [seat for seat in serving if seat.seat not in ask.excluded])
    if all(seat.seat in ask.excluded for seat in serving):
        return f"no seat of {ask.queue} has what the stage needs"
    return f"no seat of {ask.queue} takes work now"


def _budgets(ask: Ask, seats: Sequence[Seat]) -> str:
    told = dict.fromkeys(filter(None, (seat.short_of(ask) for seat in seats)))
    return f"the budgets of the seats of {ask.queue}" + (": " + "; ".join([*told][:3]) if told else "")


# -- how long that takes


def _service(board: Board, seat: Seat, mix: Mapping[str, float]) -> Service | None:
    """How long a stage of the `mix` (queue → how many) holds a slot of the seat; None: never measured."""
    found = []
    for queue, count in mix.items():
        service = seat.service.get(queue) or board.measured.get(queue)
        if service is None and seat.service:
            service = together(list(seat.service.values()))
        if service is None:
            return None
        found.append((service, count))
    whole = sum(count for _, count in found)
    return Service(
        n=sum(service.n for service, _ in found),
        mean=sum(service.mean * count for service, count in found) / whole,
        p50=sum(service.p50 * count for service, count in found) / whole,
        p90=sum(service.p90 * count for service, count in found) / whole,
    )


def _period(seat: Seat, service: Service) -> float:
    """Seconds from one stage of a slot to its next: as long as one takes, or as the seat's rate allows."""
    hasty = seat.concurrency * 60 / seat.per_minute if seat.per_minute else 0.0
    return max(service.mean, hasty, SHORTEST)


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast seats go through what stands before a stage. `whole`: of each of them it was measured.
    `concurrency`: when each is free, and the seconds of each stage after that, the first to be free first.
    `varies`: standard deviation by mean of one stage; `measured`: of how many that is known. `rate`: stages a
    second. `hasty`: the seats whose requests a minute are what holds them up.
    """

    whole: bool
    concurrency: tuple[tuple[float, float], ...]
    rate: float | None
    varies: float
    measured: int
    hasty: tuple[str, ...]


def _pace(group: Group, ask: Ask) -> Pace:
    """The pace of a group; worked out once for each priority."""
    found: Pace | None = group.known.get((ask.prio, ask.queue))
    if found is None:
        mix = group.mix(ask.prio, ask.queue)
        services = [(seat, _service(group.board, seat, mix)) for seat in group.seats]
        known = [(seat, service) for seat, service in services if service is not None]
        concurrency = _free_at(group.board, known)
        n = sum(service.n for _, service in known)
        found = group.known[ask.prio, ask.queue] = Pace(
            whole=len(known) == len(group.seats),
            concurrency=tuple(sorted(concurrency)),
            rate=sum(1 / period for _, period in concurrency) or None,
            varies=sum(_variation(service) * service.n for _, service in known) / n if n else 0.0,
            measured=n,
            hasty=tuple(seat.seat for seat, one in known if _period(seat, one) > max(one.mean, SHORTEST)),
        )
    return found


def _free_at(board: Board, pool: Sequence[tuple[Seat, Service]]) -> list[tuple[float, float]]:
    """(when it is free, seconds of each stage after that) of every slot; where a budget has no room for more
    than what runs, of as many as run.
    """
    found = []
    for seat, service in pool:
        period = _period(seat, service)
        earliest = max(seat.back_in or 0.0, seat.rate_in)
        for queue, elapsed in seat.running[: seat.concurrency]:
            usual = (seat.service.get(queue) or board.measured.get(queue) or service).mean
            found.append((max(usual - elapsed, usual / 10, earliest), period))
        if not seat.held_up:
            found += [(earliest, period)] * (seat.concurrency - len(seat.running))
        elif not seat.running:
            found.append((max(service.mean, earliest), period))
    return found


def _start(pace: Pace, position: int) -> float:
    """When the stage that is the `position`th to start does."""
    if position <= 1:
        return pace.concurrency[0][0]
    concurrency = list(pace.concurrency)  # sorted is a heap
    one_by_one = min(position, ROUNDS * len(concurrency))
    for _ in range(one_by_one - 1):
        at, period = concurrency[0]
        heapq.heapreplace(concurrency, (at + period, period))
    return concurrency[0][0] + (position - one_by_one) / (pace.rate or 1.0)


def _spread(start: float, position: int, ends: int, pace: Pace) -> float:
    """The standard deviation of the wait: of the `ends` stages that must end first, of the mean itself, which
    is known from so many stages only, and of who goes first. What was measured seldom is taken to vary more
    than it did.
    """
    measured, rate = min(pace.measured, MEMORY), pace.rate or 1.0
    varies = max(pace.varies, 1 / math.sqrt(measured))
    waiting = varies * math.sqrt(max(ends, 1)) / rate
    order = math.hypot(start * ORDER, 0.5 / rate) if position > 1 else 0.0
    return math.hypot(waiting, start * varies / math.sqrt(measured), order)


def _variation(service: Service) -> float:
    """Standard deviation by mean, of log-normal run times."""
    if service.p50 <= 0:
        return 0.0
    sigma = math.log(max(service.p90 / service.p50, 1.0)) / NINETY
    return math.sqrt(math.expm1(min(sigma * sigma, 20.0)))


def _bottleneck(ask: Ask, groups: Sequence[Group], concurrency: int) -> str:
    hasty = [seat for group in groups for seat in _pace(group, ask).hasty]
    if len(hasty) == sum(len(group.seats) for group in groups):
        return f"requests_per_minute of {' and '.join(hasty[:3])}"
    seats = [seat for group in groups for seat in group.seats]
    if all(seat.back_in or seat.held_up for seat in seats):
        poor = all(seat.short_of(ask) for seat in seats)
        return _budgets(ask, seats) if poor else f"every seat of {ask.queue} pauses"
    return f"the {concurrency} slots of {ask.queue}" if concurrency > 1 else f"the only slot of {ask.queue}"
