"""The governor's eyes and hand: reads the live seats' records, ranks them for each queue, on a thread of the
router.
"""

from __future__ import annotations

from typing import Any

from gridq.limits.accounts import window
from gridq.process.periodic import PeriodicThread
from gridq.protocol.meters import GRID, OWN, WHOLE_GRID, Meter, parse_budget, parse_shared_accounts
from gridq.router.governor.ranking import Calendar, Seat, rank
from gridq.store.reliability import reliability
from gridq.store.scripts import Scripts

EVERY = 5.0
"""Seconds between two rankings."""

TTL_MS = 60_000

PERIODS = ("month", "week", "day")

Binding = list[tuple[str, tuple[str, ...]]]
"""Shared sheets by name, and the queues in which they bind; none: all."""

Shared = dict[tuple[str, tuple[str, ...]], list[Meter]]


class Governor:
    """Ranks the live seats until `stop`. Any number may run side by side: they write the same."""

    def __init__(self, scripts: Scripts) -> None:
        self.scripts = scripts
        self._ranked: set[str] = set()
        self._repeat = PeriodicThread("governor", EVERY, self.once)

    def start(self) -> None:
        self._repeat.start()

    def stop(self) -> None:
        self._repeat.stop()

    def once(self) -> None:
        """Read, rank, write. Of queues whose seats all tie only those are written that were ranked before."""
        ranked = rank(*self._read())
        apart = {queue for queue, ranks in ranked.items() if len(set(ranks.values())) > 1}
        for queue in (apart | self._ranked) & ranked.keys():
            self.scripts.rank(queue, ranked[queue], TTL_MS)
        self._ranked = apart

    def _read(self) -> tuple[list[Seat], float, Calendar]:
        """The live seats, the server's time in ms, and the windows of the calendar now."""
        client, keys = self.scripts.client, self.scripts.keys
        found: list[Any] = client.zrange(keys("seats"), 0, -1)
        names = [name.decode() for name in found]
        pipe = client.pipeline(transaction=False)
        pipe.time()
        pipe.hmget(keys("calendar"), *PERIODS)
        for name in names:
            pipe.hmget(keys("seat", name), "queues", "reliability", OWN, GRID, "shared_budgets", "prices")
        (seconds, micros), turns, *replies = pipe.execute()
        now = seconds * 1000 + micros / 1000
        calendar = {
            period: window((told or b"").decode(), int(now))
            for period, told in zip(PERIODS, turns, strict=True)
        }
        shared = self._shared([_binding(fields[4]) for fields in replies], now)
        seats = [_seat(name, fields, now, shared) for name, fields in zip(names, replies, strict=True)]
        return seats, now, calendar

    def _shared(self, bound: list[Binding], now_ms: float) -> Shared:
        """The meters of all shared sheets by which seats are bound, in these queues."""
        each = {item for binding in bound for item in binding}
        names = sorted({name for name, _ in each})
        texts: Any = self.scripts.client.hmget(self.scripts.keys("meters"), names) if names else []
        told = dict(zip(names, texts, strict=True))
        return {(name, queues): parse_budget(told[name], name, now_ms, queues) for name, queues in each}


def _binding(raw: bytes | None) -> Binding:
    """The shared sheets that bind a seat, and in which queues; not the whole grid's, which binds all seats
    alike and would only hide how they differ.
    """
    return [(name, queues) for name, queues in parse_shared_accounts(raw).items() if name != WHOLE_GRID]


def _seat(name: str, fields: list[Any], now_ms: float, shared: Shared) -> Seat:
    queues, rel, own, grid, bound, prices = fields
    meters = [*parse_budget(own, OWN, now_ms), *parse_budget(grid, GRID, now_ms)]
    for binding in _binding(bound):
        meters += shared[binding]
    cost_in, _, cost_out = (prices or b"").decode().partition(" ")
    return Seat(
        seat=name,
        queues=tuple((queues or b"").decode().split()),
        meters=tuple(meters),
        reliability=reliability(rel, now_ms),
        prices=(int(cost_in), int(cost_out)) if prices else None,
    )
