"""What stands in queues and who serves them, at one instant, as plain data, and who of it goes first.

The order is the one in which the scripts give stages out: interactive work before batch work, batch work that
has waited for GRIDQ_BATCH_AGE as interactive, within a class the agent whose turn it is by its virtual time.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from gridq.protocol.meters import FREE, UNKNOWN, Expects, Meter, Rates, lacking, needs, short
from gridq.protocol.models import Service
from gridq.protocol.queue_names import kind_of

GROUPS = 6
"""Groups of seats that are told apart; of more those with the most free slots, then the largest."""

Sort = tuple[str, int, frozenset[str]]
"""What decides who may take a stage: its queue, its rounded cost, the seats that are excluded."""

Room = tuple[float, bool]
"""When the budgets of a seat have room for a stage: in so many seconds, when windows turn; and whether what
runs now holds too much of them.
"""


@dataclass(frozen=True, slots=True)
class Seat:
    """A live seat. `running`: of each busy slot the stage's queue and for how long it has run. `back_in`:
    until it takes work (0: now; None: nobody knows). `rate_in`: until it may make requests again. `lends_to`:
    the agents and teams it is lent to alone, if any. `meters`: all budgets that bind it, also in some queues
    alone; `rates`: what it asks for. `held_up`: it waits for what runs to give back what it holds of them.
    """

    seat: str
    queues: frozenset[str]
    concurrency: int
    running: tuple[tuple[str, float], ...] = ()
    service: Mapping[str, Service] = field(default_factory=dict)
    back_in: float | None = 0.0
    per_minute: int | None = None
    rate_in: float = 0.0
    lends_to: tuple[str, ...] = ()
    meters: tuple[Meter, ...] = ()
    rates: Rates = FREE
    held_up: bool = False

    @property
    def free(self) -> int:
        """How many stages it would take now."""
        return (
            0
            if self.back_in or self.rate_in or self.held_up
            else max(self.concurrency - len(self.running), 0)
        )

    def room(self, ask: Ask, now_ms: float) -> Room | None:
        """When its budgets have room for such a stage. None: it never takes it, or nobody knows when.

        What was used no stage gives back, nor the request that it was: where these leave too little only the
        window's turn helps.
        """
        if self.back_in is None or ask.queue not in self.queues or self.seat in ask.excluded:
            return None
        wait, held_up = 0.0, False
        for meter, need in needs(self.meters, ask.queue, ask.cost, ask.expects, self.rates):
            if meter.remaining >= need:
                continue
            if meter.used + need + (meter.held if meter.thing == "requests" else 0) <= meter.limit:
                held_up = True
            elif need > meter.limit or meter.turn is None:
                return None
            else:
                wait = max(wait, (meter.turn - now_ms) / 1000, 0.001)
        return wait, held_up

    def within(self, room: Room) -> Seat:
        """The seat, as it is for a stage for which its budgets have room then."""
        wait, held_up = room
        if not (wait or held_up):
            return self
        return replace(self, back_in=max(self.back_in or 0.0, wait), held_up=held_up)

    def short_of(self, ask: Ask) -> str:
        """In words, the budget that has no room for such a stage; empty where each has."""
        meter = lacking(self.meters, ask.queue, ask.cost, ask.expects, self.rates)
        return short(meter, self.seat) if meter is not None else ""

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
    whoever was served last, and queue → the same of that queue alone. `now_ms`: the server's clock.
    """

    seats: tuple[Seat, ...] = ()
    lines: tuple[Line, ...] = ()
    turns: Mapping[tuple[str, str], float] = field(default_factory=dict)
    clocks: Mapping[str, float] = field(default_factory=dict)
    now_ms: float = 0.0

    @cached_property
    def takers(self) -> dict[bool, dict[Sort, list[Seat]]]:
        """Who may take each sort of stage that waits: before (False), and also after windows have turned."""
        found: dict[bool, dict[Sort, list[Seat]]] = {False: {}, True: {}}
        for sort in {line.sort for line in self.lines}:
            queue, cost, excluded = sort
            rooms = self.rooms(Ask(queue, cost=cost, excluded=excluded))
            able = [(seat, room) for seat, room in zip(self.seats, rooms, strict=True) if room is not None]
            found[True][sort] = [seat for seat, _ in able]
            found[False][sort] = [seat for seat, (wait, _) in able if not wait]
        return found

    def rooms(self, ask: Ask) -> tuple[Room | None, ...]:
        """When the budgets of each seat have room for what is asked for."""
        return tuple(seat.room(ask, self.now_ms) for seat in self.seats)

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
        """The seats that may take what is asked for, by what stands before them; worked out once. Those that
        wait for a window's turn are apart: what waits for that as well stands before them.
        """
        rooms = self.rooms(ask)
        sort = ask.queue, ask.cost, ask.excluded, rooms
        found = self._groups.get(sort)
        if found is None:
            alike: dict[tuple[bool, frozenset[Sort]], list[Seat]] = defaultdict(list)
            for seat, room in zip(self.seats, rooms, strict=True):
                if room is not None:
                    later = room[0] > 0
                    alike[later, self._taken_by[later, seat.seat]].append(seat.within(room))
            sets = sorted(alike.items(), key=lambda item: (item[0][0], _first_choice(item[1])))
            if len(sets) > GROUPS:
                rest = [seat for _, seats in sets[GROUPS - 1 :] for seat in seats]
                sets[GROUPS - 1 :] = [(sets[GROUPS - 1][0], rest)]
            found = self._groups[sort] = [Group(self, seats, later) for (later, _), seats in sets]
        return found

    @cached_property
    def _groups(self) -> dict[Any, list[Group]]:
        return {}

    @cached_property
    def _taken_by(self) -> dict[tuple[bool, str], frozenset[Sort]]:
        """The sorts of waiting stages that each seat may take."""
        found: dict[tuple[bool, str], set[Sort]] = defaultdict(set)
        for later, sorts in self.takers.items():
            for sort, takers in sorts.items():
                for seat in takers:
                    found[later, seat.seat].add(sort)
        return {
            (later, seat.seat): frozenset(found[later, seat.seat])
            for later in (False, True)
            for seat in self.seats
        }

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
    """A stage that is to be admitted, and what it is estimated to use."""

    queue: str
    agent: str = "default"
    prio: int = 0
    cost: int = 0
    excluded: frozenset[str] = frozenset()
    expects: Expects = UNKNOWN


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
    """Seats before which the same work stands, and that work; `later`: they wait for a window's turn."""

    def __init__(self, board: Board, seats: Sequence[Seat], later: bool = False) -> None:
        self.board = board
        self.later = later
        self.seats = tuple(seats)
        self.concurrency = sum(seat.concurrency for seat in seats)
        self.free = sum(seat.free for seat in seats)
        self.known: dict[Any, Any] = {}
        """What `gridq.submission.start_forecast` has worked out of these seats already."""
        self._rivals: dict[tuple[str, str], Rival] = {}
        self._mixes: tuple[dict[str, float], dict[str, float]] = (defaultdict(float), defaultdict(float))
        names = {seat.seat for seat in seats}
        shares = {sort: _share(takers, names) for sort, takers in board.takers[later].items()}
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
    """Where the most slots are free, then where the most are."""
    return -sum(seat.free for seat in seats), -sum(seat.concurrency for seat in seats)


def _before(turn: float, theirs: float, many: float, weighs: float) -> float:
    """How many of an agent's `many` stages, which weigh so much together, come before another's turn."""
    return min(max(math.floor((turn - theirs) * many / weighs) + 1, 0), many)


def _share(takers: Sequence[Seat], names: set[str]) -> float:
    """Which part of the slots that may take something is of the seats so named."""
    ours = sum(seat.concurrency for seat in takers if seat.seat in names)
    return ours / sum(seat.concurrency for seat in takers) if ours else 0.0


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
