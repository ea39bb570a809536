"""What is known of the near future of queues, read from the server at most twice a second, and how a refusal
tells it.

Every error by which an admission refuses a job, and every 429 and 503 of a gateway, carries in its `details`:
`capability` (the queue; None where it is no queue that binds), `bottleneck` (which limit does), `position`
among the work that can be served (None: there is no line to stand in, or nobody who could take it),
`starts_in` (`low`, `p50`, `high`, seconds; None there too, and where nobody has measured how long stages
take), `retry_after` (seconds; None: no waiting helps) and `fix`, the smallest change that would help.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from redis import Redis

from gridq.errors import (
    AttemptsExhausted,
    BrokerError,
    DeadlineUnreachable,
    GridError,
    GridFull,
    JobBudgetExceeded,
    NoLiveSeat,
    QueueDropped,
    QueueFull,
    QuotaExceeded,
    SeatRateLimited,
)
from gridq.protocol.meters import UNKNOWN
from gridq.protocol.models import Json
from gridq.protocol.queue_names import kind_of
from gridq.seats import registry
from gridq.store.keys import Keys
from gridq.submission.queue_snapshot import Ask, Board, Line, Room, Seat
from gridq.submission.start_forecast import Forecast, elsewhere, forecast

FRESH = 0.5
"""Seconds for which what was read counts."""

SETS = 1000
"""Sets of what one agent has standing in one class of a queue that are looked at; of more some."""

ASKS = 100
"""Different stages that are looked ahead for in what was read once. For an agent beyond these it is foretold
as for one that has nothing standing there.
"""

LEASES = 512
"""Running stages whose beginning is looked at; of more it is taken that they are half done."""

ANYBODY = "*"
"""No agent's name."""

AGAIN = 5.0
"""Seconds until a refused submitter may try again where nothing better is known."""


Found = tuple[Ask, tuple[Room | None, ...]]
"""What was asked for, but for its estimate, and when the budgets of each seat have room for it."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What was found for one stage: its forecast, the queue that would run it now, and whether it would start
    sooner as interactive work.
    """

    forecast: Forecast
    elsewhere: str | None = None
    interactive: Forecast | None = None


class Lookout:
    """Looks at the queues, and keeps what it saw for a moment. Threads may share it."""

    def __init__(self, client: Redis, keys: Keys, batch_age: float) -> None:
        self._client = client
        self._keys = keys
        self._batch_age = batch_age
        self._begun = -math.inf
        self._seen: Future[tuple[Board, dict[Found, Outlook]]] = Future()
        self._lock = threading.Lock()

    def _look(self) -> tuple[Board, dict[Found, Outlook]]:
        """The queues and seats by a look that began at most FRESH seconds ago, and what was found on them
        before. Where it fails, it has failed for all who waited for it: none of them tries after the other.
        """
        with self._lock:
            mine = time.monotonic() - self._begun >= FRESH
            if mine:
                self._begun, self._seen = time.monotonic(), Future()
            seen = self._seen
        if mine:
            try:
                seen.set_result((read(self._client, self._keys, self._batch_age), {}))
            except BaseException as exc:
                with self._lock:
                    if self._seen is seen:
                        self._begun = -math.inf
                seen.set_exception(exc)
        return seen.result()

    def outlook(self, ask: Ask) -> Outlook:
        """When such a stage would start, and where it would now."""
        board, known = self._look()
        others = {seat.seat for seat in board.seats if not seat.may_be_lent(ask.agent)}
        if others:
            ask = replace(ask, excluded=ask.excluded | others)
        rooms = board.rooms(ask)  # all that its estimate decides
        seen = replace(ask, expects=UNKNOWN), rooms
        if seen not in known and len(known) >= ASKS:
            ask = replace(ask, agent=ANYBODY)
            seen = replace(ask, expects=UNKNOWN), rooms
        found = known.get(seen)
        if found is None:
            foretold = forecast(board, ask)
            if foretold.now:
                found = Outlook(foretold)
            else:
                sooner = forecast(board, replace(ask, prio=0)) if ask.prio else None
                found = Outlook(foretold, elsewhere(board, ask), sooner)
            known[seen] = found
        return found

    def forecast(self, ask: Ask) -> Forecast:
        """When such a stage would start."""
        return self.outlook(ask).forecast


def explain(error: GridError, outlook: Outlook | None = None) -> dict[str, Json]:
    """What a refused submitter is told, as the module says, whatever the error; what it says itself goes
    before.
    """
    told = outlook.forecast if outlook is not None else None
    queue = error.details.get("queue") or (told.queue if told is not None else None)
    found: dict[str, Json] = {
        "capability": queue,
        "bottleneck": _bottleneck(error, told),
        "position": told.position if told is not None else None,
        "starts_in": None,
    }
    if told is not None and None not in (told.low, told.p50, told.high):
        found["starts_in"] = {
            name: round(float(seconds or 0.0), 3)
            for name, seconds in (("low", told.low), ("p50", told.p50), ("high", told.high))
        }
    after = _retry_after(error, told)
    return found | error.details | {"retry_after": after, "fix": _fix(error, outlook, after)}


def _bottleneck(error: GridError, told: Forecast | None) -> str:
    """Which limit binds, of errors that do not say so themselves."""
    details = error.details
    match error:
        case QueueFull() | QueueDropped():
            return f"max_pending of {details.get('queue')} ({details.get('limit')})"
        case QuotaExceeded():
            return error.path or "a quota"
        case GridFull():
            return "the server's memory"
        case BrokerError():
            return "the grid's server"
        case SeatRateLimited() | AttemptsExhausted():
            return f"the rate limit of {error.worker or 'its provider'}"
    if told is not None and told.bottleneck:
        return told.bottleneck
    return error.message[:1].lower() + error.message[1:]


def _retry_after(error: GridError, told: Forecast | None) -> float | None:
    """Seconds after which another try may do; None: no waiting helps."""
    said = _seconds(error.details.get("retry_after"))
    if said is not None:
        return said
    rate = told.rate if told is not None else None
    low = None
    if told is not None:
        low = (told.turns_in or None) if told.low is None else told.low
    match error:
        case QuotaExceeded():
            return _again(error)
        case QueueFull():
            pending, limit, needed = (_number(error, name) for name in ("pending", "limit", "needed"))
            if needed > limit:
                return None
            return max(round((pending + needed - limit) / rate, 1), 1.0) if rate else AGAIN
        case DeadlineUnreachable() if low is not None:
            return max(round(low - _number(error, "seconds"), 1), 1.0)
        case NoLiveSeat() if low:  # until one that pauses is back
            return max(round(low, 1), 1.0)
    return AGAIN


def _again(error: QuotaExceeded) -> float | None:
    """When a job that a quota refused may do: once running ones have given back what they hold, or the
    window turns.
    """
    used, needed, limit = (_number(error, name) for name in ("used", "needed", "limit"))
    if isinstance(error, JobBudgetExceeded) or needed > limit:
        return None
    if 0 < used + needed <= limit:
        return AGAIN
    until = _until(error.details.get("retry_at"))
    return AGAIN if until is None else until


def _until(instant: object) -> float | None:
    """Seconds until an instant in ISO 8601; None where it is none."""
    try:
        at = datetime.fromisoformat(instant) if isinstance(instant, str) else None
    except ValueError:
        return None
    if at is None:
        return None
    left = ((at if at.tzinfo else at.replace(tzinfo=UTC)) - datetime.now(UTC)).total_seconds()
    return max(round(left, 3), 1.0)


def _seconds(told: object) -> float | None:
    """A time that an error says; None where it is none."""
    if isinstance(told, bool) or not isinstance(told, int | float) or not math.isfinite(told):
        return None
    return float(told)


def _number(error: GridError, name: str) -> float:
    return _seconds(error.details.get(name)) or 0.0


def _fix(error: GridError, outlook: Outlook | None, retry_after: float | None) -> str | None:
    changes = []
    if outlook is not None and outlook.elsewhere and not isinstance(error, QuotaExceeded | GridFull):
        changes.append(f"use {outlook.elsewhere}, which would run it now")
    if isinstance(error, DeadlineUnreachable):
        changes += _sooner(error, outlook)
    elif isinstance(error, QueueFull) and not changes:
        if retry_after is not None:
            changes.append(f"submit it again in {math.ceil(retry_after)} s")
        changes.append(f"raise max_pending of {error.details.get('queue')} in the quotas file")
    elif error.fix:
        changes.append(error.fix)
    if not changes and retry_after is not None:
        changes.append(f"ask again in {max(math.ceil(retry_after), 1)} s")
    return ", or ".join(changes) or None


def _sooner(error: DeadlineUnreachable, outlook: Outlook | None) -> list[str]:
    changes = []
    if outlook is not None:
        if outlook.forecast.turns_in:
            changes.append("raise a budget of its seats")
        sooner = outlook.interactive
        if sooner is not None and sooner.high is not None and sooner.high <= _number(error, "seconds"):
            changes.append("submit it as interactive")
        if outlook.forecast.high is not None or outlook.forecast.turns_in:
            late = max(outlook.forecast.high or 0.0, outlook.forecast.turns_in)
            option = error.details.get("option")
            changes.append(f"raise the {option} to {math.ceil(late)} s")
    return changes


# -- reading


def read(client: Redis, keys: Keys, batch_age: float) -> Board:
    """The seats and queues now, in six round trips. `batch_age`: GRIDQ_BATCH_AGE."""
    live = registry.live_seats(client, keys)
    look = client.pipeline(transaction=False)
    look.time()
    look.smembers(keys("queues"))
    for seat in live:
        look.hvals(keys("slots", seat.seat))
    clock, busy, *held = look.execute()
    now = clock[0] * 1000 + clock[1] / 1000
    lines, turns, clocks = _lines(client, keys, sorted(queue.decode() for queue in busy), now, batch_age)
    running = _running(client, keys, [lease for leases in held for lease in leases][:LEASES], now)
    seats = tuple(
        _seat(seat, [running.get(lease, ("", None)) for lease in leases], now / 1000)
        for seat, leases in zip(live, held, strict=True)
    )
    return Board(seats, lines, turns, clocks, now)


def _seat(seat: registry.LiveSeat, running: Iterable[tuple[str, float | None]], now: float) -> Seat:
    back_in: float | None = 0.0
    if seat.state != "ready":
        back_in = None if seat.until is None else max(seat.until - now, 0.001)
    usual = {queue: service.mean / 2 for queue, service in seat.service.items()}
    return Seat(
        seat.seat,
        frozenset(seat.queues),
        seat.concurrency,
        tuple((queue, usual.get(queue, 0.0) if since is None else since) for queue, since in running),
        seat.service,
        back_in,
        seat.per_minute,
        max(seat.rate_until - now, 0.0) if seat.rate_until is not None else 0.0,
        tuple(seat.lends_to),
        tuple(seat.meters),
        seat.rates,
    )


def _running(
    client: Redis, keys: Keys, leases: list[bytes], now: float
) -> dict[bytes, tuple[str, float | None]]:
    """Of each lease its stage's queue and for how many seconds it has run."""
    look = client.pipeline(transaction=False)
    for lease in leases:
        job, step, _ = lease.decode().split(":", 2)
        look.hmget(keys("job", job), f"h:{step}", f"st:{step}")
    found: dict[bytes, tuple[str, float | None]] = {}
    for lease, (head, since) in zip(leases, look.execute() if leases else (), strict=True):
        if head is not None:
            elapsed = None if since is None else max(now - float(since), 0.0) / 1000
            found[lease] = head.split(b" ", 1)[0].decode(), elapsed
    return found


def _lines(
    client: Redis, keys: Keys, queues: list[str], now: float, batch_age: float
) -> tuple[tuple[Line, ...], dict[tuple[str, str], float], dict[str, float]]:
    """What waits, by queue, class and agent, with the virtual times. Agents whose stages stand aside for want
    of money are not among them: nobody can serve those.
    """
    look = client.pipeline(transaction=False)
    for queue in queues:
        look.hkeys(keys("classes", queue))
    classes = [
        (queue, cls.decode())
        for queue, names in zip(queues, look.execute() if queues else (), strict=True)
        for cls in names
    ]
    look = client.pipeline(transaction=False)
    for queue, cls in classes:
        look.zrange(keys("ready", queue, cls), 0, max(SETS // len(classes), 1) - 1)
    waiting = [
        (queue, cls, agent.decode())
        for (queue, cls), agents in zip(classes, look.execute() if classes else (), strict=True)
        for agent in agents
    ]
    kinds = sorted({kind_of(queue) for queue, _, _ in waiting} | {kind_of(queue) for queue in queues})
    look = client.pipeline(transaction=False)
    for queue, cls, agent in waiting:
        look.zcard(keys("waiting", queue, cls, agent))
        look.zcount(keys("waiting", queue, cls, agent), "-inf", now - batch_age * 1000)
    asked = {kind: _fields(kind, queues, waiting) for kind in kinds}
    for kind, fields in asked.items():
        look.hmget(keys("virtual_time", kind), fields)
    replies: list[Any] = look.execute() if waiting or kinds else []
    turns: dict[tuple[str, str], float] = {}
    clocks: dict[str, float] = {}
    for (kind, fields), times in zip(asked.items(), replies[2 * len(waiting) :], strict=True):
        for name, at in zip(fields, times, strict=True):
            if at is None:
                continue
            if name.startswith("*"):
                clocks[name[1:] or kind] = float(at)
            else:
                turns[kind, name] = float(at)
    lines = []
    for number, (queue, cls, agent) in enumerate(waiting):
        count, aged = replies[2 * number], replies[2 * number + 1]
        prio, _, rest = cls.partition("/")
        cost, _, excluded = rest.partition("|")
        if count:
            names = frozenset(excluded.split(",")) if excluded and excluded != "*" else frozenset[str]()
            lines.append(Line(queue, agent, count, int(prio), aged, int(cost), names))
    return tuple(lines), turns, clocks


def _fields(kind: str, queues: list[str], waiting: list[tuple[str, str, str]]) -> list[str]:
    """The fields of a kind's virtual times: its own, those of its queues, those of the agents that wait."""
    agents = {agent for queue, _, agent in waiting if kind_of(queue) == kind}
    return ["*", *(f"*{queue}" for queue in queues if kind_of(queue) == kind), *sorted(agents)]
