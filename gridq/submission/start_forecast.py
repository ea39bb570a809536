"""Estimate when a stage would start if it were submitted now: a function of a queue snapshot.

Work that comes later is not foreseen, so a stage that others may overtake can start later than estimated. A
seat's preference for its loaded model is ignored. Times are in seconds.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gridq.protocol.models import ServiceTime
from gridq.protocol.queue_names import ANY_EMBEDDINGS, get_kind, get_name
from gridq.protocol.running_times import MEMORY_STAGES, P90_DEVIATIONS
from gridq.seats.access import is_excluded
from gridq.submission.queue_snapshot import QueueSnapshot, SeatGroup, SeatLoad, StageRequest, combine_services

STAGES_PER_SLOT = 4
"""Stages of each slot that are simulated one by one; the others count by the slots' rates."""

ORDER_ERROR = 0.15
"""The error of the order, as a part of the wait: with several queues it is known only on average."""

SPREAD_FACTOR = 1.2
"""The observed spread of waits, relative to the computed one (`python -m benchmarks forecast`)."""

MIN_STAGE_SECONDS = 1e-6


@dataclass(frozen=True, slots=True)
class StartForecast:
    """An estimate of when a stage would start, in seconds from now.

    `position`: its place among the stages that its `concurrency` slots can serve, from 1; None if no seat
    takes it. In eight of ten cases it starts between `low` and `high`. `p50`, `low` and `high` are None if no
    seat takes it, or nobody has measured how long stages take. `rate`: stages that its slots start in a
    second. `bottleneck`: what it waits for, empty if it would start at once. `resets_in`: seconds until a
    window resets, before which none of its seats' budgets has room for it, whatever ends meanwhile; 0 if one
    may have. `faster_queue`: another queue that would run it now. `as_interactive`: the forecast of a batch
    stage, were it interactive.
    """

    queue: str
    position: int | None
    concurrency: int
    p50: float | None
    low: float | None
    high: float | None
    bottleneck: str = ""
    rate: float | None = None
    resets_in: float = 0.0
    faster_queue: str | None = None
    as_interactive: StartForecast | None = None

    @property
    def is_now(self) -> bool:
        return self.p50 == 0.0


def forecast_start(snapshot: QueueSnapshot, request: StageRequest) -> StartForecast:
    """Estimate when a stage would start, on the seats that come to it first, without alternatives."""
    groups = snapshot.group_seats(request)
    concurrency = sum(group.concurrency for group in groups)
    if not concurrency:
        bottleneck = _explain_no_seat(snapshot, request)
        return StartForecast(request.queue, None, 0, None, None, None, bottleneck)
    forecasts = [_forecast_group(group, request) for group in groups]
    best = min(forecasts, key=lambda one: (one.p50 is None, one.p50 or 0.0, one.position or 0))
    rates = [one.rate for one in forecasts if one.rate]
    bottleneck = "" if best.is_now else _find_bottleneck(request, groups, concurrency)
    resets_in = 0.0
    if all(group.after_reset for group in groups):
        resets_in = min(room.wait for room in snapshot.find_rooms(request) if room is not None)
    return replace(
        best, concurrency=concurrency, rate=sum(rates) or None, bottleneck=bottleneck, resets_in=resets_in
    )


def forecast_with_alternatives(snapshot: QueueSnapshot, request: StageRequest) -> StartForecast:
    """Estimate when a stage would start; if not at once, also where, or how, it would start sooner."""
    forecast = forecast_start(snapshot, request)
    if forecast.is_now:
        return forecast
    return replace(
        forecast,
        faster_queue=find_faster_queue(snapshot, request),
        as_interactive=forecast_start(snapshot, replace(request, prio=0)) if request.prio else None,
    )


def find_faster_queue(snapshot: QueueSnapshot, request: StageRequest) -> str | None:
    """Return a queue of the same kind that would run a stage now (a family or `any`); None: there is none."""
    serving = {seat.seat for seat in snapshot.seats if request.queue in seat.queues}
    kind = get_kind(request.queue)
    seats_of: dict[str, set[str]] = defaultdict(set)
    for seat in snapshot.seats:
        for queue in seat.queues:
            seats_of[queue].add(seat.seat)
    free = {seat.seat: seat.free for seat in snapshot.seats}
    wider = [
        queue
        for queue, seats in seats_of.items()
        if queue != request.queue
        and get_kind(queue) == kind
        and get_name(queue) != ANY_EMBEDDINGS  # which nobody but gridq asks for
        and (queue == f"{kind}:any" or (serving and seats > serving))
        and any(free[seat] for seat in seats)
        and forecast_start(snapshot, replace(request, queue=queue)).is_now
    ]
    return min(wider, key=lambda queue: (len(seats_of[queue]), queue.endswith(":any"), queue), default=None)


def _forecast_group(group: SeatGroup, request: StageRequest) -> StartForecast:
    """Estimate when a stage would start on the seats of one group."""
    position = math.floor(group.count_ahead(request) + 0.5) + 1
    pace = _find_pace(group, request)
    if position <= group.free:
        return StartForecast(request.queue, position, group.concurrency, 0.0, 0.0, 0.0, "", pace.rate)
    if pace.rate is None or not pace.is_complete:
        return StartForecast(request.queue, position, group.concurrency, None, None, None, "", pace.rate)
    start = _estimate_start(pace, position)
    margin = (
        SPREAD_FACTOR * P90_DEVIATIONS * _estimate_deviation(start, position, position - group.free, pace)
    )
    earliest = min(seat.back_in or 0.0 for seat in group.seats) if group.after_reset else 0.0
    low = max(start - margin, earliest)
    if any(seat.is_reserved and not seat.running for seat in group.seats):
        low = earliest  # a reservation of another seat may be released at any moment
    return StartForecast(
        request.queue, position, group.concurrency, start, low, start + margin, "", pace.rate
    )


# -- what binds


def _explain_no_seat(snapshot: QueueSnapshot, request: StageRequest) -> str:
    queue = request.queue
    serving = [seat for seat in snapshot.seats if queue in seat.queues]
    allowed = [seat for seat in serving if not is_excluded(seat.seat, request.excluded)]
    if not serving:
        return f"no live seat serves {queue}"
    if any(seat.back_in is not None for seat in allowed):
        return _describe_budgets(request, allowed)
    if not allowed:
        return f"no seat of {queue} has what the stage needs"
    return f"no seat of {queue} takes work now"


def _find_bottleneck(request: StageRequest, groups: Sequence[SeatGroup], concurrency: int) -> str:
    seats = [seat for group in groups for seat in group.seats]
    rate_limited = [seat for group in groups for seat in _find_pace(group, request).rate_limited]
    if len(rate_limited) == len(seats):
        return f"requests_per_minute of {' and '.join(rate_limited[:3])}"
    if all(seat.back_in or seat.is_reserved for seat in seats):
        if all(seat.describe_shortage(request) for seat in seats):
            return _describe_budgets(request, seats)
        return f"every seat of {request.queue} pauses"
    if concurrency == 1:
        return f"the only slot of {request.queue}"
    return f"the {concurrency} slots of {request.queue}"


def _describe_budgets(request: StageRequest, seats: Sequence[SeatLoad]) -> str:
    shortages = dict.fromkeys(filter(None, (seat.describe_shortage(request) for seat in seats)))
    text = f"the budgets of the seats of {request.queue}"
    return text + (": " + "; ".join([*shortages][:3]) if shortages else "")


# -- how long stages take


@dataclass(frozen=True, slots=True)
class Pace:
    """The speed at which seats work through what is before a stage.

    `is_complete`: all of them were measured. `slots`: for each slot when it is free, and the seconds from one
    stage to the next after that, the first to be free first. `rate`: stages a second. `variation`: standard
    deviation of a stage's time by its mean; `measured`: the number of stages it comes from. `rate_limited`:
    the seats that their requests per minute slow down.
    """

    is_complete: bool
    slots: tuple[tuple[float, float], ...]
    rate: float | None
    variation: float
    measured: int
    rate_limited: tuple[str, ...]


def _find_pace(group: SeatGroup, request: StageRequest) -> Pace:
    """Return the pace of a group, computed once for each priority and queue."""
    pace: Pace | None = group.paces.get((request.prio, request.queue))
    if pace is None:
        mix = group.find_mix(request.prio, request.queue)
        services = [(seat, _estimate_service(group.snapshot, seat, mix)) for seat in group.seats]
        known = [(seat, service) for seat, service in services if service is not None]
        slots = _find_free_times(group.snapshot, known)
        n = sum(service.n for _, service in known)
        pace = group.paces[request.prio, request.queue] = Pace(
            is_complete=len(known) == len(group.seats),
            slots=tuple(sorted(slots)),
            rate=sum(1 / period for _, period in slots) or None,
            variation=sum(_find_variation(service) * service.n for _, service in known) / n if n else 0.0,
            measured=n,
            rate_limited=tuple(
                seat.seat for seat, one in known if _find_period(seat, one) > max(one.mean, MIN_STAGE_SECONDS)
            ),
        )
    return pace


def _estimate_service(
    snapshot: QueueSnapshot, seat: SeatLoad, mix: Mapping[str, float]
) -> ServiceTime | None:
    """Estimate how long a stage of the `mix` (queue → count) takes a slot of the seat; None: not measured."""
    parts = []
    for queue, count in mix.items():
        service = seat.service.get(queue) or snapshot.measured.get(queue)
        if service is None and seat.service:
            service = combine_services(list(seat.service.values()))
        if service is None:
            return None
        parts.append((service, count))
    total = sum(count for _, count in parts)
    return ServiceTime(
        n=sum(service.n for service, _ in parts),
        mean=sum(service.mean * count for service, count in parts) / total,
        p50=sum(service.p50 * count for service, count in parts) / total,
        p90=sum(service.p90 * count for service, count in parts) / total,
    )


def _find_period(seat: SeatLoad, service: ServiceTime) -> float:
    """Return the seconds from one stage of a slot to its next: its run time, or as the rate limit allows."""
    by_rate = seat.concurrency * 60 / seat.requests_per_minute if seat.requests_per_minute else 0.0
    return max(service.mean, by_rate, MIN_STAGE_SECONDS)


def _find_free_times(
    snapshot: QueueSnapshot, known: Sequence[tuple[SeatLoad, ServiceTime]]
) -> list[tuple[float, float]]:
    """Return for each slot (when it is free, seconds from one stage to the next after that).

    A seat whose budgets have no room for more than what runs has only as many slots as run.
    """
    slots = []
    for seat, service in known:
        period = _find_period(seat, service)
        earliest = max(seat.back_in or 0.0, seat.rate_in)
        for queue, elapsed in seat.running[: seat.concurrency]:
            usual = (seat.service.get(queue) or snapshot.measured.get(queue) or service).mean
            slots.append((max(usual - elapsed, usual / 10, earliest), period))
        if not seat.is_reserved:
            slots += [(earliest, period)] * (seat.concurrency - len(seat.running))
        elif not seat.running:
            slots.append((max(service.mean, earliest), period))
    return slots


def _estimate_start(pace: Pace, position: int) -> float:
    if position <= 1:
        return pace.slots[0][0]
    slots = list(pace.slots)  # sorted, so it is a heap
    simulated = min(position, STAGES_PER_SLOT * len(slots))
    for _ in range(simulated - 1):
        at, period = slots[0]
        heapq.heapreplace(slots, (at + period, period))
    return slots[0][0] + (position - simulated) / (pace.rate or 1.0)


def _estimate_deviation(start: float, position: int, ends: int, pace: Pace) -> float:
    """Estimate the standard deviation of the wait.

    It has three parts: the `ends` stages that must end first; the mean, which comes from so many stages only;
    and the order. Times that were measured seldom are taken to vary more than they did.
    """
    measured, rate = min(pace.measured, MEMORY_STAGES), pace.rate or 1.0
    variation = max(pace.variation, 1 / math.sqrt(measured))
    of_stages = variation * math.sqrt(max(ends, 1)) / rate
    of_order = math.hypot(start * ORDER_ERROR, 0.5 / rate) if position > 1 else 0.0
    return math.hypot(of_stages, start * variation / math.sqrt(measured), of_order)


def _find_variation(service: ServiceTime) -> float:
    """Return standard deviation by mean, of log-normal run times."""
    if service.p50 <= 0:
        return 0.0
    sigma = math.log(max(service.p90 / service.p50, 1.0)) / P90_DEVIATIONS
    return math.sqrt(math.expm1(min(sigma * sigma, 20.0)))
