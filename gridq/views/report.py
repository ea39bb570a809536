"""A month of each seat, from the ledger, and a model of the money that idle seats cost in a year.

The model: S seats cost C a month each, a part u of that is used, and a part r of the rest could be used.
Money is in micro-dollars. A number that is neither given nor in the ledger is None; nothing is guessed.
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
    """A number and its source. If `value` is None, `source` says what would provide it."""

    value: float | None
    source: str


@dataclass(slots=True)
class SeatReport:
    """One seat's month.

    Attempts: `recorded` succeeded, `wasted_attempts` did not, `recorded_for_others` were for other agents
    than the seat's `owner`, and `unpriced` used something without a price, as those of a subscription do.
    Money: `used`, `wasted` and `lent` are the cost of the first three, as far as there are prices; `cost` is
    what the seat costs a month, `gpu_seconds` how long its device was used, `capacity` what its budget allows
    in the month, and `reclaimed` the part of its cost that others used: cost · lent / capacity.
    """

    seat: str
    owner: str | None = None
    recorded: int = 0
    wasted_attempts: int = 0
    unpriced: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    gpu_seconds: float = 0.0
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
        """Add an attempt, or what became known of one later."""
        micro = entry.micro_dollars or 0
        self.tokens_in += entry.tokens_in
        self.tokens_out += entry.tokens_out
        self.gpu_seconds = round(self.gpu_seconds + entry.gpu_ms / 1000, 3)
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

    def get_if_priced(self, micro: int | None) -> int | None:
        """Return a sum of money; None if it is 0 only because what was used has no price."""
        return None if self.unpriced and not micro else micro

    def to_json(self) -> dict[str, Json]:
        """Return the fields as a JSON object, with `reclaimed`."""
        sums = {name: self.get_if_priced(getattr(self, name)) for name in ("used", "wasted", "lent")}
        return asdict(self) | sums | {"reclaimed": self.reclaimed}


@dataclass(frozen=True, slots=True)
class Report:
    """A month from `start` to `end` in ms, with its seats and the figures of the model.

    The ledger covers `since` to `until`; both None: nothing of the month. `idle` and `reclaimable` are
    micro-dollars a year.
    """

    start: int
    end: int
    since: int | None
    until: int | None
    seats: tuple[SeatReport, ...]
    model: Mapping[str, Figure] = field(default_factory=dict)

    @property
    def idle(self) -> int | None:
        """S · C · 12 · (1 - u), at least 0; None if a figure is missing."""
        count, cost, use = (self.model[name].value for name in "SCu")
        if count is None or cost is None or use is None:
            return None
        return round(count * cost * 12 * max(1 - use, 0))

    @property
    def reclaimable(self) -> int | None:
        """The part r of `idle`; None if a figure is missing."""
        part = self.model["r"].value
        return None if part is None or self.idle is None else round(self.idle * part)


@dataclass(frozen=True, slots=True)
class ReportInputs:
    """The inputs that the caller provides. `limits`: the seats of the quotas file `file`.

    Each other number replaces what the ledger or the file says; `seat_cost` is for seats without a cost in
    the file.
    """

    limits: Mapping[str, SeatLimit] = field(default_factory=dict)
    file: str = ""
    seats: int | None = None
    seat_cost: int | None = None
    utilisation: float | None = None
    routable: float | None = None


def build_report(client: Redis, keys: Keys, month: tuple[int, int], now: int, inputs: ReportInputs) -> Report:
    """Build the report of the month between the two instants `month`, in ms. `now`: the server's clock."""
    start, end = month
    ads = {ad.seat: ad for ad in registry.read_advertisements(client, keys)}
    found: dict[str, SeatReport] = {}

    def get(seat: str) -> SeatReport:
        if seat not in found:
            own = parse_budget(client.hget(keys("seat", seat), OWN), OWN, now)
            limit = inputs.limits.get(seat, SeatLimit())
            found[seat] = _build_seat(seat, limit, own, ads.get(seat), end - start)
            found[seat].cost = inputs.seat_cost if limit.cost is None else limit.cost
        return found[seat]

    for seat in {*_read_serving_seats(client, keys), *inputs.limits}:
        get(seat)
    for entry in ledger.read_entries(client, keys, since=start, until=end - 1):
        if entry.charged is not None:
            get(entry.seat).add(entry)
    first = next(ledger.read_entries(client, keys), None)
    since = None if first is None or first.at >= end else max(first.at, start)
    until = None if since is None else min(now, end)
    seats = tuple(found[name] for name in sorted(found))
    return Report(start, end, since, until, seats, _build_model(seats, (since, until) == month, inputs))


def _find_monthly_limits(limits: Iterable[Meter | Limit], month: int, whole: float = 1.0) -> list[int]:
    """Return what each money budget comes to in a month of `month` ms, of which the part `whole` is lent."""
    return [
        int(most / Fraction(str(whole)))
        * month
        // (first_use_window_ms(each.window) or CALENDAR_MS.get(each.window, month))
        for each in limits
        if each.resource == "money"
        for most in [each.limit if isinstance(each, Meter) else each.amount]
    ]


def _build_seat(
    name: str, limit: SeatLimit, own: list[Meter], ad: Advertisement | None, month: int
) -> SeatReport:
    """Return a seat's report without usage, by the quotas file, its own budget and its advertisement.

    `month`: the month's length in ms.
    """
    bounds = _find_monthly_limits(own, month, 1.0 if ad is None or ad.share is None else ad.share)
    bounds += _find_monthly_limits(limit.budgets, month)
    owner = limit.owner or (ad.owner if ad is not None else "") or None
    nothing = None if owner is None else 0
    return SeatReport(
        name, owner, recorded_for_others=nothing, lent=nothing, capacity=min(bounds, default=None)
    )


def _build_model(seats: tuple[SeatReport, ...], whole: bool, inputs: ReportInputs) -> dict[str, Figure]:
    if inputs.seats is None:
        count = Figure(len(seats), "seats that are live, in the ledger or in the quotas file")
    else:
        count = Figure(inputs.seats, "--seats")
    costs = [seat.cost for seat in seats if seat.cost is not None]
    if not seats or len(costs) < len(seats):
        without = len(seats) - len(costs)
        unknown = f"unknown for {_count_seats(without)}" if seats else "unknown"
        cost = Figure(None, f"{unknown}: set cost_dollars in the quotas file, or --seat-cost")
        if not seats and inputs.seat_cost is not None:
            cost = Figure(inputs.seat_cost, "--seat-cost")
    else:
        in_file = sum(limit.cost is not None for limit in inputs.limits.values())
        places = [inputs.file] * bool(in_file) + ["--seat-cost"] * (in_file < len(seats))
        cost = Figure(sum(costs) / len(seats), "mean of " + " and ".join(places))
    if inputs.routable is None:
        part = Figure(None, "unknown: set --routable, the part of the idle capacity that could be used")
    else:
        part = Figure(inputs.routable, "--routable")
    return {"S": count, "C": cost, "u": _find_utilisation(seats, whole, inputs), "r": part}


def _find_utilisation(seats: tuple[SeatReport, ...], whole: bool, inputs: ReportInputs) -> Figure:
    if inputs.utilisation is not None:
        return Figure(inputs.utilisation, "--utilisation")
    without = sum(not seat.capacity or bool(seat.unpriced) for seat in seats)
    if without or not seats or not whole:
        have = "has" if without == 1 else "have"
        why = (
            f"{_count_seats(without)} {have} no budget or no price"
            if without
            else "the ledger does not cover the month"
        )
        return Figure(None, f"unknown, because {why}: set --utilisation")
    parts = [(seat.used + seat.wasted) / (seat.capacity or 1) for seat in seats]
    return Figure(
        sum(parts) / len(parts),
        "mean use of the budgets through the grid, without what owners use outside of it",
    )


def _count_seats(count: int) -> str:
    return "1 seat" if count == 1 else f"{count} seats"


def _read_serving_seats(client: Redis, keys: Keys) -> list[str]:
    """Return the live seats that serve more than the grid's own queues."""
    live: Any = client.zrange(keys("seats"), 0, -1)
    names = [name.decode() for name in live]
    pipe = client.pipeline(transaction=False)
    for name in names:
        pipe.hget(keys("seat", name), "queues")
    found: list[Any] = pipe.execute() if names else []
    return [
        name
        for name, queues in zip(names, found, strict=True)
        if any(not queue.startswith("gridq:") for queue in (queues or b"").decode().split())
    ]
