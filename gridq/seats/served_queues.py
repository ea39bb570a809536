"""Which queues are served now, and which were until lately: a job waits for those instead of being refused.

A queue is unserved for a second or two while its only worker, or the only router, starts again. The scripts
remember for 30 days when the last seat of a queue left or paused (`remember_served` in
store/lua/lib/seat_lifecycle.lua).

If others serve the queue, the seat that has gone may still be the only one for a job: it is pinned to that
seat, or the others are not lent to its agent, are avoided, or lack what a stage demands. Such a job waits for
the seat, which is named here by the queue that only it listens to (`make_seat_queue`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from redis import Redis

from gridq.errors import NoLiveSeat
from gridq.protocol.queue_names import get_kind, make_seat_queue
from gridq.store.keys import Keys

Queues = tuple[str, ...]
"""Queues of which one is enough: a capability's own and its fallbacks."""

RECENT_SECONDS = 600.0
"""How long after its last seat left jobs still wait for a queue."""

POLL_SECONDS = 0.2
"""Seconds between two looks while a job waits."""

MAX_LEFT = 1000
"""Queues whose last seat left that one look reads; those that were served last come first."""


@dataclass(frozen=True, slots=True)
class ServedQueues:
    """The queues at one instant.

    `served`: by a live seat that takes work; `paused`: only by live seats that take none now; `left`: those
    whose last seat left or paused within RECENT_SECONDS.
    """

    served: frozenset[str] = frozenset()
    paused: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds that live seats serve."""
        return frozenset(map(get_kind, self.served | self.paused))

    def may_be_back(self, queues: Iterable[str]) -> bool:
        """Return whether one of the queues is served, or was lately."""
        return any(queue in self.served or queue in self.paused or queue in self.left for queue in queues)


def ask_for_seats(pipe: Any, keys: Keys) -> None:
    """Add the commands of the first round trip to a pipeline, of either sort."""
    pipe.hkeys(keys("concurrency"))
    pipe.zrevrange(keys("served_queues"), 0, MAX_LEFT - 1, withscores=True)
    ask_for_gone_seats(pipe, keys)
    pipe.time()
    pipe.zrange(keys("seats"), 0, -1)


def ask_for_gone_seats(pipe: Any, keys: Keys) -> None:
    """Add the command that reads the seats whose worker has ended, with the time in milliseconds."""
    pipe.zrange(keys("gone_seats"), 0, -1, withscores=True)


def ask_for_queues(pipe: Any, keys: Keys, replies: Sequence[Any]) -> None:
    """Add the commands of the second round trip. `replies`: those of the first."""
    for seat in replies[-1]:
        pipe.hmget(keys("seat", seat.decode()), "queues", "draining")


def read_replies(replies: Sequence[Any], records: Iterable[Sequence[bytes | None]]) -> ServedQueues:
    """Return what the replies of both round trips say."""
    concurrency, left, gone, clock, seats = replies
    served = {queue.decode() for queue in concurrency}
    live = set[str]()
    for name, (queues, draining) in zip(seats, records, strict=True):
        live.update((queues or b"").decode().split())
        (served if draining is None else live).add(make_seat_queue(name.decode()))
    oldest = clock[0] - RECENT_SECONDS
    lately = {queue.decode() for queue, at in left if at > oldest}
    lately |= {make_seat_queue(seat) for seat in select_lately_gone(gone, clock[0])}
    return ServedQueues(frozenset(served), frozenset(live - served), frozenset(lately))


def select_lately_gone(gone: Iterable[tuple[bytes, float]], now: float) -> list[str]:
    """Return the seats that have gone within RECENT_SECONDS. `gone`: what `ask_for_gone_seats` asks for."""
    return [seat.decode() for seat, at_ms in gone if at_ms / 1000 > now - RECENT_SECONDS]


def read_served_queues(client: Redis, keys: Keys) -> ServedQueues:
    """Read the queues now."""
    first = client.pipeline(transaction=False)
    ask_for_seats(first, keys)
    replies = first.execute()
    second = client.pipeline(transaction=False)
    ask_for_queues(second, keys, replies)
    return read_replies(replies, second.execute() if replies[-1] else ())


def note_wait(error: NoLiveSeat, seconds: float) -> None:
    """Add to a refusal for how long its job has waited. Its `retry_after` counts from the end of the wait."""
    error.details["waited_seconds"] = round(seconds, 3)
    retry_after = error.details.get("retry_after")
    if isinstance(retry_after, int | float):
        error.details["retry_after"] = max(round(retry_after - seconds, 1), 1.0)
