"""The queues and the seats that serve them at one instant, as plain data, and who is served first.

The scripts hand stages out in this order: interactive work before batch work, where batch work that has
waited for GRIDQ_BATCH_AGE counts as interactive; among equals the agent with the lowest virtual time. This
order, and the rule when a budget has room for a stage, are in store/lua too. tests/unit/submission runs the
same cases through both (test_shared_rules.py; `test_position_matches_the_order_of_the_scripts`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from redis import Redis

from gridq.protocol.meters import (
    FREE,
    NO_ESTIMATE,
    Meter,
    SeatRates,
    UsageEstimate,
    describe_shortage,
    find_shortage,
    list_needs,
)
from gridq.protocol.models import ServiceTime
from gridq.protocol.queue_names import get_kind
from gridq.seats import registry
from gridq.seats.access import is_excluded
from gridq.store.keys import Keys

MAX_GROUPS = 6
"""Groups of seats that are kept apart; of more, those with the most free slots, then the largest."""

MAX_PENDING_SETS = 1000
"""Pending sets that are read in one snapshot. One holds an agent's stages of one class in one queue."""

MAX_LEASES = 512
"""Running stages whose start time is read. The others are taken to be half done."""

MICRO_DOLLARS_PER_TURN = 10_000
"""The cost that moves an agent's virtual time as far as one more stage does, as in the scripts."""


class TakerKey(NamedTuple):
    """The properties of a stage that decide which seats may take it."""

    queue: str
    cost: int
    excluded: frozenset[str]


class BudgetRoom(NamedTuple):
    """The time at which the budgets of a seat have room for a stage.

    `wait`: seconds until the windows reset that leave too little. `is_reserved`: stages that run now have
    reserved too much, and may give it back at any moment.
    """

    wait: float
    is_reserved: bool


@dataclass(frozen=True, slots=True)
class StageRequest:
    """A stage that is to be admitted, and what it is estimated to use."""

    queue: str
    agent: str = "default"
    prio: int = 0
    cost: int = 0
    excluded: frozenset[str] = frozenset()
    expects: UsageEstimate = NO_ESTIMATE


@dataclass(frozen=True, slots=True)
class SeatLoad:
    """A live seat and its work.

    `running`: for each busy slot the stage's queue and how many seconds it has run. `back_in`: seconds until
    the seat takes work (0: now; None: unknown). `rate_in`: seconds until it may make requests again.
    `lends_to`: the agents and teams it is lent to, empty if to all. `meters`: all budgets that apply to it,
    some in certain queues only; `rates`: what it charges. `is_reserved`: it waits for running stages to
    release what they reserved.
    """

    seat: str
    queues: frozenset[str]
    concurrency: int
    running: tuple[tuple[str, float], ...] = ()
    service: Mapping[str, ServiceTime] = field(default_factory=dict)
    back_in: float | None = 0.0
    requests_per_minute: int | None = None
    rate_in: float = 0.0
    lends_to: tuple[str, ...] = ()
    meters: tuple[Meter, ...] = ()
    rates: SeatRates = FREE
    is_reserved: bool = False

    @property
    def free(self) -> int:
        """The number of stages it would take now."""
        if self.back_in or self.rate_in or self.is_reserved:
            return 0
        return max(self.concurrency - len(self.running), 0)

    def find_room(self, request: StageRequest, now_ms: float) -> BudgetRoom | None:
        """Return when its budgets have room for a stage; None if it never takes it, or nobody knows when.

        A stage gives back neither what it used nor the request that it was. Where these leave too little,
        only the reset of the window helps.
        """
        if (
            self.back_in is None
            or request.queue not in self.queues
            or is_excluded(self.seat, request.excluded)
        ):
            return None
        wait, is_reserved = 0.0, False
        for meter, need in list_needs(self.meters, request.queue, request.cost, request.expects, self.rates):
            if meter.remaining >= need:
                continue
            if meter.used + need + (meter.reserved if meter.resource == "requests" else 0) <= meter.limit:
                is_reserved = True
            elif need > meter.limit or meter.resets_at is None:
                return None
            else:
                wait = max(wait, (meter.resets_at - now_ms) / 1000, 0.001)
        return BudgetRoom(wait, is_reserved)

    def limit_to(self, room: BudgetRoom) -> SeatLoad:
        """Return the seat as a stage meets it for which its budgets have room then."""
        if not (room.wait or room.is_reserved):
            return self
        return replace(self, back_in=max(self.back_in or 0.0, room.wait), is_reserved=room.is_reserved)

    def describe_shortage(self, request: StageRequest) -> str:
        """Return a text that names the budget without room for a stage; empty if there is none."""
        meter = find_shortage(self.meters, request.queue, request.cost, request.expects, self.rates)
        return describe_shortage(meter, self.seat) if meter is not None else ""

    def may_be_lent(self, agent: str) -> bool:
        """Return whether it may be lent to an agent whose team is not known."""
        return not self.lends_to or agent in self.lends_to or any(":" in name for name in self.lends_to)


@dataclass(frozen=True, slots=True)
class PendingStages:
    """The stages of one agent that are ready in one class of one queue.

    Of these `count`, `aged` are batch stages that count as interactive by now.
    """

    queue: str
    agent: str
    count: int
    prio: int = 0
    aged: int = 0
    cost: int = 0
    excluded: frozenset[str] = frozenset()

    @property
    def taker_key(self) -> TakerKey:
        """The key that decides which seats may take them."""
        return TakerKey(self.queue, self.cost, self.excluded)

    @property
    def interactive(self) -> int:
        """The number of stages that count as interactive."""
        return self.aged if self.prio else self.count

    @property
    def weight(self) -> float:
        """The distance by which one of them moves its agent's virtual time, as in the scripts."""
        return 1 + self.cost / MICRO_DOLLARS_PER_TURN


@dataclass(frozen=True)
class QueueSnapshot:
    """Seats and pending stages at one instant.

    `virtual_times`: (kind, agent) → the agent's virtual time. `clocks`: kind → the virtual time of the agent
    that was served last; queue → the same for that queue. `now_ms`: the server's clock.
    """

    seats: tuple[SeatLoad, ...] = ()
    pending: tuple[PendingStages, ...] = ()
    virtual_times: Mapping[tuple[str, str], float] = field(default_factory=dict)
    clocks: Mapping[str, float] = field(default_factory=dict)
    now_ms: float = 0.0

    @cached_property
    def takers(self) -> dict[bool, dict[TakerKey, list[SeatLoad]]]:
        """The seats that may take each sort of pending stage: now (False), or also after a reset (True)."""
        found: dict[bool, dict[TakerKey, list[SeatLoad]]] = {False: {}, True: {}}
        for key in {stages.taker_key for stages in self.pending}:
            rooms = self.find_rooms(StageRequest(key.queue, cost=key.cost, excluded=key.excluded))
            able = [(seat, room) for seat, room in zip(self.seats, rooms, strict=True) if room is not None]
            found[True][key] = [seat for seat, _ in able]
            found[False][key] = [seat for seat, room in able if not room.wait]
        return found

    def find_rooms(self, request: StageRequest) -> tuple[BudgetRoom | None, ...]:
        """Return for each seat when its budgets have room for a stage."""
        return tuple(seat.find_room(request, self.now_ms) for seat in self.seats)

    def find_virtual_time(self, request: StageRequest) -> float:
        """Return the virtual time of the requesting agent's first stage, relative to its kind's clock.

        An agent that is new or comes back starts level with those that are served now.
        """
        kind = get_kind(request.queue)
        clock = self.clocks.get(kind, 0.0)
        level = min(clock, self.clocks.get(request.queue, clock)) if request.queue in self.waiting else clock
        return max(self.virtual_times.get((kind, request.agent), level), level) - clock

    @cached_property
    def waiting(self) -> frozenset[str]:
        """The queues with pending stages."""
        return frozenset(stages.queue for stages in self.pending)

    def group_seats(self, request: StageRequest) -> list[SeatGroup]:
        """Return the seats that may take a stage, grouped by the work that goes before it.

        Seats that wait for a window's reset are apart: other work that waits for it goes first.
        """
        rooms = self.find_rooms(request)
        key = request.queue, request.cost, request.excluded, rooms
        groups = self._groups.get(key)
        if groups is None:
            alike: dict[tuple[bool, frozenset[TakerKey]], list[SeatLoad]] = defaultdict(list)
            for seat, room in zip(self.seats, rooms, strict=True):
                if room is not None:
                    after_reset = room.wait > 0
                    alike[after_reset, self._taken_by[after_reset, seat.seat]].append(seat.limit_to(room))
            sets = sorted(alike.items(), key=lambda item: (item[0][0], _rank_by_slots(item[1])))
            if len(sets) > MAX_GROUPS:
                rest = [seat for _, seats in sets[MAX_GROUPS - 1 :] for seat in seats]
                sets[MAX_GROUPS - 1 :] = [(sets[MAX_GROUPS - 1][0], rest)]
            groups = [SeatGroup(self, seats, after_reset) for (after_reset, _), seats in sets]
            self._groups[key] = groups
        return groups

    @cached_property
    def _groups(self) -> dict[Any, list[SeatGroup]]:
        return {}

    @cached_property
    def _taken_by(self) -> dict[tuple[bool, str], frozenset[TakerKey]]:
        """The sorts of pending stages that each seat may take."""
        found: dict[tuple[bool, str], set[TakerKey]] = defaultdict(set)
        for after_reset, by_key in self.takers.items():
            for key, takers in by_key.items():
                for seat in takers:
                    found[after_reset, seat.seat].add(key)
        return {
            (after_reset, seat.seat): frozenset(found[after_reset, seat.seat])
            for after_reset in (False, True)
            for seat in self.seats
        }

    @cached_property
    def measured(self) -> dict[str, ServiceTime]:
        """The measurements of all seats by queue, weighted by their numbers of stages."""
        found: dict[str, list[ServiceTime]] = defaultdict(list)
        for seat in self.seats:
            for queue, service in seat.service.items():
                found[queue].append(service)
        return {queue: combine_services(each) for queue, each in found.items()}


@dataclass(slots=True)
class AgentBacklog:
    """The pending stages of one agent for some seats: the interactive ones, and all.

    `…_here` is the part that falls to these seats; `…_weight` is how far it moves the agent's virtual time.
    """

    virtual_time: float
    interactive: float = 0.0
    interactive_here: float = 0.0
    interactive_weight: float = 0.0
    all: float = 0.0
    all_here: float = 0.0
    all_weight: float = 0.0


class SeatGroup:
    """Seats that have the same work before them, and that work.

    `after_reset`: their budgets have no room before a window resets.
    """

    def __init__(self, snapshot: QueueSnapshot, seats: Sequence[SeatLoad], after_reset: bool = False) -> None:
        self.snapshot = snapshot
        self.after_reset = after_reset
        self.seats = tuple(seats)
        self.concurrency = sum(seat.concurrency for seat in seats)
        self.free = sum(seat.free for seat in seats)
        self.paces: dict[tuple[int, str], Any] = {}
        """(priority, queue) → `gridq.submission.start_forecast.Pace`, once it is computed."""
        self._backlogs: dict[tuple[str, str], AgentBacklog] = {}
        self._mixes: tuple[dict[str, float], dict[str, float]] = (defaultdict(float), defaultdict(float))
        names = {seat.seat for seat in seats}
        shares = {key: _find_share(takers, names) for key, takers in snapshot.takers[after_reset].items()}
        for stages in snapshot.pending:
            if share := shares[stages.taker_key]:
                self._add(stages, share)

    def _add(self, stages: PendingStages, share: float) -> None:
        kind = get_kind(stages.queue)
        backlog = self._backlogs.get((kind, stages.agent))
        if backlog is None:
            clock = self.snapshot.clocks.get(kind, 0.0)
            backlog = AgentBacklog(self.snapshot.virtual_times.get((kind, stages.agent), 0.0) - clock)
            self._backlogs[kind, stages.agent] = backlog
        backlog.interactive += stages.interactive
        backlog.interactive_here += stages.interactive * share
        backlog.interactive_weight += stages.interactive * stages.weight
        backlog.all += stages.count
        backlog.all_here += stages.count * share
        backlog.all_weight += stages.count * stages.weight
        self._mixes[0][stages.queue] += stages.interactive * share
        self._mixes[1][stages.queue] += stages.count * share

    def find_mix(self, prio: int, queue: str) -> dict[str, float]:
        """Return how much of the work before a stage of `queue` belongs to each queue."""
        return {name: count for name, count in self._mixes[prio].items() if count} or {queue: 1.0}

    def count_ahead(self, request: StageRequest) -> float:
        """Return how many stages go first here; of a queue that others serve too, only these seats' share."""
        kind = get_kind(request.queue)
        me = (kind, request.agent)
        mine = self._backlogs.get(me)
        at = self.snapshot.find_virtual_time(request)
        if mine is not None:
            at += mine.all_weight if request.prio else mine.interactive_weight
        ahead = 0.0
        for who, other in self._backlogs.items():
            if who == me:
                ahead += other.all_here if request.prio else other.interactive_here
            elif request.prio:
                ahead += other.interactive_here
                batch = other.all - other.interactive
                if batch:
                    weight = other.all_weight - other.interactive_weight
                    here = other.all_here - other.interactive_here
                    start = other.virtual_time + other.interactive_weight
                    ahead += _count_before(at, start, batch, weight) * here / batch
            elif other.interactive:
                before = _count_before(at, other.virtual_time, other.interactive, other.interactive_weight)
                ahead += before * other.interactive_here / other.interactive
        return ahead


def _rank_by_slots(seats: Sequence[SeatLoad]) -> tuple[int, int]:
    """Return a sort key: the most free slots first, then the most slots."""
    return -sum(seat.free for seat in seats), -sum(seat.concurrency for seat in seats)


def _count_before(at: float, start: float, count: float, weight: float) -> float:
    """Return how many of an agent's `count` stages, from `start` on, come before the virtual time `at`."""
    return min(max(math.floor((at - start) * count / weight) + 1, 0), count)


def _find_share(takers: Sequence[SeatLoad], names: set[str]) -> float:
    """Return the part of the takers' slots that belongs to the named seats."""
    ours = sum(seat.concurrency for seat in takers if seat.seat in names)
    return ours / sum(seat.concurrency for seat in takers) if ours else 0.0


def combine_services(services: Sequence[ServiceTime]) -> ServiceTime:
    """Return several measurements as one, weighted by their numbers of stages."""
    n = sum(service.n for service in services)

    def mean(values: Iterable[float]) -> float:
        return sum(value * service.n for value, service in zip(values, services, strict=True)) / n

    return ServiceTime(
        n=n,
        mean=mean(service.mean for service in services),
        p50=mean(service.p50 for service in services),
        p90=mean(service.p90 for service in services),
    )


# -- reading


def read_snapshot(client: Redis, keys: Keys, batch_age: float) -> QueueSnapshot:
    """Read the seats and queues in six round trips. `batch_age`: GRIDQ_BATCH_AGE, in seconds."""
    live = registry.read_live_seats(client, keys)
    pipe = client.pipeline(transaction=False)
    pipe.time()
    pipe.smembers(keys("queues"))
    for seat in live:
        pipe.hvals(keys("slots", seat.seat))
    clock, busy, *slots = pipe.execute()
    now = clock[0] * 1000 + clock[1] / 1000
    queues = sorted(queue.decode() for queue in busy)
    pending, virtual_times, clocks = _read_pending(client, keys, queues, now, batch_age)
    leases = [lease for seat_leases in slots for lease in seat_leases][:MAX_LEASES]
    running = _read_running(client, keys, leases, now)
    seats = tuple(
        _build_load(seat, [running.get(lease, ("", None)) for lease in seat_leases], now / 1000)
        for seat, seat_leases in zip(live, slots, strict=True)
    )
    return QueueSnapshot(seats, pending, virtual_times, clocks, now)


def _build_load(seat: registry.LiveSeat, running: Iterable[tuple[str, float | None]], now: float) -> SeatLoad:
    back_in: float | None = 0.0
    if seat.state != "ready":
        back_in = None if seat.until is None else max(seat.until - now, 0.001)
    half = {queue: service.mean / 2 for queue, service in seat.service.items()}
    return SeatLoad(
        seat.seat,
        frozenset(seat.queues),
        seat.concurrency,
        tuple((queue, half.get(queue, 0.0) if elapsed is None else elapsed) for queue, elapsed in running),
        seat.service,
        back_in,
        seat.requests_per_minute,
        max(seat.rate_until - now, 0.0) if seat.rate_until is not None else 0.0,
        tuple(seat.lends_to),
        tuple(seat.meters),
        seat.rates,
    )


def _read_running(
    client: Redis, keys: Keys, leases: list[bytes], now: float
) -> dict[bytes, tuple[str, float | None]]:
    """Return for each lease its stage's queue and how many seconds it has run."""
    pipe = client.pipeline(transaction=False)
    for lease in leases:
        job, step, _ = lease.decode().split(":", 2)
        pipe.hmget(keys("job", job), f"header:{step}", f"started_at:{step}")
    found: dict[bytes, tuple[str, float | None]] = {}
    for lease, (header, started) in zip(leases, pipe.execute() if leases else (), strict=True):
        if header is not None:
            elapsed = None if started is None else max(now - float(started), 0.0) / 1000
            found[lease] = header.split(b" ", 1)[0].decode(), elapsed
    return found


def _read_pending(
    client: Redis, keys: Keys, queues: list[str], now: float, batch_age: float
) -> tuple[tuple[PendingStages, ...], dict[tuple[str, str], float], dict[str, float]]:
    """Return the pending stages by queue, class and agent, with the virtual times and clocks.

    Parked agents, which are out of money, are left out: no seat can serve them.
    """
    pipe = client.pipeline(transaction=False)
    for queue in queues:
        pipe.hkeys(keys("classes", queue))
    classes = [
        (queue, cls.decode())
        for queue, names in zip(queues, pipe.execute() if queues else (), strict=True)
        for cls in names
    ]
    pipe = client.pipeline(transaction=False)
    for queue, cls in classes:
        pipe.zrange(keys("ready", queue, cls), 0, max(MAX_PENDING_SETS // len(classes), 1) - 1)
    sets = [
        (queue, cls, agent.decode())
        for (queue, cls), agents in zip(classes, pipe.execute() if classes else (), strict=True)
        for agent in agents
    ]
    kinds = sorted({get_kind(queue) for queue, _, _ in sets} | {get_kind(queue) for queue in queues})
    pipe = client.pipeline(transaction=False)
    for queue, cls, agent in sets:
        pipe.zcard(keys("waiting", queue, cls, agent))
        pipe.zcount(keys("waiting", queue, cls, agent), "-inf", now - batch_age * 1000)
    fields_by_kind = {kind: _list_virtual_time_fields(kind, queues, sets) for kind in kinds}
    for kind, fields in fields_by_kind.items():
        pipe.hmget(keys("virtual_time", kind), fields)
    replies: list[Any] = pipe.execute() if sets or kinds else []
    virtual_times: dict[tuple[str, str], float] = {}
    clocks: dict[str, float] = {}
    for (kind, fields), times in zip(fields_by_kind.items(), replies[2 * len(sets) :], strict=True):
        for name, at in zip(fields, times, strict=True):
            if at is None:
                continue
            if name.startswith("*"):
                clocks[name[1:] or kind] = float(at)
            else:
                virtual_times[kind, name] = float(at)
    pending = []
    for number, (queue, cls, agent) in enumerate(sets):
        count, aged = replies[2 * number], replies[2 * number + 1]
        prio, _, rest = cls.partition("/")
        cost, _, excluded = rest.partition("|")
        if count:
            names = frozenset(excluded.split(",")) if excluded and excluded != "*" else frozenset[str]()
            pending.append(PendingStages(queue, agent, count, int(prio), aged, int(cost), names))
    return tuple(pending), virtual_times, clocks


def _list_virtual_time_fields(kind: str, queues: list[str], sets: list[tuple[str, str, str]]) -> list[str]:
    """Return the fields of a kind's virtual times: the kind, its queues, the agents that wait."""
    agents = {agent for queue, _, agent in sets if get_kind(queue) == kind}
    return ["*", *(f"*{queue}" for queue in queues if get_kind(queue) == kind), *sorted(agents)]
