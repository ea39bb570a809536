"""Which queues are served now, and which were until lately: a job waits for those instead of being refused.

A queue is unserved for a second or two while its only worker, or the only router, starts again. The scripts
remember for 30 days when the last seat of a queue left or paused (`remember_served` in
store/lua/lib/seat_lifecycle.lua).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from redis import Redis

from gridq.errors import NoLiveSeat
from gridq.protocol.queue_names import get_kind
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
    pipe.time()
    pipe.zrange(keys("seats"), 0, -1)


def ask_for_queues(pipe: Any, keys: Keys, replies: Sequence[Any]) -> None:
    """Add the commands of the second round trip. `replies`: those of the first."""
    for seat in replies[-1]:
        pipe.hget(keys("seat", seat.decode()), "queues")


def read_replies(replies: Sequence[Any], queues: Iterable[bytes | None]) -> ServedQueues:
    """Return what the replies of both round trips say."""
    concurrency, left, clock, _ = replies
    live = {queue for text in queues if text is not None for queue in text.decode().split()}
    served = frozenset(queue.decode() for queue in concurrency)
    oldest = clock[0] - RECENT_SECONDS
    return ServedQueues(
        served, frozenset(live - served), frozenset(queue.decode() for queue, at in left if at > oldest)
    )


def read_served_queues(client: Redis, keys: Keys) -> ServedQueues:
    """Read the queues now."""
    first = client.pipeline(transaction=False)
    ask_for_seats(first, keys)
    replies = first.execute()
    second = client.pipeline(transaction=False)
    ask_for_queues(second, keys, replies)
    return read_replies(replies, second.execute() if replies[-1] else ())


def find_unserved(error: NoLiveSeat) -> Queues:
    """Return the queues of which the refused stage needs one; none if seats serve them but lack something
    that the stage needs.
    """
    if "queue" not in error.details or error.path != error.details["queue"]:
        return ()
    return tuple(error.details.get("queues") or (error.details["queue"],))


def note_wait(error: NoLiveSeat, seconds: float) -> None:
    """Add to a refusal for how long its job has waited. Its `retry_after` counts from the end of the wait."""
    error.details["waited_seconds"] = round(seconds, 3)
    retry_after = error.details.get("retry_after")
    if isinstance(retry_after, int | float):
        error.details["retry_after"] = max(round(retry_after - seconds, 1), 1.0)
