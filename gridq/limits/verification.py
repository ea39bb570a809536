"""Whether the counters are what the ledger says: all of them rebuilt from its entries, and compared.

It is right on a grid at work. The counters and the id of the ledger's last entry are read at one instant; the
entries up to that one are then what made them, for a script moves a counter and writes its entry in one call.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from redis import Redis

from gridq.limits import ledger
from gridq.limits.accounts import find_window
from gridq.limits.ledger import Entry
from gridq.protocol.meters import GRID, OWN, Meter, describe_account, parse_budget
from gridq.store.keys import Keys

Sheet = tuple[str, str]
"""A sheet: a seat's id and `own` or `grid`; or nothing and the name of a shared one."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A counter that is not what the entries come to. `counter`: `agent ann: money of the month`; both
    numbers in micro-dollars, tokens, requests, jobs or stages.
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
    each meter was used in its window, by its sheet and name (`money/day`).
    """

    spent: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    meters: dict[Sheet, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
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
            own, _, name = entry.queue.partition("/")
            which, name = (own, name) if entry.seat else (entry.agent, entry.queue)
            self.meters[entry.seat, which][name] = 0
        elif entry.what == "carried" and spent is not None:
            spent[f"{entry.queue} {entry.agent}"] += micro
        elif entry.what == "job" and spent is not None:
            _count(spent, "jobs", entry, 1)
            for who in _payers(entry):
                self._use(("", who), {"jobs": 1})
        elif entry.charged is not None:
            if spent is not None:
                _count(spent, "money", entry, micro)
            used = {"money": micro, "tokens": entry.tokens_in + entry.tokens_out}
            if entry.charged == "agent" and entry.team:
                for who in _payers(entry):
                    self._use(("", who), used)
            used["requests"] = entry.requests
            if entry.sheets or micro:
                self._use((entry.seat, OWN), used)
                self._use((entry.seat, GRID), used)
            for name in entry.sheets.split(","):
                self._use(("", name), used)

    def _use(self, which: Sheet, used: dict[str, int]) -> None:
        """Add to what is known of a sheet's meters."""
        for name in self.meters.get(which, ()):
            self.meters[which][name] += used.get(name.partition("/")[0], 0)


def verify(client: Redis, keys: Keys) -> Verified:
    """Rebuild the counters of the windows that run now, and compare. It only reads."""
    rebuilt = Rebuilt()
    for entry in ledger.read(client, keys):
        rebuilt.add(entry)
    kept = _cut(client, keys, rebuilt.known)
    if kept.last:
        for entry in ledger.read(client, keys, after=rebuilt.last, to=kept.last):
            rebuilt.add(entry)
    return _compare(rebuilt, kept)


@dataclass(frozen=True, slots=True)
class _Kept:
    """The counters at one instant, and the id of the last entry then."""

    last: str
    month: str
    spent: dict[str, int]
    meters: dict[Sheet, list[Meter]]
    held: dict[Sheet, Counter[str]]


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
        look.hvals(keys("lease_info"))
        look.hgetall(keys("meters"))
        look.hgetall(keys("reserved"))
        for name in names:
            look.hmget(keys("seat", name), OWN, GRID)
        clock, turns, newest, spent, who, shared, promised, *records = look.execute()
        if _month(turns, clock) == month:  # else it turned in between
            break
    found: dict[Sheet, list[Meter]] = {}
    for name, pair in zip(names, records, strict=True):
        for which, raw in zip((OWN, GRID), pair, strict=True):
            found[name, which] = parse_budget(raw, which, 0)
    for raw_name, raw in shared.items():
        found["", raw_name.decode()] = parse_budget(raw, raw_name.decode(), 0)
    held = _held([by.decode() for by in who])
    for raw_name, amount in promised.items():
        tokens, _, name = raw_name.decode().rpartition(" ")
        held["", name][tokens or "money"] = int(amount)
    counts = {what.decode(): int(amount) for what, amount in spent.items()}
    return _Kept(newest[0][0].decode() if newest else "", month, counts, found, held)


def _held(who: list[str]) -> dict[Sheet, Counter[str]]:
    """What open leases hold of each sheet, by things."""
    held: dict[Sheet, Counter[str]] = defaultdict(Counter)
    for words in who:
        seat, _, money, *more = words.split()
        if len(more) < 3:  # nothing bound its seat
            continue
        tokens, requests, names = more
        holds = {"money": int(money), "tokens": int(tokens), "requests": int(requests)}
        holds["parallel"] = holds["requests"]
        for which in ((seat, OWN), (seat, GRID), *(("", name) for name in names.split(","))):
            held[which].update(holds)
    return held


def _month(turns: bytes | None, clock: tuple[int, int]) -> str:
    now = int(clock[0]) * 1000 + int(clock[1]) // 1000
    return str(find_window((turns or b"").decode(), now)[0])


def _payers(entry: Entry) -> list[str]:
    """The agent of an entry, and its team."""
    agent = f"a:{entry.agent}"
    return [agent] if entry.team in ("", "-") else [agent, f"t:{entry.team}"]


def _count(spent: Counter[str], what: str, entry: Entry, amount: int) -> None:
    for who in _payers(entry):
        spent[f"{what} {who}"] += amount


def _compare(rebuilt: Rebuilt, kept: _Kept) -> Verified:
    found, notes = [], []
    entered = rebuilt.spent.get(kept.month, Counter())
    counters = sorted(kept.spent.keys() | entered.keys())
    for name in counters:
        if kept.spent.get(name, 0) != entered[name]:
            what, _, who = name.partition(" ")
            words = f"{describe_account(who)}: {what} of the month"
            found.append(Difference(words, kept.spent.get(name, 0), entered[name]))
    compared = len(counters)
    for which, meters in sorted(kept.meters.items()):
        for meter in meters:
            counter = f"{_whose(*which)}: {meter.title}"
            held = kept.held[which][meter.resource] if which in kept.held else 0
            if meter.reserved != held:
                found.append(Difference(f"{counter}, held", meter.reserved, held))
            if meter.resource == "parallel":
                compared += 1
                continue
            if meter.name not in rebuilt.meters.get(which, {}):
                notes.append(f"{counter} is not compared: its window began before what the ledger holds")
                continue
            compared += 1
            used = rebuilt.meters[which][meter.name]
            if meter.used != used:
                found.append(Difference(f"{counter}, used", meter.used, used))
    return Verified(tuple(found), tuple(notes), rebuilt.entries, compared, kept.last)


def _whose(seat: str, which: str) -> str:
    """A sheet in words."""
    if not seat:
        return describe_account(which)
    return f"seat {seat}" + (" by the quotas file" if which == GRID else "")
