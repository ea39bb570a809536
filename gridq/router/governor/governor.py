"""Rank the live seats of every queue on a thread of the router: read their records, rank, write."""

from __future__ import annotations

from typing import Any

from gridq.limits.accounts import find_window
from gridq.process.periodic import PeriodicThread
from gridq.protocol.meters import GRID, OWN, WHOLE_GRID, Meter, parse_budget, parse_shared_accounts
from gridq.router.governor.ranking import Calendar, Seat, rank
from gridq.store.reliability import compute_reliability
from gridq.store.scripts import Scripts

RANKING_SECONDS = 5.0
"""The time between two rankings."""

RANK_TTL_MS = 60_000

CALENDAR_WINDOWS = ("month", "week", "day")

SharedBudgets = list[tuple[str, tuple[str, ...]]]
"""Names of shared budgets, each with the queues in which it applies; no queues: in all."""

SharedMeters = dict[tuple[str, tuple[str, ...]], list[Meter]]


class Governor:
    """Ranks the live seats until `stop`. Any number may run side by side: all write the same."""

    def __init__(self, scripts: Scripts) -> None:
        self.scripts = scripts
        self._ranked: set[str] = set()
        self._thread = PeriodicThread("governor", RANKING_SECONDS, self.rank_seats)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._thread.stop()

    def rank_seats(self) -> None:
        """Rank all queues once. A queue whose seats all tie is written only if it was ranked before."""
        ranked = rank(*self._read())
        distinct = {queue for queue, ranks in ranked.items() if len(set(ranks.values())) > 1}
        for queue in (distinct | self._ranked) & ranked.keys():
            self.scripts.rank(queue, ranked[queue], RANK_TTL_MS)
        self._ranked = distinct

    def _read(self) -> tuple[list[Seat], float, Calendar]:
        """Return the live seats, the server's time in ms, and the calendar windows now."""
        client, keys = self.scripts.client, self.scripts.keys
        found: list[Any] = client.zrange(keys("seats"), 0, -1)
        names = [name.decode() for name in found]
        pipe = client.pipeline(transaction=False)
        pipe.time()
        pipe.hmget(keys("calendar"), *CALENDAR_WINDOWS)
        for name in names:
            pipe.hmget(keys("seat", name), "queues", "reliability", OWN, GRID, "shared_budgets", "prices")
        (seconds, micros), windows, *replies = pipe.execute()
        now = seconds * 1000 + micros / 1000
        calendar = {
            period: find_window((text or b"").decode(), int(now))
            for period, text in zip(CALENDAR_WINDOWS, windows, strict=True)
        }
        shared = self._read_shared([_shared_budgets(fields[4]) for fields in replies], now)
        seats = [_seat(name, fields, now, shared) for name, fields in zip(names, replies, strict=True)]
        return seats, now, calendar

    def _read_shared(self, seats: list[SharedBudgets], now_ms: float) -> SharedMeters:
        """Return the meters of all shared budgets that apply to seats, by budget and queues."""
        each = {item for budgets in seats for item in budgets}
        names = sorted({name for name, _ in each})
        texts: Any = self.scripts.client.hmget(self.scripts.keys("meters"), names) if names else []
        by_name = dict(zip(names, texts, strict=True))
        return {(name, queues): parse_budget(by_name[name], name, now_ms, queues) for name, queues in each}


def _shared_budgets(raw: bytes | None) -> SharedBudgets:
    """Return the shared budgets that apply to a seat. That of the whole grid is left out: it applies to all
    seats alike and would only hide how they differ.
    """
    return [(name, queues) for name, queues in parse_shared_accounts(raw).items() if name != WHOLE_GRID]


def _seat(name: str, fields: list[Any], now_ms: float, shared: SharedMeters) -> Seat:
    queues, reliability_text, own, grid, shared_budgets, prices = fields
    meters = [*parse_budget(own, OWN, now_ms), *parse_budget(grid, GRID, now_ms)]
    for budget in _shared_budgets(shared_budgets):
        meters += shared[budget]
    cost_in, _, cost_out = (prices or b"").decode().partition(" ")
    return Seat(
        seat=name,
        queues=tuple((queues or b"").decode().split()),
        meters=tuple(meters),
        reliability=compute_reliability(reliability_text, now_ms),
        prices=(int(cost_in), int(cost_out)) if prices else None,
    )
