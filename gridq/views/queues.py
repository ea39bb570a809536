"""What waits, where, and for whom: the queues of capabilities, and in words what a job waits for."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from redis import Redis

from gridq.limits import accounts
from gridq.protocol import queue_names as names
from gridq.protocol.meters import describe_shortage, format_local_time
from gridq.protocol.models import Json
from gridq.protocol.money import format_dollars
from gridq.protocol.states import JobState, StageState
from gridq.seats.registry import LiveSeat, explain_no_seat, read_live_seats
from gridq.store.keys import Keys
from gridq.views.jobs import JobView, StageView, by_step

AGENTS = 1000
"""Agents of one class of a queue whose oldest stage is looked at."""


@dataclass(slots=True)
class QueueView:
    """One capability's queue, at one instant.

    `pending` counts the ready stages by priority (for `gridq:router` the jobs that no router has admitted),
    `running` the stages claimed from it, `wake-ups` the messages that wait in it, `concurrency` those of the seats
    that take work from it, `seats` all live seats that serve it. `oldest_ms` is how long its oldest stage
    waits, `oldest` the same by priority.
    """

    queue: str
    pending: dict[str, int] = field(default_factory=lambda: {"interactive": 0, "batch": 0})
    running: int = 0
    wake_ups: int = 0
    concurrency: int = 0
    seats: list[str] = field(default_factory=list)
    oldest_ms: float | None = None
    oldest: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        """The fields as a JSON object."""
        return asdict(self)


def queues(client: Redis, keys: Keys) -> list[QueueView]:
    """Every queue that has something in it or a live seat that serves it, by name, the routers' first."""
    seats = read_live_seats(client, keys)
    look = client.pipeline(transaction=False)
    look.time()
    look.smembers(keys("queues"))
    look.hgetall(keys("concurrency"))
    look.zcard(keys("inbox"))
    look.zrange(keys("leases"), 0, -1)
    server_time, busy, concurrency, inbox, leases = look.execute()
    now = server_time[0] * 1000 + server_time[1] / 1000
    concurrency = {queue.decode(): int(count) for queue, count in concurrency.items()}
    found = (
        {queue.decode() for queue in busy} | concurrency.keys() | {q for seat in seats for q in seat.queues}
    )
    views = {queue: QueueView(queue, concurrency=concurrency.get(queue, 0)) for queue in sorted(found)}
    for seat in seats:
        for queue in seat.queues:
            views[queue].seats.append(seat.seat)
    _read(client, keys, views, now)
    for queue, count in _running(client, keys, leases).items():
        views.setdefault(queue, QueueView(queue)).running = count
    router = QueueView(
        names.ROUTER, {"interactive": inbox, "batch": 0}, concurrency=concurrency.get(names.PURE, 0)
    )
    router.wake_ups = int(client.llen(keys.queue(names.ROUTER)))
    router.seats = [seat.seat for seat in seats if names.PURE in seat.queues]
    return [router, *(views[queue] for queue in sorted(views))]


def _read(client: Redis, keys: Keys, views: dict[str, QueueView], now: float) -> None:
    """Classes, wake-ups and the oldest stage of each queue."""
    look = client.pipeline(transaction=False)
    for queue in views:
        look.hgetall(keys("classes", queue))
        look.llen(keys.queue(queue))
    replies: list[Any] = look.execute() if views else []
    classes = []
    for view, counts, wake_ups in zip(views.values(), replies[::2], replies[1::2], strict=True):
        view.wake_ups = wake_ups
        for cls, count in counts.items():
            name = cls.decode()
            view.pending[_priority(name)] += int(count)
            classes.append((view, name))
    look = client.pipeline(transaction=False)
    for view, name in classes:
        look.zrange(keys("ready", view.queue, name), 0, AGENTS - 1)
    waiting = [
        (view, _priority(name), keys("waiting", view.queue, name, agent.decode()))
        for (view, name), agents in zip(classes, look.execute() if classes else (), strict=True)
        for agent in agents
    ]
    look = client.pipeline(transaction=False)
    for *_, key in waiting:
        look.zrange(key, 0, 0, withscores=True)
    for (view, priority, _), first in zip(waiting, look.execute() if waiting else (), strict=True):
        if first:
            waits = now - first[0][1]
            view.oldest_ms = max(view.oldest_ms or 0.0, waits)
            view.oldest[priority] = max(view.oldest.get(priority, 0.0), waits)


def _priority(cls: str) -> str:
    """The priority of a class of pending stages, which begins with the number that the scripts compare."""
    return "interactive" if cls.startswith("0/") else "batch"


def _running(client: Redis, keys: Keys, leases: list[bytes]) -> Counter[str]:
    look = client.pipeline(transaction=False)
    for lease in leases:
        job, step, _ = lease.decode().split(":", 2)
        look.hget(keys("job", job), f"header:{step}")
    heads: list[bytes | None] = look.execute() if leases else []
    return Counter(head.split(b" ", 1)[0].decode() for head in heads if head is not None)


def waits_for(client: Redis, keys: Keys, view: JobView) -> str:
    """In words, what the job waits for: a router, a seat, a stage that runs, a delay. Empty where it has
    ended or is not known. It completes "it waits for …".
    """
    if view.state is JobState.QUEUED:
        if any(names.PURE in seat.queues for seat in read_live_seats(client, keys)):
            return "a router to admit it"
        return "a router to admit it: none is live, start one with celery -A gridq.app worker -Q gridq:router"
    if view.state is not JobState.RUNNING:
        return ""
    if not view.stages:  # too many to be looked at one by one
        return f"{view.of - view.done} of its {view.of} steps"
    isolated = view.having(StageState.QUARANTINED)
    if isolated:  # whatever else runs, the job cannot end without an operator
        return _operator(isolated[0])
    running = by_step(view.having(StageState.RUNNING))
    if running:
        more = len(running) - 1
        others = f" (and {more} other{'' if more == 1 else 's'})" if more else ""
        return f"{running[0][0].stage}, which runs on {running[0][0].seat}{others}"
    ready = view.having(StageState.READY)
    if not ready:
        return "the delay of a Retry, or the next stage to become ready"
    first = max(ready, key=lambda stage: stage.wait_ms or 0.0)
    if client.exists(keys("parked", view.agent)):
        own: Any = client.hget(keys("job", view.job), "charged_team")
        return _used_up(accounts.read(client, keys, "UTC"), view.agent, (own or b"").decode())
    live = read_live_seats(client, keys)
    team = ""
    if any(seat.lends_to for seat in live):
        found: list[Any] = client.hmget(keys("job", view.job), "charged_team", "team")
        team = next((name.decode() for name in found if name), "")
    queue = " or ".join(first.links) or first.queue
    return f"a seat of {queue} to run {first.stage}: {why(first, live, view.agent, team)}"


def _used_up(books: accounts.AccountsReport, agent: str, team: str) -> str:
    """Of what an agent or its team has used more than it may."""
    told = []
    for one in books.accounts:
        mine = (one.kind, one.name) in (("agent", agent), ("team", team)) and not one.what.startswith("jobs")
        if mine and one.limit is not None and (one.limit == 0 or one.spent > one.limit):
            used, limit = (format_dollars(n) if one.money else str(n) for n in (one.spent, one.limit))
            until = f", until {format_local_time(one.until)}" if one.until is not None else ""
            told.append(f"{one.kind} {one.name} has used {used} of {limit} of its {one.what}{until}")
    return f"what the agent {agent!r} or its team may use is used up" + "".join(f"; {each}" for each in told)


def _operator(stage: StageView) -> str:
    until = time.strftime("%H:%M", time.localtime(stage.until or 0))
    return (
        f"an operator: stage {stage.stage} killed the process that ran it twice, at last on worker "
        f"{stage.seat}; until {until} (gridq quarantine)"
    )


def why(stage: StageView, live: list[LiveSeat], agent: str = "", team: str = "") -> str:
    """In words, why a ready stage of an agent is not running, given the live seats."""
    serving = [seat for seat in live if stage.queue in seat.queues]
    if not serving:
        return f"no live seat serves it; {explain_no_seat(stage.queue, live)}"
    others = [seat for seat in serving if not seat.lent_to(agent, team)]
    if len(others) == len(serving):
        return "; ".join(f"{seat.seat} is lent to {', '.join(seat.lends_to)} alone" for seat in others[:3])
    serving = [seat for seat in serving if seat not in others]
    able = [seat for seat in serving if seat.seat not in stage.excluded]
    if not able:  # one that fell ill of it comes back to it once it is well
        resting = [seat for seat in serving if seat.state != "ready"]
        well = [seat.seat for seat in serving if seat.state == "ready"]
        failed = [f"{' and '.join(well[:3])} failed it or lacks what it needs"] if well else []
        if not resting:
            return f"{failed[0]}, and nobody else serves it"
        return "; ".join([*map(_unwell, resting[:3]), *failed])
    ready = [seat for seat in able if seat.state == "ready"]
    if not ready:
        return "; ".join(map(_unwell, able[:3]))
    concurrency, busy = sum(seat.concurrency for seat in ready), sum(seat.busy for seat in ready)
    if busy >= concurrency:
        return f"all {concurrency} slots are busy" if concurrency > 1 else "its only slot is busy"
    quick = [seat for seat in ready if seat.rate_until is not None]
    if len(quick) == len(ready):
        again = min(seat.rate_until or 0.0 for seat in quick) - time.time()
        return (
            f"{quick[0].seat} has made its {quick[0].per_minute} requests of a minute; again in {again:.0f} s"
        )
    found = [(seat, seat.lacking(stage.queue, stage.cost, stage.expects)) for seat in ready]
    poor = [(seat, meter) for seat, meter in found if meter is not None]
    if len(poor) == len(ready):
        told = dict.fromkeys(describe_shortage(meter, seat.seat) for seat, meter in poor)  # what seats share: once
        return "a budget does not suffice: " + "; ".join(list(told)[:3])
    return f"{ready[0].seat} has a free slot and is about to look"


def _unwell(seat: LiveSeat) -> str:
    text = f"{seat.seat} is {seat.state}"
    if seat.until is not None:
        text += f" for another {max(seat.until - time.time(), 0):.0f} s"
    return f"{text}: {seat.reason}" if seat.reason else text
