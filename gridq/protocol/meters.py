"""Meters: how much of a resource an account may use in a window, has used, and has reserved for running work.

Only the scripts change meters (store/lua/lib/meters.lua, which describes their text form). This module writes
limits as the scripts read them, reads budgets, and repeats the arithmetic of a claim.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import unquote

from pydantic import Field

from gridq.protocol.models import MAX_USAGE, Limit, ProtocolModel, Resource
from gridq.protocol.money import format_dollars
from gridq.protocol.queue_names import OWN_KIND, get_kind

OWN, GRID = "own", "grid"
"""The two accounts of a seat: limits that its machine sets, and limits from the grid's quotas file."""

WHOLE_GRID = "g"
"""The shared account of the whole grid."""

ACCOUNT_KINDS = {"a": "agent", "t": "team", "o": "owner", "f": "family"}
"""The kinds of shared accounts, by the first letter of their names."""

_METER = re.compile(r"(\w+)/([^/]+)/(\d+)/(\d+)/(\d+)/(\d*)")
_UNIT_MS = {"m": 60_000, "h": 3_600_000, "d": 86_400_000}


class UsageEstimate(NamedTuple):
    """The tokens that a stage is expected to use, its own timeout in ms if it has one, and the ms for which
    it declares to use a device, if it does.
    """

    tokens_in: int = 0
    tokens_out: int = 0
    timeout_ms: int | None = None
    gpu_ms: int | None = None

    @classmethod
    def parse(cls, text: str) -> UsageEstimate:
        """Read the text form that the scripts use: `in out`, the timeout if any, and `g` with the GPU ms if
        any: `400 100 60000 g25000`.
        """
        words = text.split()
        gpu_ms = int(words.pop()[1:]) if words and words[-1][0] == "g" else None
        return cls(*map(int, words))._replace(gpu_ms=gpu_ms)

    def to_text(self) -> str:
        """Return the text form that the scripts use."""
        words = [str(number) for number in self[:3] if number is not None]
        return " ".join(words if self.gpu_ms is None else [*words, f"g{self.gpu_ms}"])

    @property
    def tokens(self) -> int:
        return self.tokens_in + self.tokens_out


NO_ESTIMATE = UsageEstimate()


@dataclass(frozen=True, slots=True)
class SeatRates:
    """The rates that a seat charges, from its record in Redis.

    `prices`: micro-dollars per million tokens, in and out. `hourly`: micro-dollars per slot and hour; None if
    the seat counts no time, and so no GPU seconds. `timeout_ms`: the time limit of stages that have none of
    their own. `stage_ms`: how many ms a stage is expected to occupy a slot, by queue, as far as it was
    measured.
    """

    prices: tuple[int, int] = (0, 0)
    hourly: int | None = None
    timeout_ms: int = 0
    stage_ms: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_record(cls, record: Mapping[str, str]) -> SeatRates:
        """Read the rates from a seat's record."""
        price_in, price_out = (record.get("prices") or "0 0").split()
        hourly_price = record.get("hourly_price")
        hourly, timeout = map(int, hourly_price.split()) if hourly_price else (None, 0)
        pairs = dict(each.split("=") for each in record.get("stage_ms", "").split())
        stage_ms = {queue: int(ms) for queue, ms in pairs.items()}
        return cls((int(price_in), int(price_out)), hourly, timeout, stage_ms)

    def estimate_cost(self, queue: str, estimate: UsageEstimate) -> int:
        """Return the expected cost of a stage of `queue` in micro-dollars (lib/meters.lua: estimate_use)."""
        price_in, price_out = self.prices
        cost = -(-(estimate.tokens_in * price_in + estimate.tokens_out * price_out) // 1_000_000)
        gpu_ms = self.estimate_gpu_ms(queue, estimate) or 0
        return cost + min(-(-(self.hourly or 0) * gpu_ms // 3_600_000), MAX_USAGE)

    def estimate_gpu_ms(self, queue: str, estimate: UsageEstimate) -> int | None:
        """Return for how many ms a stage of `queue` is expected to use the seat's device; None if the seat
        does not count that.
        """
        if self.hourly is None or get_kind(queue) == OWN_KIND:
            return None
        if estimate.gpu_ms is not None:
            return estimate.gpu_ms
        timeout = self.timeout_ms if estimate.timeout_ms is None else estimate.timeout_ms
        return min(self.stage_ms.get(queue, max(self.stage_ms.values(), default=timeout)), timeout)


FREE = SeatRates()


class Meter(ProtocolModel):
    """One limit of an account, and what of it is used and reserved.

    A seat has the accounts `own` and `grid`. Shared accounts are `g` (the whole grid), `o:<owner>`,
    `f:<family>`, `a:<agent>` and `t:<team>`. Amounts are micro-dollars, tokens, requests, jobs, parallel
    stages or, of GPU seconds, ms.
    """

    account: str
    resource: Resource
    window: str
    limit: int
    used: int = 0
    reserved: int = Field(0, description="for stages or jobs that run now")
    resets_at: int | None = Field(
        None, description="ms since 1970; null if the window has not begun, or its end is not known"
    )
    queues: tuple[str, ...] = Field((), description="the queues that the limit applies to; empty: all")

    @property
    def name(self) -> str:
        """Its name within its account, such as `money/day`."""
        return f"{self.resource}/{self.window}"

    @property
    def remaining(self) -> int:
        """The amount that can still be reserved; negative if actual use exceeded the limit."""
        return self.limit - self.used - self.reserved

    @property
    def remaining_fraction(self) -> float:
        """The part of the limit that is left, 0 to 1."""
        return min(1.0, max(0.0, self.remaining / self.limit)) if self.limit else 0.0

    def applies_to(self, queue: str) -> bool:
        return not self.queues or queue in self.queues

    @property
    def title(self) -> str:
        """Its name in words, such as `money a day`."""
        return f"{name_resource(self.resource)}{describe_window(self.window)}"

    def format_amount(self, amount: int) -> str:
        """Return an amount with its unit: `$0.02`, `12 requests`."""
        number = format_amount(self.resource, amount)
        return number if self.resource == "money" else f"{number} {name_resource(self.resource)}"

    def describe(self) -> str:
        """Return what is left, such as `$0.02 left of $5.00 a day`."""
        left, limit = self.format_amount(max(self.remaining, 0)), self.format_amount(self.limit)
        return f"{left} left of {limit}{describe_window(self.window)}"


def describe_account(name: str) -> str:
    """Return a shared account in words: `agent ann`, `the whole grid`."""
    return "the whole grid" if name == WHOLE_GRID else f"{ACCOUNT_KINDS[name[0]]} {account_name(name)}"


def account_name(account: str) -> str:
    """Return the name of an account's holder; a family's slug is decoded to the name that people write."""
    return unquote(account[2:]) if account[:2] == "f:" else account[2:]


def describe_holder(meter: Meter, seat: str) -> str:
    """Return who holds a meter that applies to `seat`: the seat itself, or a shared account in words."""
    return seat if meter.account in (OWN, GRID) else describe_account(meter.account)


def describe_shortage(meter: Meter, seat: str) -> str:
    """Return in words that a meter has too little left for a stage on `seat`, and until when."""
    until = f", until {format_local_time(meter.resets_at)}" if meter.resets_at is not None else ""
    return f"{describe_holder(meter, seat)} has {meter.describe()}{until}"


def format_local_time(ms: int) -> str:
    """Return an instant (ms since 1970) in local time, with its date unless that is today."""
    then, today = time.localtime(ms / 1000), time.localtime()
    return time.strftime("%H:%M" if then[:3] == today[:3] else "%Y-%m-%d %H:%M", then)


def format_amount(resource: str, amount: int) -> str:
    """Return an amount of a resource as people read it: `$12.50`, `100`, or of GPU seconds `1.5`."""
    if resource == "money":
        return format_dollars(amount)
    return f"{amount / 1000:.12g}" if resource == "gpu_seconds" else str(amount)


def name_resource(resource: str) -> str:
    """Return a resource in words, such as `GPU seconds`; those of a `parallel` limit are `stages`."""
    return {"parallel": "stages", "gpu_seconds": "GPU seconds"}.get(resource, resource)


def describe_window(window: str) -> str:
    """Return a window in words that follow an amount: ` a day`, ` in 5h`, ` at once`."""
    return " at once" if window == "-" else f" in {window}" if window[0].isdigit() else f" a {window}"


def first_use_window_ms(window: str) -> int | None:
    """Return the length in ms of a window that begins with its first use; None for any other window."""
    return int(window[:-1]) * _UNIT_MS[window[-1]] if window[0].isdigit() else None


def format_limits(limits: Iterable[Limit]) -> str:
    """Return limits in the text form that the scripts read."""
    return " ".join(f"{limit.resource}/{limit.window}/{limit.amount}" for limit in limits)


def parse_budget(
    raw: bytes | str | None, account: str, now_ms: float, queues: tuple[str, ...] = ()
) -> list[Meter]:
    """Read the meters of `account` as they stand at `now_ms`; a window that has ended counts as unused."""
    if not raw:
        return []
    meters = []
    text = raw if isinstance(raw, str) else raw.decode()
    for resource, window, limit, used, reserved, resets_at in _METER.findall(text):
        ended = resets_at != "" and int(resets_at) <= now_ms
        meters.append(
            Meter(
                account=account,
                resource=resource,
                window=window,
                limit=int(limit),
                used=0 if ended else int(used),
                reserved=int(reserved),
                resets_at=None if ended or resets_at == "" else int(resets_at),
                queues=queues,
            )
        )
    return meters


def parse_shared_accounts(raw: bytes | str | None) -> dict[str, tuple[str, ...]]:
    """Return the shared accounts that apply to a seat, each with its queues (empty: all).

    `raw` is the field `shared_budgets` of the seat's record.
    """
    accounts: dict[str, tuple[str, ...]] = {}
    for word in ((raw if isinstance(raw, str) else raw.decode()) if raw else "").split():
        queue, separator, names = word.rpartition("=")
        for name in names.split(","):
            accounts[name] = (*accounts.get(name, ()), queue) if separator else ()
    return accounts


def find_shortage(
    meters: Iterable[Meter], queue: str, cost: int, estimate: UsageEstimate, rates: SeatRates
) -> Meter | None:
    """Return the first meter that has no room for a stage from `queue`, or None.

    `cost` is the stage's declared cost in micro-dollars. The function decides as a claim does
    (lib/meters.lua: find_shortage).
    """
    needs = list_needs(meters, queue, cost, estimate, rates)
    return next((meter for meter, need in needs if meter.remaining < need), None)


def list_needs(
    meters: Iterable[Meter], queue: str, cost: int, estimate: UsageEstimate, rates: SeatRates
) -> Iterator[tuple[Meter, int]]:
    """Yield each meter that applies to `queue`, with the amount that a claim of such a stage reserves."""
    expected_cost = rates.estimate_cost(queue, estimate)
    gpu_ms = rates.estimate_gpu_ms(queue, estimate)
    is_grid_queue = get_kind(queue) == OWN_KIND
    if is_grid_queue and not cost:
        return
    for meter in meters:
        if meter.applies_to(queue) and not (is_grid_queue and meter.resource != "money"):
            if meter.resource == "money":
                yield meter, max(cost, min(expected_cost, max(meter.limit, 1)))
            elif meter.resource == "gpu_seconds":
                if gpu_ms is not None:
                    yield meter, max(1, min(gpu_ms, meter.limit))
            else:
                yield meter, max(1, min(estimate.tokens, meter.limit)) if meter.resource == "tokens" else 1


def find_tightest(meters: Iterable[Meter], resource: Resource) -> Meter | None:
    """Return the meter of `resource` with the least left, or None if there is none."""
    return min(
        (meter for meter in meters if meter.resource == resource), key=lambda m: m.remaining, default=None
    )
