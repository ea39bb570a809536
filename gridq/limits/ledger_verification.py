"""Verify the counters against the ledger: rebuild all of them from its entries, and compare.

This works on a running grid. The counters and the id of the ledger's last entry are read at one instant. The
entries up to that one made the counters, because a script changes a counter and writes its entry in one call.
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

AccountKey = tuple[str, str]
"""A seat's id and `own` or `grid`; or an empty string and the name of a shared account."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A counter that differs from its entries, such as `agent ann: money of the month`.

    Both numbers are in micro-dollars, tokens, requests, jobs, stages or ms of GPU time, by `resource`.
    """

    counter: str
    counted: int
    recorded: int
    resource: str


@dataclass(frozen=True, slots=True)
class Verification:
    """The result: the numbers of `entries` that were read, up to the id `until`, and of `counters` that were
    compared.

    `notes` explain which counters could not be compared.
    """

    differences: tuple[Difference, ...]
    notes: tuple[str, ...]
    entries: int
    counters: int
    until: str


@dataclass
class Rebuilt:
    """The counters rebuilt from entries.

    `spent`: by the start of the month, what agents and teams used. `meters`: by account and meter
    (`money/day`), what was used in the window.
    """

    spent: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    meters: dict[AccountKey, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    known: set[str] = field(default_factory=set)
    entries: int = 0
    last: str = ""

    def add(self, entry: Entry) -> None:
        """Apply the next entry."""
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
            for who in _list_payers(entry):
                self._add_usage(("", who), {"jobs": 1})
        elif entry.charged is not None:
            if spent is not None:
                _count(spent, "money", entry, micro)
            used = {
                "money": micro,
                "tokens": entry.tokens_in + entry.tokens_out,
                "gpu_seconds": entry.gpu_ms,
            }
            if entry.charged == "agent" and entry.team:
                for who in _list_payers(entry):
                    self._add_usage(("", who), used)
            used["requests"] = entry.requests
            if entry.accounts or micro:
                self._add_usage((entry.seat, OWN), used)
                self._add_usage((entry.seat, GRID), used)
            for name in entry.accounts.split(","):
                self._add_usage(("", name), used)

    def _add_usage(self, which: AccountKey, used: dict[str, int]) -> None:
        """Add usage to the known meters of an account."""
        for name in self.meters.get(which, ()):
            self.meters[which][name] += used.get(name.partition("/")[0], 0)


def verify(client: Redis, keys: Keys) -> Verification:
    """Rebuild the counters of the present windows, and compare. Nothing is written."""
    rebuilt = Rebuilt()
    for entry in ledger.read_entries(client, keys):
        rebuilt.add(entry)
    stored = _read_counters(client, keys, rebuilt.known)
    if stored.last:
        for entry in ledger.read_entries(client, keys, after=rebuilt.last, to=stored.last):
            rebuilt.add(entry)
    return _compare(rebuilt, stored)


@dataclass(frozen=True, slots=True)
class _Counters:
    """The counters at one instant, and the id of the ledger's last entry."""

    last: str
    month: str
    spent: dict[str, int]
    meters: dict[AccountKey, list[Meter]]
    reserved: dict[AccountKey, Counter[str]]


def _read_counters(client: Redis, keys: Keys, seats: set[str]) -> _Counters:
    live: Any = client.zrange(keys("seats"), 0, -1)
    names = sorted(seats | {name.decode() for name in live})
    while True:
        clock: Any = client.time()
        turns: Any = client.hget(keys("calendar"), "month")
        month = _find_month(turns, clock)
        pipe = client.pipeline(transaction=True)
        pipe.time()
        pipe.hget(keys("calendar"), "month")
        pipe.xrevrange(keys("ledger"), count=1)
        pipe.hgetall(keys("spent", month))
        pipe.hvals(keys("lease_info"))
        pipe.hgetall(keys("meters"))
        pipe.hgetall(keys("reserved"))
        for name in names:
            pipe.hmget(keys("seat", name), OWN, GRID)
        clock, turns, newest, spent, who, shared, reserved_totals, *records = pipe.execute()
        if _find_month(turns, clock) == month:  # else a new month began in between
            break
    found: dict[AccountKey, list[Meter]] = {}
    for name, pair in zip(names, records, strict=True):
        for which, raw in zip((OWN, GRID), pair, strict=True):
            found[name, which] = parse_budget(raw, which, 0)
    for raw_name, raw in shared.items():
        found["", raw_name.decode()] = parse_budget(raw, raw_name.decode(), 0)
    reserved = _sum_reservations([by.decode() for by in who])
    for raw_name, amount in reserved_totals.items():
        resource, _, name = raw_name.decode().rpartition(" ")
        reserved["", name][resource or "money"] = int(amount)
    counts = {what.decode(): int(amount) for what, amount in spent.items()}
    return _Counters(newest[0][0].decode() if newest else "", month, counts, found, reserved)


def _sum_reservations(who: list[str]) -> dict[AccountKey, Counter[str]]:
    """Return what open leases have reserved of each account, by resource."""
    reserved: dict[AccountKey, Counter[str]] = defaultdict(Counter)
    for words in who:
        seat, _, money, *more = words.split()
        if len(more) < 3:  # no budget applies to its seat
            continue
        tokens, requests, *gpu_ms, names = more
        holds = {"money": int(money), "tokens": int(tokens), "requests": int(requests)}
        holds["parallel"] = holds["requests"]
        holds["gpu_seconds"] = sum(map(int, gpu_ms))
        for which in ((seat, OWN), (seat, GRID), *(("", name) for name in names.split(","))):
            reserved[which].update(holds)
    return reserved


def _find_month(turns: bytes | None, clock: tuple[int, int]) -> str:
    now = int(clock[0]) * 1000 + int(clock[1]) // 1000
    return str(find_window((turns or b"").decode(), now)[0])


def _list_payers(entry: Entry) -> list[str]:
    """Return the account names of an entry's agent and team."""
    agent = f"a:{entry.agent}"
    return [agent] if entry.team in ("", "-") else [agent, f"t:{entry.team}"]


def _count(spent: Counter[str], what: str, entry: Entry, amount: int) -> None:
    for who in _list_payers(entry):
        spent[f"{what} {who}"] += amount


def _compare(rebuilt: Rebuilt, stored: _Counters) -> Verification:
    found, notes = [], []
    recorded = rebuilt.spent.get(stored.month, Counter())
    counters = sorted(stored.spent.keys() | recorded.keys())
    for name in counters:
        if stored.spent.get(name, 0) != recorded[name]:
            what, _, who = name.partition(" ")
            words = f"{describe_account(who)}: {what} of the month"
            found.append(Difference(words, stored.spent.get(name, 0), recorded[name], what))
    compared = len(counters)
    for which, meters in sorted(stored.meters.items()):
        for meter in meters:
            counter = f"{_describe_account(*which)}: {meter.title}"
            reserved = stored.reserved[which][meter.resource] if which in stored.reserved else 0
            if meter.reserved != reserved:
                found.append(Difference(f"{counter}, reserved", meter.reserved, reserved, meter.resource))
            if meter.resource == "parallel":
                compared += 1
                continue
            if meter.name not in rebuilt.meters.get(which, {}):
                notes.append(f"{counter} is not compared: its window began before the ledger")
                continue
            compared += 1
            used = rebuilt.meters[which][meter.name]
            if meter.used != used:
                found.append(Difference(f"{counter}, used", meter.used, used, meter.resource))
    return Verification(tuple(found), tuple(notes), rebuilt.entries, compared, stored.last)


def _describe_account(seat: str, which: str) -> str:
    if not seat:
        return describe_account(which)
    return f"seat {seat}" + (" by the quotas file" if which == GRID else "")
