"""The queues of capabilities: what waits in them, and which seats serve them."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from redis import Redis

from gridq.protocol import queue_names
from gridq.protocol.models import Json
from gridq.seats.registry import read_live_seats
from gridq.store.keys import Keys

MAX_AGENTS = 1000
"""Agents of one class of a queue whose oldest stage is read."""


@dataclass(slots=True)
class QueueView:
    """One capability's queue, at one instant.

    `pending`: the ready stages by priority; for `gridq:router` the jobs that no router has admitted.
    `running`: the stages that seats claimed from it. `wake_ups`: the messages in it. `concurrency`: the slots
    of the seats that take work from it. `seats`: all live seats that serve it. `oldest_ms`: how long its
    oldest stage waits; `oldest`: the same by priority.
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
        return asdict(self)


def read_queues(client: Redis, keys: Keys) -> list[QueueView]:
    """Return the queues that hold something or have a live seat, by name, the routers' queue first."""
    seats = read_live_seats(client, keys)
    pipe = client.pipeline(transaction=False)
    pipe.time()
    pipe.smembers(keys("queues"))
    pipe.hgetall(keys("concurrency"))
    pipe.zcard(keys("inbox"))
    pipe.zrange(keys("leases"), 0, -1)
    server_time, busy, concurrency, inbox, leases = pipe.execute()
    now = server_time[0] * 1000 + server_time[1] / 1000
    concurrency = {queue.decode(): int(count) for queue, count in concurrency.items()}
    names = (
        {queue.decode() for queue in busy} | concurrency.keys() | {q for seat in seats for q in seat.queues}
    )
    views = {queue: QueueView(queue, concurrency=concurrency.get(queue, 0)) for queue in sorted(names)}
    for seat in seats:
        for queue in seat.queues:
            views[queue].seats.append(seat.seat)
    _fill_pending(client, keys, views, now)
    for queue, count in _count_running(client, keys, leases).items():
        views.setdefault(queue, QueueView(queue)).running = count
    router = QueueView(
        queue_names.ROUTER,
        {"interactive": inbox, "batch": 0},
        concurrency=concurrency.get(queue_names.PURE, 0),
    )
    router.wake_ups = int(client.llen(keys.queue(queue_names.ROUTER)))
    router.seats = [seat.seat for seat in seats if queue_names.PURE in seat.queues]
    return [router, *(views[queue] for queue in sorted(views))]


def _fill_pending(client: Redis, keys: Keys, views: dict[str, QueueView], now: float) -> None:
    """Fill in the pending stages, the wake-ups and the oldest stage of each queue."""
    pipe = client.pipeline(transaction=False)
    for queue in views:
        pipe.hgetall(keys("classes", queue))
        pipe.llen(keys.queue(queue))
    replies: list[Any] = pipe.execute() if views else []
    classes = []
    for view, counts, wake_ups in zip(views.values(), replies[::2], replies[1::2], strict=True):
        view.wake_ups = wake_ups
        for cls, count in counts.items():
            name = cls.decode()
            view.pending[_get_priority(name)] += int(count)
            classes.append((view, name))
    pipe = client.pipeline(transaction=False)
    for view, name in classes:
        pipe.zrange(keys("ready", view.queue, name), 0, MAX_AGENTS - 1)
    waiting = [
        (view, _get_priority(name), keys("waiting", view.queue, name, agent.decode()))
        for (view, name), agents in zip(classes, pipe.execute() if classes else (), strict=True)
        for agent in agents
    ]
    pipe = client.pipeline(transaction=False)
    for *_, key in waiting:
        pipe.zrange(key, 0, 0, withscores=True)
    for (view, priority, _), first in zip(waiting, pipe.execute() if waiting else (), strict=True):
        if first:
            age = now - first[0][1]
            view.oldest_ms = max(view.oldest_ms or 0.0, age)
            view.oldest[priority] = max(view.oldest.get(priority, 0.0), age)


def _get_priority(cls: str) -> str:
    """Return the priority of a class of pending stages. Its name begins with that as a number."""
    return "interactive" if cls.startswith("0/") else "batch"


def _count_running(client: Redis, keys: Keys, leases: list[bytes]) -> Counter[str]:
    pipe = client.pipeline(transaction=False)
    for lease in leases:
        job, step, _ = lease.decode().split(":", 2)
        pipe.hget(keys("job", job), f"header:{step}")
    headers: list[bytes | None] = pipe.execute() if leases else []
    return Counter(head.split(b" ", 1)[0].decode() for head in headers if head is not None)
