"""The governor's eyes and hand: reads the live seats' ledgers, writes `rank:<queue>`, on a thread of the
router.
"""

from __future__ import annotations

from typing import Any

from redis import Redis

from gridq.governor.ranking import SeatShare, rank
from gridq.repeat import Repeat
from gridq.store.keys import Keys

EVERY = 5.0
"""Seconds between two rankings."""

TTL_MS = 60_000


class Governor:
    """Ranks the live seats until `stop`. Any number may run side by side: they write the same."""

    def __init__(self, client: Redis, keys: Keys) -> None:
        self.client = client
        self.keys = keys
        self._repeat = Repeat("governor", EVERY, self.once)

    def start(self) -> None:
        self._repeat.start()

    def stop(self) -> None:
        self._repeat.stop()

    def once(self) -> None:
        """Read, rank, write. Only queues with a seat that has a budget are written: elsewhere all tie."""
        seats = self._read()
        limited = {queue for seat in seats if seat.budget is not None for queue in seat.queues}
        pipe = self.client.pipeline(transaction=False)
        for queue, ranks in rank(seats).items():
            if queue in limited:
                key = self.keys("rank", queue)
                pipe.zadd(key, dict(ranks))
                pipe.pexpire(key, TTL_MS)
        pipe.execute()

    def _read(self) -> list[SeatShare]:
        found: list[Any] = self.client.zrange(self.keys("seats"), 0, -1)
        names = [name.decode() for name in found]
        pipe = self.client.pipeline(transaction=False)
        for name in names:
            pipe.hmget(self.keys("seat", name), "queues", "left", "budget", "gleft", "gbudget")
        return [_share(name, fields) for name, fields in zip(names, pipe.execute(), strict=True)]


def _share(name: str, fields: list[Any]) -> SeatShare:
    """A seat by the tighter of its two ledgers: its machine's own and the grid's."""
    queues, *ledgers = fields
    served = tuple((queues or b"").decode().split())
    pairs = [
        (int(left), int(budget)) for left, budget in (ledgers[:2], ledgers[2:]) if None not in (left, budget)
    ]
    if not pairs:
        return SeatShare(name, served)
    return SeatShare(name, served, *min(pairs, key=lambda pair: pair[0] / pair[1] if pair[1] else 0.0))
