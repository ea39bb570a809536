"""Admission's look ahead: whether a job could begin in the time that its submitter allows, and what a refused
one is told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from redis.exceptions import RedisError

from gridq.config.settings import Settings
from gridq.errors import (
    DeadlineUnreachable,
    GridError,
    GridFull,
    NoLiveSeat,
    QueueFull,
    QuotaExceeded,
)
from gridq.graph.plan import Plan
from gridq.jobs.record import JobOptions, round_up_cost
from gridq.protocol import queue_names
from gridq.protocol.meters import GRID, OWN, UNKNOWN, Expects
from gridq.protocol.models import Json
from gridq.store.scripts import Scripts
from gridq.submission.live_forecast import Lookout, Outlook, explain
from gridq.submission.queue_snapshot import Ask

REFUSALS = (DeadlineUnreachable, GridFull, NoLiveSeat, QueueFull, QuotaExceeded)
"""Refusals that another time, or a small change, would make good."""

STARTS = 8
"""Different stages of one job that are looked ahead for."""

LeftOut = Mapping[int, Sequence[str]]
"""Step → for each of its queues the seats that may not take it from there, with commas between."""

E = TypeVar("E", bound=GridError)


@dataclass(frozen=True, slots=True)
class Start:
    """A stage that is ready at once: its step, queue, rounded cost, the queues it falls back to, and what it
    is estimated to use.
    """

    step: int
    queue: str
    cost: int = 0
    fallbacks: tuple[str, ...] = ()
    expects: Expects = UNKNOWN


def starts(plan: Plan, ready: Sequence[int]) -> tuple[Start, ...]:
    """The stages of `plan` that are ready at once, of like ones the first; pure ones wait for nobody."""
    found: dict[tuple[tuple[str, ...], int], Start] = {}
    for step in ready:
        asks, cost = plan.steps[step], round_up_cost(plan.steps[step].micro_dollars)
        if asks.queue != queue_names.PURE and len(found) < STARTS:
            found.setdefault((asks.links, cost), Start(step, asks.queue, cost, asks.fallbacks))
    return tuple(found.values())


class Foresight:
    """Looks ahead for one process's admissions. Threads may share it."""

    def __init__(self, scripts: Scripts, config: Settings) -> None:
        self.scripts = scripts
        self.lookout = Lookout(scripts.client, scripts.keys, config.batch_age)

    def check(
        self,
        job: str,
        begin: Sequence[Start],
        options: JobOptions,
        left_out: LeftOut,
        *,
        queued: bool = False,
    ) -> None:
        """DeadlineUnreachable: the job asks for a deadline or a queue timeout of its own, and by what is
        known one of the stages that it begins with could not start in that time.

        Where nothing waits in their queues and no budget binds these are two questions to the server, and
        where neither was asked for none. `left_out`: step → the seats that may not take it. `queued`: it
        comes from the inbox.
        """
        if not begin or (options.deadline is None and options.queue_timeout is None):
            return
        keys = self.scripts.keys
        look = self.scripts.client.pipeline(transaction=False)
        look.exists(keys("job", job), keys("result", job), *([] if queued else [keys("submitted", job)]))
        look.time()
        look.hget(keys("submitted", job), "dl")
        for start in begin:
            look.exists(keys("classes", start.queue))
            look.zrange(keys("idle", start.queue), 0, 0)
        known, clock, due, *found = look.execute()
        if known:  # the script knows it too, and says so
            return
        allowed = {"deadline": options.deadline, "queue_timeout": options.queue_timeout}
        if options.deadline is not None and queued and due is not None:
            allowed["deadline"] = float(due) / 1000 - clock[0] - clock[1] / 1e6
        bound = self._bound({seat for idle in found[1::2] for seat in idle})
        for start, waits, idle in zip(begin, found[::2], found[1::2], strict=True):
            if waits or not idle or start.fallbacks or idle[0] in bound:
                self._check_one(start, options, left_out, allowed)

    def _bound(self, seats: set[bytes]) -> set[bytes]:
        """Those of `seats` that budgets bind: an idle one may be so as it has no room for anything."""
        look = self.scripts.client.pipeline(transaction=False)
        for seat in seats:
            look.hmget(self.scripts.keys("seat", seat.decode()), OWN, GRID, "shared")
        found = look.execute() if seats else []
        return {seat for seat, fields in zip(seats, found, strict=True) if any(fields)}

    def _check_one(
        self,
        start: Start,
        options: JobOptions,
        left_out: LeftOut,
        allowed: Mapping[str, float | None],
    ) -> None:
        outlook = self._outlook(start, options, left_out)
        told = outlook.forecast
        seconds, option = min((s, name) for name, s in allowed.items() if s is not None)
        if seconds <= 0:  # its time is over already: the sweep says so
            return
        details: dict[str, Json] = {"path": option, "option": option, "queue": told.queue, "seconds": seconds}
        if told.turns_in > seconds:
            when = f"could not start in less than {told.turns_in:.3g} s"
            details["reason"] = told.bottleneck
        elif told.low is not None and told.low > seconds:
            when = f"would start in {told.p50:.3g} s ({told.low:.3g} to {told.high:.3g})"
        else:
            return
        message = (
            f"The job could not begin within its {option} of {seconds:.3g} s: a stage of {told.queue} {when}"
        )
        raise _with(DeadlineUnreachable(message, details), outlook)

    def told(self, error: E, begin: Sequence[Start], options: JobOptions, left_out: LeftOut) -> E:
        """`error`, a refusal, with what its submitter can do about it in its details."""
        if "starts_in" in error.details:
            return error
        queue = error.details.get("queue")
        mine = [start for start in begin if queue in (start.queue, *start.fallbacks)] or list(begin[:1])
        if queue and mine and queue not in (mine[0].queue, *mine[0].fallbacks):  # of a later step
            mine = [Start(-1, queue)]
        if isinstance(error, NoLiveSeat) and error.path != queue:
            mine = []  # some serve the queue, and none of them may: there is nobody to stand in line for
        outlook = None
        if mine:
            with suppress(RedisError, OSError):  # the refusal itself counts for more
                outlook = self._outlook(mine[0], options, left_out)
        return _with(error, outlook)

    def _outlook(self, start: Start, options: JobOptions, left_out: LeftOut) -> Outlook:
        """What is known of such a stage, at the first of its queues where somebody takes it. No other queue
        is named where a pin or a demand leaves some seats out: whether those of another queue may take it is
        not known here.
        """
        apart = left_out.get(start.step, ())
        found = None
        for number, queue in enumerate((start.queue, *start.fallbacks)):
            ask = _ask(start, queue, options, apart[number] if apart else "")
            at = self.lookout.outlook(ask)
            open_now = at.forecast.concurrency and not at.forecast.turns_in
            if found is None or open_now or (at.forecast.concurrency and not found.forecast.concurrency):
                found = replace(at, elsewhere=None) if ask.excluded - set(options.avoid) else at
            if open_now:
                break
        assert found is not None
        return found


def _ask(start: Start, queue: str, options: JobOptions, apart: str) -> Ask:
    excluded = frozenset(apart.split(",")) if apart else frozenset[str]()
    return Ask(queue, options.agent, options.prio, start.cost, excluded, start.expects)


def _with(error: E, outlook: Outlook | None) -> E:
    return type(error)(error.message, explain(error, outlook))
