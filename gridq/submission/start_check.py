"""Forecasts for admission: check that a job can start in time, and tell a refused one what would help.

The queues and seats are read at most twice a second for each process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from redis import Redis
from redis.exceptions import RedisError

from gridq.errors import DeadlineUnreachable, GridError, GridFull, NoLiveSeat, QueueFull, QuotaExceeded
from gridq.graph.plan import Plan
from gridq.jobs.record import JobOptions, round_up_cost
from gridq.protocol import queue_names
from gridq.protocol.durations import format_seconds
from gridq.protocol.meters import GRID, NO_ESTIMATE, OWN, UsageEstimate
from gridq.protocol.models import Json
from gridq.store.keys import Keys
from gridq.store.ttl_cache import TtlCache
from gridq.submission.queue_snapshot import BudgetRoom, QueueSnapshot, StageRequest, read_snapshot
from gridq.submission.refusal_details import explain_refusal
from gridq.submission.seat_filters import ExcludedSeats
from gridq.submission.start_forecast import StartForecast, forecast_with_alternatives

EXPLAINED = (DeadlineUnreachable, GridFull, NoLiveSeat, QueueFull, QuotaExceeded)
"""Refusals that waiting, or a small change, would avoid."""

SNAPSHOT_TTL_SECONDS = 0.5

MAX_FORECASTS = 100
"""Different stages that one snapshot is asked about. Further agents count as without pending work."""

MAX_FIRST_STAGES = 8
"""Different stages of one job that are forecast."""

OTHER_AGENT = "*"
"""Stands for an agent without pending work; it is no agent's name."""

ForecastKey = tuple[StageRequest, tuple[BudgetRoom | None, ...]]
"""A stage without its estimate, and when the budgets of each seat have room for it."""

E = TypeVar("E", bound=GridError)


@dataclass(frozen=True, slots=True)
class FirstStage:
    """A stage that is ready as soon as its job is admitted: its step, queue, rounded cost, fall-back queues,
    and what it is estimated to use.
    """

    step: int
    queue: str
    cost: int = 0
    fallbacks: tuple[str, ...] = ()
    expects: UsageEstimate = NO_ESTIMATE


def find_first_stages(plan: Plan, ready: Sequence[int]) -> tuple[FirstStage, ...]:
    """Return the stages that are ready at once, one of each sort. Pure stages wait for nothing."""
    found: dict[tuple[tuple[str, ...], int], FirstStage] = {}
    for number in ready:
        step = plan.steps[number]
        cost = round_up_cost(step.micro_dollars)
        if step.queue != queue_names.PURE and len(found) < MAX_FIRST_STAGES:
            found.setdefault((step.queues, cost), FirstStage(number, step.queue, cost, step.fallbacks))
    return tuple(found.values())


class LiveForecast:
    """Forecasts for the admissions of one process. Threads may share it."""

    def __init__(self, client: Redis, keys: Keys, batch_age: float) -> None:
        self._client = client
        self._keys = keys
        self._batch_age = batch_age
        self._cache = TtlCache[tuple[QueueSnapshot, dict[ForecastKey, StartForecast]]](SNAPSHOT_TTL_SECONDS)

    def _read(self) -> tuple[QueueSnapshot, dict[ForecastKey, StartForecast]]:
        return read_snapshot(self._client, self._keys, self._batch_age), {}

    def forecast(self, request: StageRequest) -> StartForecast:
        """Estimate when a stage would start, and how it would start sooner."""
        snapshot, known = self._cache.get(self._read)
        not_lent = {seat.seat for seat in snapshot.seats if not seat.may_be_lent(request.agent)}
        if not_lent:
            request = replace(request, excluded=request.excluded | not_lent)
        rooms = snapshot.find_rooms(request)
        key = replace(request, expects=NO_ESTIMATE), rooms
        if key not in known and len(known) >= MAX_FORECASTS:
            request = replace(request, agent=OTHER_AGENT)
            key = replace(request, expects=NO_ESTIMATE), rooms
        found = known.get(key)
        if found is None:
            found = known[key] = forecast_with_alternatives(snapshot, request)
        return found

    def check(
        self,
        job: str,
        stages: Sequence[FirstStage],
        options: JobOptions,
        excluded_seats: ExcludedSeats,
        *,
        queued: bool = False,
    ) -> None:
        """Check that a job's first stages could start within its own deadline and queue timeout.

        It costs no round trip if the job has neither, and two if nothing waits in its queues and no budget
        applies. `queued`: the job comes from the inbox. Raises DeadlineUnreachable.
        """
        if not stages or (options.deadline is None and options.queue_timeout is None):
            return
        keys = self._keys
        pipe = self._client.pipeline(transaction=False)
        pipe.exists(keys("job", job), keys("result", job), *([] if queued else [keys("submitted", job)]))
        pipe.time()
        pipe.hget(keys("submitted", job), "deadline")
        for stage in stages:
            pipe.exists(keys("classes", stage.queue))
            pipe.zrange(keys("idle", stage.queue), 0, 0)
        known, clock, deadline_ms, *found = pipe.execute()
        if known:  # admit.lua will say so
            return
        allowed = {"deadline": options.deadline, "queue_timeout": options.queue_timeout}
        if options.deadline is not None and queued and deadline_ms is not None:
            allowed["deadline"] = float(deadline_ms) / 1000 - clock[0] - clock[1] / 1e6
        limited = self._find_limited({seat for idle in found[1::2] for seat in idle})
        for stage, has_pending, idle in zip(stages, found[::2], found[1::2], strict=True):
            if has_pending or not idle or stage.fallbacks or idle[0] in limited:
                self._check_stage(stage, options, excluded_seats, allowed)

    def _find_limited(self, seats: set[bytes]) -> set[bytes]:
        """Return the seats with budgets: one may be idle because these have no room."""
        pipe = self._client.pipeline(transaction=False)
        for seat in seats:
            pipe.hmget(self._keys("seat", seat.decode()), OWN, GRID, "shared_budgets")
        found = pipe.execute() if seats else []
        return {seat for seat, fields in zip(seats, found, strict=True) if any(fields)}

    def _check_stage(
        self,
        stage: FirstStage,
        options: JobOptions,
        excluded_seats: ExcludedSeats,
        allowed: Mapping[str, float | None],
    ) -> None:
        forecast = self._forecast_first(stage, options, excluded_seats)
        seconds, option = min((s, name) for name, s in allowed.items() if s is not None)
        if seconds <= 0:  # the deadline has passed: the sweep ends the job
            return
        details: dict[str, Json] = {
            "path": option,
            "option": option,
            "queue": forecast.queue,
            "seconds": seconds,
        }
        if forecast.resets_in > seconds:
            when = f"could not start in less than {format_seconds(forecast.resets_in)}"
            details["reason"] = forecast.bottleneck
        elif forecast.low is not None and forecast.low > seconds:
            low, p50, high = (
                format_seconds(each or 0.0) for each in (forecast.low, forecast.p50, forecast.high)
            )
            when = f"would start in {p50} ({low} to {high})"
        else:
            return
        message = (
            f"The job could not start within its {option} of {format_seconds(seconds)}: "
            f"a stage of {forecast.queue} {when}"
        )
        raise _add_details(DeadlineUnreachable(message, details), forecast)

    def explain(
        self, error: E, stages: Sequence[FirstStage], options: JobOptions, excluded_seats: ExcludedSeats
    ) -> E:
        """Return a refusal with the details that tell its submitter what would help."""
        if "starts_in" in error.details:
            return error
        queue = error.details.get("queue")
        concerned = [stage for stage in stages if queue in (stage.queue, *stage.fallbacks)]
        stage = next(iter(concerned or stages), None)
        if queue and stage is not None and not concerned:  # the queue of a later step
            stage = FirstStage(-1, queue)
        if isinstance(error, NoLiveSeat) and error.path != queue:
            stage = None  # seats serve the queue, but none may take the stage: there is no line to stand in
        forecast = None
        if stage is not None:
            with suppress(RedisError, OSError):  # the refusal matters more
                forecast = self._forecast_first(stage, options, excluded_seats)
        return _add_details(error, forecast)

    def _forecast_first(
        self, stage: FirstStage, options: JobOptions, excluded_seats: ExcludedSeats
    ) -> StartForecast:
        """Forecast a stage at the first of its queues where a seat takes it.

        No faster queue is named if a pin or a demand excludes seats: whether the seats of another queue may
        take the stage is not known here.
        """
        by_queue = excluded_seats.get(stage.step, ())
        found = None
        for number, queue in enumerate((stage.queue, *stage.fallbacks)):
            names = by_queue[number] if by_queue else ""
            excluded = frozenset(names.split(",")) if names else frozenset[str]()
            forecast = self.forecast(
                StageRequest(queue, options.agent, options.prio, stage.cost, excluded, stage.expects)
            )
            is_open = forecast.concurrency and not forecast.resets_in
            if found is None or is_open or (forecast.concurrency and not found.concurrency):
                found = replace(forecast, faster_queue=None) if excluded - set(options.avoid) else forecast
            if is_open:
                break
        assert found is not None
        return found


def _add_details(error: E, forecast: StartForecast | None) -> E:
    return type(error)(error.message, explain_refusal(error, forecast))
