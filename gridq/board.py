"""What stands in queues and who serves them, at one instant, as plain data, and who of it goes first.

The order is the one in which the scripts give stages out: interactive work before batch work, batch work that
has waited for GRIDQ_BATCH_AGE as interactive, within a class the agent whose turn it is by its virtual time.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gridq.meters import Meter, short
from gridq.protocol import Service
from gridq.queues import kind_of

GROUPS = 6
"""Groups of seats that are told apart; of more those with the most free lanes, then the largest."""

Sort = tuple[str, int, frozenset[str]]
"""What decides who may take a stage: its queue, its rounded cost, the seats that are excluded."""


def _lacks(meter: Meter, cost: int) -> bool:
    return meter.remaining < (cost if meter.thing == "money" else 1)


@dataclass(frozen=True, slots=True)
class Seat:
    """A live seat. `running`: of each busy lane the stage's queue and for how long it has run. `back_in`:
    until it takes work (0: now; None: nobody knows). `rate_in`: until it may make requests again. `left`:
    what its budget has, in micro-dollars. `lends_to`: the agents and teams it is lent to alone, if any.
    `meters`: all budgets that bind it, also in some queues alone.
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
    lends_to: tuple[str, ...] = ()
    meters: tuple[Meter, ...] = ()

    @property
    def free(self) -> int:
        """How many stages it would take now."""
        return 0 if self.back_in or self.rate_in else max(self.lanes - len(self.running), 0)

    def takes(self, queue: str, cost: int, excluded: frozenset[str]) -> bool:
        """Whether it takes such a stage, now or once it is back."""
        able = self.back_in is not None and (self.left is None or self.left >= cost)
        if not able or queue not in self.queues or self.seat in excluded:
            return False
        some = [meter for meter in self.meters if meter.queues and meter.thing != "parallel"]
        return not any(meter.binds_in(queue) and _lacks(meter, cost) for meter in some)

    def short_of(self, queue: str, cost: int) -> str:
        """In words, the budget that has no room for such a stage; empty where each has."""
        found = (meter for meter in self.meters if meter.binds_in(queue) and _lacks(meter, cost))
        return next((short(meter, self.seat) for meter in found), "")

    def may_be_lent(self, agent: str) -> bool:
        """Whether it is lent to an agent, as far as is known without its team."""
        return not self.lends_to or agent in self.lends_to or any(":" in name for name in self.lends_to)


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

    def turn_of(self, ask: Ask) -> float:
        """The virtual time at which the first stage of the agent that asks would stand, from its kind's own:
        who comes late or comes back starts level with those served now.
        """
        kind = kind_of(ask.queue)
        clock = self.clocks.get(kind, 0.0)
        level = min(clock, self.clocks.get(ask.queue, clock)) if ask.queue in self.waiting else clock
        return max(self.turns.get((kind, ask.agent), level), level) - clock

    @cached_property
    def waiting(self) -> frozenset[str]:
        """The queues in which something waits."""
        return frozenset(line.queue for line in self.lines)

    def groups(self, ask: Ask) -> list[Group]:
        """The seats that may take what is asked for, by what stands before them; worked out once."""
        sort = ask.queue, ask.cost, ask.excluded
        found = self._groups.get(sort)
        if found is None:
            alike: dict[frozenset[Sort], list[Seat]] = defaultdict(list)
            for seat in self.seats:
                if seat.takes(*sort):
                    alike[self._taken_by[seat.seat]].append(seat)
            sets = sorted(alike.values(), key=_first_choice)
            if len(sets) > GROUPS:
                sets[GROUPS - 1 :] = [[seat for seats in sets[GROUPS - 1 :] for seat in seats]]
            found = self._groups[sort] = [Group(self, seats) for seats in sets]
        return found

    @cached_property
    def _groups(self) -> dict[Sort, list[Group]]:
        return {}

    @cached_property
    def _taken_by(self) -> dict[str, frozenset[Sort]]:
        """The sorts of waiting stages that each seat may take."""
        found: dict[str, set[Sort]] = {seat.seat: set() for seat in self.seats}
        for sort, takers in self.takers.items():
            for seat in takers:
                found[seat.seat].add(sort)
        return {seat: frozenset(sorts) for seat, sorts in found.items()}

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


@dataclass(slots=True)
class Rival:
    """What one agent has standing before some seats: all of it, and what goes with the interactive; `here`:
    their share of it; `weighs`: by how much it moves the agent's virtual time.
    """

    turn: float
    first: float = 0.0
    first_here: float = 0.0
    first_weighs: float = 0.0
    all: float = 0.0
    all_here: float = 0.0
    all_weighs: float = 0.0


class Group:
    """Seats before which the same work stands, and that work."""

    def __init__(self, board: Board, seats: Sequence[Seat]) -> None:
        self.board = board
        self.seats = tuple(seats)
        self.lanes = sum(seat.lanes for seat in seats)
        self.free = sum(seat.free for seat in seats)
        self.known: dict[Any, Any] = {}
        """What `gridq.forecast` has worked out of these seats already."""
        self._rivals: dict[tuple[str, str], Rival] = {}
        self._mixes: tuple[dict[str, float], dict[str, float]] = (defaultdict(float), defaultdict(float))
        names = {seat.seat for seat in seats}
        shares = {sort: _share(takers, names) for sort, takers in board.takers.items()}
        for line in board.lines:
            if share := shares[line.sort]:
                self._add(line, share)

    def _add(self, line: Line, share: float) -> None:
        kind = kind_of(line.queue)
        rival = self._rivals.get((kind, line.agent))
        if rival is None:
            turn = self.board.turns.get((kind, line.agent), 0.0) - self.board.clocks.get(kind, 0.0)
            rival = self._rivals[kind, line.agent] = Rival(turn)
        rival.first += line.first
        rival.first_here += line.first * share
        rival.first_weighs += line.first * line.weight
        rival.all += line.count
        rival.all_here += line.count * share
        rival.all_weighs += line.count * line.weight
        self._mixes[0][line.queue] += line.first * share
        self._mixes[1][line.queue] += line.count * share

    def mix(self, prio: int, queue: str) -> dict[str, float]:
        """By queue how much of the work before a stage of `queue` is of it."""
        return {name: many for name, many in self._mixes[prio].items() if many} or {queue: 1.0}

    def ahead(self, ask: Ask) -> float:
        """How many stages go before it here; of a queue that others serve too, the share of these seats."""
        kind = kind_of(ask.queue)
        me = (kind, ask.agent)
        mine = self._rivals.get(me)
        turn = self.board.turn_of(ask)
        if mine is not None:
            turn += mine.all_weighs if ask.prio else mine.first_weighs
        found = 0.0
        for who, rival in self._rivals.items():
            if who == me:
                found += rival.all_here if ask.prio else rival.first_here
            elif ask.prio:
                found += rival.first_here
                rest = rival.all - rival.first
                if rest:
                    weighs, here = rival.all_weighs - rival.first_weighs, rival.all_here - rival.first_here
                    found += _before(turn, rival.turn + rival.first_weighs, rest, weighs) * here / rest
            elif rival.first:
                before = _before(turn, rival.turn, rival.first, rival.first_weighs)
                found += before * rival.first_here / rival.first
        return found


def _first_choice(seats: Sequence[Seat]) -> tuple[int, int]:
    """Where the most lanes are free, then where the most are."""
    return -sum(seat.free for seat in seats), -sum(seat.lanes for seat in seats)


def _before(turn: float, theirs: float, many: float, weighs: float) -> float:
    """How many of an agent's `many` stages, which weigh so much together, come before another's turn."""
    return min(max(math.floor((turn - theirs) * many / weighs) + 1, 0), many)


def _share(takers: Sequence[Seat], names: set[str]) -> float:
    """Which part of the lanes that may take something is of the seats so named."""
    ours = sum(seat.lanes for seat in takers if seat.seat in names)
    return ours / sum(seat.lanes for seat in takers) if ours else 0.0


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
