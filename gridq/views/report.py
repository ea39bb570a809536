"""What each seat was worth in a month, from the ledger, and what that comes to in a year: of S seats, each of
which costs C a month, a part u is used, and of what lies idle a part r can be had.

Money is micro-dollars. A number that nobody has told and that the ledger does not hold stays None: nothing is
guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import Any

from redis import Redis

from gridq.limits import ledger
from gridq.limits.ledger import LATE, RECORDED, Entry
from gridq.limits.quotas_file import SeatLimit
from gridq.protocol.meters import OWN, Meter, first_use_window_ms, parse_budget
from gridq.protocol.models import Advertisement, Json, Limit
from gridq.seats import registry
from gridq.store.keys import Keys

CALENDAR_MS = {"week": 7 * 86_400_000, "day": 86_400_000}


@dataclass(frozen=True, slots=True)
class Figure:
    """A number, and where it comes from; `value` None: nobody knows it, and `source` says what would."""

    value: float | None
    source: str


@dataclass(slots=True)
class SeatReport:
    """One seat's month.

    `recorded` counts the attempts that came to something, `wasted_attempts` those that did not, `unpriced`
    those of either that used something without a price, as a subscription's do; `recorded_for_others` those
    recorded for others than the seat's `owner`. `used`, `lent` and `wasted` are the same in money, as far as
    there are prices: see `known`. `cost` is paid for the seat a month, `capacity` what its budget allows in
    the month; `reclaimed` the part of its cost that others had of it: cost · lent / capacity.
    """

    seat: str
    owner: str | None = None
    recorded: int = 0
    wasted_attempts: int = 0
    unpriced: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    used: int = 0
    wasted: int = 0
    recorded_for_others: int | None = None
    lent: int | None = None
    cost: int | None = None
    capacity: int | None = None

    @property
    def reclaimed(self) -> int | None:
        if self.cost is None or self.lent is None or not self.capacity or self.unpriced:
            return None
        return self.cost * self.lent // self.capacity

    def add(self, entry: Entry) -> None:
        """Take one attempt more, or what is heard of one afterwards."""
        micro = entry.micro_dollars or 0
        self.tokens_in += entry.tokens_in
        self.tokens_out += entry.tokens_out
        self.unpriced += entry.used and entry.micro_dollars is None
        if entry.what != RECORDED:
            self.wasted_attempts += entry.what != LATE
            self.wasted += micro
            return
        self.recorded += 1
        self.used += micro
        if self.owner is not None and entry.agent != self.owner:
            self.recorded_for_others = (self.recorded_for_others or 0) + 1
            self.lent = (self.lent or 0) + micro

    def known(self, micro: int | None) -> int | None:
        """One of its sums of money; None where that is nothing, and something was used without a price."""
        return None if self.unpriced and not micro else micro

    def to_json(self) -> dict[str, Json]:
        """The fields for programs, `reclaimed` among them."""
        sums = {name: self.known(getattr(self, name)) for name in ("used", "wasted", "lent")}
        return asdict(self) | sums | {"reclaimed": self.reclaimed}


@dataclass(frozen=True, slots=True)
class Report:
    """A month, `start` to `end` in ms: its seats, and the model's figures. The ledger holds it from `since`
    to `until`; both None: nothing of it. `idle` and `reclaimable` are micro-dollars a year.
    """

    start: int
    end: int
    since: int | None
    until: int | None
    seats: tuple[SeatReport, ...]
    model: Mapping[str, Figure] = field(default_factory=dict)

    @property
    def idle(self) -> int | None:
        """S · C · 12 · (1 - u), nothing where more was used than was paid for."""
        count, cost, use = (self.model[name].value for name in "SCu")
        if count is None or cost is None or use is None:
            return None
        return round(count * cost * 12 * max(1 - use, 0))

    @property
    def reclaimable(self) -> int | None:
        """The part r of what lies idle."""
        part = self.model["r"].value
        return None if part is None or self.idle is None else round(self.idle * part)


@dataclass(frozen=True, slots=True)
class Told:
    """What the company says of itself. `limits`: the seats' part of its quotas file, from `file`. Each other
    number stands for what the ledger or the file would say; `seat_cost` for seats of which the file has none.
    """

    limits: Mapping[str, SeatLimit] = field(default_factory=dict)
    file: str = ""
    seats: int | None = None
    seat_cost: int | None = None
    utilisation: float | None = None
    routable: float | None = None


def report(client: Redis, keys: Keys, month: tuple[int, int], now: int, told: Told) -> Report:
    """The report of the month that begins and ends at `month`, in ms; `now` by the server's clock."""
    start, end = month
    ads = {ad.seat: ad for ad in registry.read_advertisements(client, keys)}
    found: dict[str, SeatReport] = {}

    def of(seat: str) -> SeatReport:
        if seat not in found:
            own = parse_budget(client.hget(keys("seat", seat), OWN), OWN, now)
            limit = told.limits.get(seat, SeatLimit())
            found[seat] = _seat(seat, limit, own, ads.get(seat), end - start)
            found[seat].cost = told.seat_cost if limit.cost is None else limit.cost
        return found[seat]

    for seat in {*_serving(client, keys), *told.limits}:
        of(seat)
    for entry in ledger.read_entries(client, keys, since=start, until=end - 1):
        if entry.charged is not None:
            of(entry.seat).add(entry)
    first = next(ledger.read_entries(client, keys), None)
    since = None if first is None or first.at >= end else max(first.at, start)
    until = None if since is None else min(now, end)
    seats = tuple(found[name] for name in sorted(found))
    return Report(start, end, since, until, seats, _model(seats, (since, until) == month, told))


def _bounds(limits: Iterable[Meter | Limit], month: int, whole: float = 1.0) -> list[int]:
    """What each budget of money comes to in a month of so many ms, where `whole` of it is lent."""
    return [
        int(most / Fraction(str(whole)))
        * month
        // (first_use_window_ms(each.window) or CALENDAR_MS.get(each.window, month))
        for each in limits
        if each.resource == "money"
        for most in [each.limit if isinstance(each, Meter) else each.amount]
    ]


def _seat(name: str, limit: SeatLimit, own: list[Meter], ad: Advertisement | None, month: int) -> SeatReport:
    """What is known of a seat beside the ledger: by the quotas file, its own sheet, and what its worker
    tells; `month` is the month's length in ms.
    """
    bounds = _bounds(own, month, 1.0 if ad is None or ad.share is None else ad.share)
    bounds += _bounds(limit.budgets, month)
    owner = limit.owner or (ad.owner if ad is not None else "") or None
    nothing = None if owner is None else 0
    return SeatReport(
        name, owner, recorded_for_others=nothing, lent=nothing, capacity=min(bounds, default=None)
    )


def _model(seats: tuple[SeatReport, ...], whole: bool, told: Told) -> dict[str, Figure]:
    if told.seats is None:
        count = Figure(len(seats), "seats that are live, in the ledger or in the quotas file")
    else:
        count = Figure(told.seats, "--seats")
    costs = [seat.cost for seat in seats if seat.cost is not None]
    if not seats or len(costs) < len(seats):
        without = len(seats) - len(costs)
        unknown = f"of {_seats(without)} unknown" if seats else "unknown"
        cost = Figure(None, f"{unknown}: set cost_dollars in the quotas file, or --seat-cost")
        if not seats and told.seat_cost is not None:
            cost = Figure(told.seat_cost, "--seat-cost")
    else:
        in_file = sum(limit.cost is not None for limit in told.limits.values())
        places = [told.file] * bool(in_file) + ["--seat-cost"] * (in_file < len(seats))
        cost = Figure(sum(costs) / len(seats), "mean of " + " and ".join(places))
    if told.routable is None:
        part = Figure(None, "unknown: --routable says how much of what lies idle can be had")
    else:
        part = Figure(told.routable, "--routable")
    return {"S": count, "C": cost, "u": _utilisation(seats, whole, told), "r": part}


def _utilisation(seats: tuple[SeatReport, ...], whole: bool, told: Told) -> Figure:
    if told.utilisation is not None:
        return Figure(told.utilisation, "--utilisation")
    without = sum(not seat.capacity or bool(seat.unpriced) for seat in seats)
    if without or not seats or not whole:
        have = "has" if without == 1 else "have"
        why = (
            f"{_seats(without)} {have} no budget or no price" if without else "the ledger has no whole month"
        )
        return Figure(None, f"unknown, as {why}: --utilisation says it")
    parts = [(seat.used + seat.wasted) / (seat.capacity or 1) for seat in seats]
    return Figure(
        sum(parts) / len(parts),
        "mean of what went through the grid, of the budgets; what owners use beside the grid is not in it",
    )


def _seats(count: int) -> str:
    return "1 seat" if count == 1 else f"{count} seats"


def _serving(client: Redis, keys: Keys) -> list[str]:
    """The live seats that serve more than the grid's own queues."""
    live: Any = client.zrange(keys("seats"), 0, -1)
    names = [name.decode() for name in live]
    look = client.pipeline(transaction=False)
    for name in names:
        look.hget(keys("seat", name), "queues")
    found: list[Any] = look.execute() if names else []
    return [
        name
        for name, queues in zip(names, found, strict=True)
        if any(not queue.startswith("gridq:") for queue in (queues or b"").decode().split())
    ]
