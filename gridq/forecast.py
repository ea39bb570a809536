"""When a stage that is submitted now would start: a function of what stands in queues and who serves them.

It follows the order in which the scripts give stages out: interactive work before batch work, batch work that
has waited for GRIDQ_BATCH_AGE as interactive, within a class the agent whose turn it is by its virtual time.
What comes later is not foreseen, so work that others may overtake can start later than is said here, and what
a seat prefers for its loaded model is not looked at. Times are in seconds.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from gridq.durations import MEMORY, NINETY
from gridq.protocol import Service
from gridq.queues import kind_of

ROUNDS = 4
"""Stages of each lane that are gone through one by one; those behind them by the lanes' rates."""

ORDER = 0.15
"""How far off the order of those who go first may be, as a part of the wait: whose turn it is on seats of
several queues is only known on the average.
"""


Sort = tuple[str, int, frozenset[str]]
"""What decides who may take a stage: its queue, its rounded cost, the seats that are excluded."""


@dataclass(frozen=True, slots=True)
class Seat:
    """A live seat. `running`: of each busy lane the stage's queue and for how long it has run. `back_in`:
    until it takes work (0: now; None: nobody knows). `rate_in`: until it may make requests again. `left`:
    what its budget has, in micro-dollars.
    """

    seat: str
    queues: frozenset[str]
    lanes: int
    running: tuple[tuple[str, float], ...] = ()
    service: Mapping[str, Service] = field(default_factory=dict)
    back_in: float | None = 0.0
    per_minute: int | None = None
    rate_in: float = 0.0
    left: int | None = None

    @property
    def free(self) -> int:
        """How many stages it would take now."""
        return 0 if self.back_in or self.rate_in else max(self.lanes - len(self.running), 0)

    def takes(self, queue: str, cost: int, excluded: frozenset[str]) -> bool:
        """Whether it takes such a stage, now or once it is back."""
        able = self.back_in is not None and (self.left is None or self.left >= cost)
        return able and queue in self.queues and self.seat not in excluded


@dataclass(frozen=True, slots=True)
class Line:
    """What one agent has standing in one class of one queue: `count` stages, of which `aged` batch ones go
    with the interactive.
    """

    queue: str
    agent: str
    count: int
    prio: int = 0
    aged: int = 0
    cost: int = 0
    excluded: frozenset[str] = frozenset()

    @property
    def sort(self) -> Sort:
        """What decides who may take it."""
        return self.queue, self.cost, self.excluded

    @property
    def first(self) -> int:
        """Stages that go with the interactive ones."""
        return self.aged if self.prio else self.count

    @property
    def weight(self) -> float:
        """By how much one of them moves its agent's virtual time, as in the scripts."""
        return 1 + self.cost / 10_000


@dataclass(frozen=True)
class Board:
    """Seats and lines at one instant. `turns`: (kind, agent) → its virtual time; `clocks`: kind → the time of
    whoever was served last, and queue → the same of that queue alone.
    """

    seats: tuple[Seat, ...] = ()
    lines: tuple[Line, ...] = ()
    turns: Mapping[tuple[str, str], float] = field(default_factory=dict)
    clocks: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def takers(self) -> dict[Sort, list[Seat]]:
        """Who may take each sort of stage that waits."""
        sorts = {line.sort for line in self.lines}
        return {sort: [seat for seat in self.seats if seat.takes(*sort)] for sort in sorts}

    def taken_by(self, seat: Seat) -> frozenset[Sort]:
        """The sorts of waiting stages that `seat` may take."""
        return frozenset(sort for sort in self.takers if seat.takes(*sort))

    @cached_property
    def measured(self) -> dict[str, Service]:
        """By queue what all seats have measured, each by its share in it."""
        found: dict[str, list[Service]] = defaultdict(list)
        for seat in self.seats:
            for queue, service in seat.service.items():
                found[queue].append(service)
        return {queue: together(each) for queue, each in found.items()}


@dataclass(frozen=True, slots=True)
class Ask:
    """A stage that is to be admitted."""

    queue: str
    agent: str = "default"
    prio: int = 0
    cost: int = 0
    excluded: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Forecast:
    """When the stage would start, from now.

    `position` 1 is the next of the stages that its `lanes` lanes can serve. Eight times of ten it starts
    between `low` and `high`; all three are None where nobody has measured how long stages take here, or
    nobody takes such a stage. `rate`: stages that its lanes begin in a second. `bottleneck` says what it
    waits for, empty where it would start at once.
    """

    queue: str
    position: int
    lanes: int
    p50: float | None
    low: float | None
    high: float | None
    bottleneck: str = ""
    rate: float | None = None

    @property
    def now(self) -> bool:
        """Whether it would start at once."""
        return self.p50 == 0.0


def forecast(board: Board, ask: Ask) -> Forecast:
    """When a stage would start that is admitted now: on the seats that come to it first."""
    pool = [seat for seat in board.seats if seat.takes(ask.queue, ask.cost, ask.excluded)]
    lanes = sum(seat.lanes for seat in pool)
    if not lanes:
        return Forecast(ask.queue, 1, 0, None, None, None, _nobody(board, ask))
    groups: dict[frozenset[Sort], list[Seat]] = defaultdict(list)
    for seat in pool:
        groups[board.taken_by(seat)].append(seat)
    found = [_on(board, ask, seats) for seats in groups.values()]
    best = min(found, key=lambda one: (one.p50 is None, one.p50 or 0.0, one.position))
    rates = [one.rate for one in found if one.rate]
    bottleneck = "" if best.now else _bottleneck(board, ask, pool, lanes)
    return replace(best, lanes=lanes, rate=sum(rates) or None, bottleneck=bottleneck)


def _on(board: Board, ask: Ask, seats: Sequence[Seat]) -> Forecast:
    """When it would start on `seats`, before which the same work stands."""
    ahead = _ahead(board, ask, seats)
    position = math.floor(sum(ahead.values()) + 0.5) + 1
    lanes = sum(seat.lanes for seat in seats)
    services = [(seat, _service(board, seat, ahead or {ask.queue: 1.0})) for seat in seats]
    known = [(seat, service) for seat, service in services if service is not None]
    rate = _rate(_period(seat, service) for seat, service in known for _ in range(seat.lanes))
    free = sum(seat.free for seat in seats)
    if position <= free:
        return Forecast(ask.queue, position, lanes, 0.0, 0.0, 0.0, "", rate)
    if len(known) < len(seats):
        return Forecast(ask.queue, position, lanes, None, None, None)
    start = _start(_free_at(board, known), position)
    off = NINETY * _spread(start, position, position - free, [service for _, service in known], rate)
    return Forecast(ask.queue, position, lanes, start, max(start - off, 0.0), start + off, "", rate)


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
    wider = [
        queue
        for queue, seats in by_queue.items()
        if queue != ask.queue
        and kind_of(queue) == kind
        and (queue == f"{kind}:any" or (serving and seats > serving))
        and forecast(board, replace(ask, queue=queue)).now
    ]
    return min(wider, key=lambda queue: (len(by_queue[queue]), queue.endswith(":any"), queue), default=None)


def together(services: Sequence[Service]) -> Service:
    """Several measurements as one, each by how many stages it is of."""
    n = sum(service.n for service in services)

    def mean(of: Iterable[float]) -> float:
        return sum(value * service.n for value, service in zip(of, services, strict=True)) / n

    return Service(
        n=n,
        mean=mean(service.mean for service in services),
        p50=mean(service.p50 for service in services),
        p90=mean(service.p90 for service in services),
    )


# -- who goes first


def _ahead(board: Board, ask: Ask, pool: Sequence[Seat]) -> dict[str, float]:
    """By queue how many stages go before it on the seats of `pool`; of a queue that others serve too, their
    share of it is theirs.
    """
    rivals: dict[tuple[str, str], list[tuple[Line, float]]] = defaultdict(list)
    names = {seat.seat for seat in pool}
    for line in board.lines:
        able = board.takers[line.sort]
        ours = sum(seat.lanes for seat in able if seat.seat in names)
        if ours:
            share = ours / sum(seat.lanes for seat in able)
            rivals[kind_of(line.queue), line.agent].append((line, share))
    kind = kind_of(ask.queue)
    level = board.clocks.get(kind, 0.0)
    mine = rivals.get((kind, ask.agent), [])
    if any(line.queue == ask.queue for line in board.lines):
        level = min(level, board.clocks.get(ask.queue, level))
    turn = max(board.turns.get((kind, ask.agent), level), level) - board.clocks.get(kind, 0.0)
    turn += sum(line.weight * (line.count if ask.prio else line.first) for line, _ in mine)
    found: dict[str, float] = defaultdict(float)
    for (of_kind, agent), lines in rivals.items():
        own = (of_kind, agent) == (kind, ask.agent)
        theirs = board.turns.get((of_kind, agent), 0.0) - board.clocks.get(of_kind, 0.0)
        if ask.prio:
            for line, share in lines:
                found[line.queue] += line.first * share
                theirs += line.first * line.weight
        rest = [(line, share, line.count - line.first if ask.prio else line.first) for line, share in lines]
        many = sum(count for _, _, count in rest)
        if not many:
            continue
        each = sum(line.weight * count for line, _, count in rest) / many
        before = many if own else min(max(math.floor((turn - theirs) / each) + 1, 0), many)
        for line, share, count in rest:
            found[line.queue] += before * count / many * share
    return {queue: count for queue, count in found.items() if count}


def _nobody(board: Board, ask: Ask) -> str:
    serving = [seat for seat in board.seats if ask.queue in seat.queues]
    if not serving:
        return f"no live seat serves {ask.queue}"
    if any(seat.back_in is not None and seat.seat not in ask.excluded for seat in serving):
        return f"the budgets of the seats of {ask.queue}"
    if all(seat.seat in ask.excluded for seat in serving):
        return f"no seat of {ask.queue} has what the stage needs"
    return f"no seat of {ask.queue} takes work now"


# -- how long that takes


def _service(board: Board, seat: Seat, mix: Mapping[str, float]) -> Service | None:
    """How long a stage of the `mix` (queue → how many) holds a lane of the seat; None: never measured."""
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
    """Seconds from one stage of a lane to its next: as long as one takes, or as the seat's rate allows."""
    hasty = seat.lanes * 60 / seat.per_minute if seat.per_minute else 0.0
    return max(service.mean, hasty, 1e-6)


def _rate(periods: Iterable[float]) -> float | None:
    return sum(1 / period for period in periods) or None


def _free_at(board: Board, pool: Sequence[tuple[Seat, Service]]) -> list[tuple[float, float]]:
    """(when it is free, seconds of each stage after that) of every lane."""
    found = []
    for seat, service in pool:
        period = _period(seat, service)
        earliest = max(seat.back_in or 0.0, seat.rate_in)
        for queue, elapsed in seat.running[: seat.lanes]:
            usual = (seat.service.get(queue) or board.measured.get(queue) or service).mean
            found.append((max(usual - elapsed, usual / 10, earliest), period))
        found += [(earliest, period)] * (seat.lanes - len(seat.running))
    return found


def _start(lanes: list[tuple[float, float]], position: int) -> float:
    """When the stage that is the `position`th to start does."""
    one_by_one = min(position, ROUNDS * len(lanes))
    heapq.heapify(lanes)
    for _ in range(one_by_one - 1):
        at, period = lanes[0]
        heapq.heapreplace(lanes, (at + period, period))
    return lanes[0][0] + (position - one_by_one) / sum(1 / period for _, period in lanes)


def _spread(start: float, position: int, ends: int, services: Sequence[Service], rate: float | None) -> float:
    """The standard deviation of the wait: of the `ends` stages that must end first, of the mean itself, which
    is known from so many stages only, and of who goes first. What was measured seldom is taken to vary more
    than it did.
    """
    if not rate:
        return 0.0
    measured = min(sum(service.n for service in services), MEMORY)
    varies = sum(_variation(service) * service.n for service in services) / sum(s.n for s in services)
    varies = max(varies, 1 / math.sqrt(measured))
    waiting = varies * math.sqrt(max(ends, 1)) / rate
    order = math.hypot(start * ORDER, 0.5 / rate) if position > 1 else 0.0
    return math.hypot(waiting, start * varies / math.sqrt(measured), order)


def _variation(service: Service) -> float:
    """Standard deviation by mean, of log-normal run times."""
    if service.p50 <= 0:
        return 0.0
    sigma = math.log(max(service.p90 / service.p50, 1.0)) / NINETY
    return math.sqrt(math.expm1(min(sigma * sigma, 20.0)))


def _bottleneck(board: Board, ask: Ask, pool: Sequence[Seat], lanes: int) -> str:
    services = [(seat, _service(board, seat, {ask.queue: 1.0})) for seat in pool]
    hasty = [seat.seat for seat, one in services if one and _period(seat, one) > max(one.mean, 1e-6)]
    if len(hasty) == len(pool):
        return f"requests_per_minute of {' and '.join(hasty[:3])}"
    if all(seat.back_in for seat in pool):
        return f"every seat of {ask.queue} pauses"
    return f"the {lanes} lanes of {ask.queue}" if lanes > 1 else f"the only lane of {ask.queue}"
