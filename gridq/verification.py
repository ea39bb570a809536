"""Whether the counters are what the ledger says: all of them rebuilt from its entries, and compared.

It is right on a grid at work. The counters and the id of the ledger's last entry are read at one instant; the
entries up to that one are then what made them, for a script moves a counter and writes its entry in one call.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from redis import Redis

from gridq import entries
from gridq.entries import Entry
from gridq.ledger import window
from gridq.store.keys import Keys

OWN, GRID = "own", "grid"
"""The two ledgers of a seat: its machine's, and that of the grid's quotas file."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A counter that is not what the entries come to. `counter`: `agent ann: money of the month`; both
    numbers in micro-dollars or jobs.
    """

    counter: str
    kept: int
    entered: int


@dataclass(frozen=True, slots=True)
class Verified:
    """What came of it: `entries` were read, up to the id `until`; `counters` were compared. `notes`: in
    words, what could not be, and why.
    """

    differences: tuple[Difference, ...]
    notes: tuple[str, ...]
    entries: int
    counters: int
    until: str


@dataclass
class Rebuilt:
    """The counters as entries make them: by the start of the month what agents and teams used, and what of
    each ledger of a seat was used since it was full last.
    """

    spent: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    seats: dict[tuple[str, str], int] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    entries: int = 0
    last: str = ""

    def add(self, entry: Entry) -> None:
        """Take one more entry, the next one."""
        self.entries += 1
        self.last = entry.id
        if entry.seat:
            self.known.add(entry.seat)
        spent = self.spent[entry.month] if entry.month else None
        micro = entry.micro_dollars or 0
        if entry.what == "refill":
            self.seats[entry.seat, entry.queue] = 0
        elif entry.what == "carried" and spent is not None:
            spent[f"{entry.queue} {entry.agent}"] += micro
        elif entry.what == "job" and spent is not None:
            _count(spent, "jobs", entry, 1)
        elif entry.charged is not None:
            if spent is not None:
                _count(spent, "money", entry, micro)
            for kind in (OWN, GRID):
                if (entry.seat, kind) in self.seats:
                    self.seats[entry.seat, kind] += micro


def verify(client: Redis, keys: Keys) -> Verified:
    """Rebuild the counters of the windows that run now, and compare. It only reads."""
    rebuilt = Rebuilt()
    for entry in entries.read(client, keys):
        rebuilt.add(entry)
    kept = _cut(client, keys, rebuilt.known)
    if kept.last:
        for entry in entries.read(client, keys, after=rebuilt.last, to=kept.last):
            rebuilt.add(entry)
    return _compare(rebuilt, kept)


@dataclass(frozen=True, slots=True)
class _Kept:
    """The counters at one instant, and the id of the last entry then."""

    last: str
    month: str
    spent: dict[str, int]
    seats: dict[tuple[str, str], int]


_SEAT = ["budget", "left", "gbudget", "gleft"]


def _cut(client: Redis, keys: Keys, seats: set[str]) -> _Kept:
    live: Any = client.zrange(keys("seats"), 0, -1)
    names = sorted(seats | {name.decode() for name in live})
    while True:
        clock: Any = client.time()
        turns: Any = client.hget(keys("calendar"), "month")
        month = _month(turns, clock)
        look = client.pipeline(transaction=True)
        look.time()
        look.hget(keys("calendar"), "month")
        look.xrevrange(keys("ledger"), count=1)
        look.hgetall(keys("spent", month))
        look.hgetall(keys("who"))
        for name in names:
            look.hmget(keys("seat", name), _SEAT)
            look.hvals(keys("held", name))
        clock, turns, newest, spent, who, *records = look.execute()
        if _month(turns, clock) == month:  # else it turned in between
            break
    holds = {lease: int(by.split(b" ")[2]) for lease, by in who.items()}
    used: dict[tuple[str, str], int] = {}
    for name, (budget, left, gbudget, gleft), leases in zip(names, records[::2], records[1::2], strict=True):
        held = sum(holds.get(lease, 0) for lease in leases)
        for kind, limit, rest in ((OWN, budget, left), (GRID, gbudget, gleft)):
            if limit is not None and rest is not None:
                used[name, kind] = int(limit) - int(rest) - held
    counts = {what.decode(): int(amount) for what, amount in spent.items()}
    return _Kept(newest[0][0].decode() if newest else "", month, counts, used)


def _month(turns: bytes | None, clock: tuple[int, int]) -> str:
    now = int(clock[0]) * 1000 + int(clock[1]) // 1000
    return str(window((turns or b"").decode(), now)[0])


def _count(spent: Counter[str], what: str, entry: Entry, amount: int) -> None:
    spent[f"{what} a:{entry.agent}"] += amount
    if entry.team not in ("", "-"):
        spent[f"{what} t:{entry.team}"] += amount


def _compare(rebuilt: Rebuilt, kept: _Kept) -> Verified:
    found, notes = [], []
    entered = rebuilt.spent.get(kept.month, Counter())
    counters = sorted(kept.spent.keys() | entered.keys())
    for name in counters:
        if kept.spent.get(name, 0) != entered[name]:
            what, _, who = name.partition(" ")
            kind = "agent" if who[:2] == "a:" else "team"
            words = f"{kind} {who[2:]}: {what} of the month"
            found.append(Difference(words, kept.spent.get(name, 0), entered[name]))
    compared = len(counters)
    for (seat, kind), used in sorted(kept.seats.items()):
        counter = f"seat {seat}: {'budget' if kind == OWN else 'grid budget'} used"
        if (seat, kind) not in rebuilt.seats:
            notes.append(f"{counter} is not compared: its window began before what the ledger holds")
            continue
        compared += 1
        if used != rebuilt.seats[seat, kind]:
            found.append(Difference(counter, used, rebuilt.seats[seat, kind]))
    return Verified(tuple(found), tuple(notes), rebuilt.entries, compared, kept.last)
