"""The governor's eyes and hand: reads the live seats' records, ranks them for each queue, on a thread of the
router.
"""

from __future__ import annotations

from typing import Any

from gridq.governor.ranking import SeatShare, rank
from gridq.meters import GRID, OWN, sheet
from gridq.repeat import Repeat
from gridq.store.reliability import reliability
from gridq.store.scripts import Scripts

EVERY = 5.0
"""Seconds between two rankings."""

TTL_MS = 60_000


class Governor:
    """Ranks the live seats until `stop`. Any number may run side by side: they write the same."""

    def __init__(self, scripts: Scripts) -> None:
        self.scripts = scripts
        self._ranked: set[str] = set()
        self._repeat = Repeat("governor", EVERY, self.once)

    def start(self) -> None:
        self._repeat.start()

    def stop(self) -> None:
        self._repeat.stop()

    def once(self) -> None:
        """Read, rank, write. Of queues whose seats all tie only those are written that were ranked before."""
        ranked = rank(self._read())
        apart = {queue for queue, ranks in ranked.items() if len(set(ranks.values())) > 1}
        for queue in (apart | self._ranked) & ranked.keys():
            self.scripts.rank(queue, ranked[queue], TTL_MS)
        self._ranked = apart

    def _read(self) -> list[SeatShare]:
        client, keys = self.scripts.client, self.scripts.keys
        found: list[Any] = client.zrange(keys("seats"), 0, -1)
        names = [name.decode() for name in found]
        pipe = client.pipeline(transaction=False)
        pipe.time()
        for name in names:
            pipe.hmget(keys("seat", name), "queues", "rel", OWN, GRID)
        (seconds, micros), *replies = pipe.execute()
        now = seconds * 1000 + micros / 1000
        return [_share(name, fields, now) for name, fields in zip(names, replies, strict=True)]


def _share(name: str, fields: list[Any], now_ms: float) -> SeatShare:
    """A seat by the tightest of its meters, its machine's own and the grid's."""
    queues, rel, own, grid = fields
    known = reliability(rel, now_ms)
    served = tuple((queues or b"").decode().split())
    meters = [*sheet(own, OWN, now_ms), *sheet(grid, GRID, now_ms)]
    if not meters:
        return SeatShare(name, served, reliability=known)
    tight = min(meters, key=lambda meter: meter.share)
    return SeatShare(name, served, tight.remaining, tight.limit, known)
