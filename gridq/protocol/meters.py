"""Meters: how much of a thing may be used in a window, how much has been, how much what runs now holds of it.

The scripts alone move them (store/lua/lib/meters.lua, where their texts are described); this module writes
limits as the scripts read them, and reads sheets.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import unquote

from pydantic import Field

from gridq.protocol.models import MOST_USED, Limit, ProtocolModel, Thing
from gridq.protocol.money import dollars
from gridq.protocol.queue_names import OWN_KIND, kind_of

OWN, GRID = "own", "grid"
"""The two sheets of a seat: by its machine, and by the grid's quotas file."""

WHOLE = "g"
"""The sheet of the whole grid, among the shared ones."""

KINDS = {"a": "agent", "t": "team", "o": "owner", "f": "family"}
"""Whose a shared sheet is, by the first letter of its name."""

_METER = re.compile(r"(\w+)/([^/]+)/(\d+)/(\d+)/(\d+)/(\d*)")
_UNITS = {"m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Expects(NamedTuple):
    """What a stage is estimated to use: tokens in and out; its own time-out, where it has one."""

    tokens_in: int = 0
    tokens_out: int = 0
    timeout_ms: int | None = None

    @classmethod
    def read(cls, text: str) -> Expects:
        """As the scripts are told it: `in out`, or `in out timeout`."""
        return cls(*map(int, text.split()))

    def text(self) -> str:
        """As the scripts are told it."""
        return " ".join(str(number) for number in self if number is not None)

    @property
    def tokens(self) -> int:
        """In and out."""
        return self.tokens_in + self.tokens_out


UNKNOWN = Expects()


@dataclass(frozen=True, slots=True)
class Rates:
    """What a seat asks for, by its record: micro-dollars a million tokens in and out (`prices`), and for an
    hour of a slot (`hourly`); `timeout_ms`: of a stage that has none of its own; `takes`: by queue for how
    many ms a stage is expected to hold a slot, as far as that was measured.
    """

    prices: tuple[int, int] = (0, 0)
    hourly: int = 0
    timeout_ms: int = 0
    takes: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, record: Mapping[str, str]) -> Rates:
        """Of a seat's record."""
        cost_in, cost_out = (record.get("prices") or "0 0").split()
        hourly, timeout = (record.get("hourly") or "0 0").split()
        takes = dict(each.split("=") for each in record.get("takes", "").split())
        times = {queue: int(ms) for queue, ms in takes.items()}
        return cls((int(cost_in), int(cost_out)), int(hourly), int(timeout), times)

    def guess(self, queue: str, expects: Expects) -> int:
        """What a stage of a queue is estimated to cost, in micro-dollars (lib/meters.lua: estimate)."""
        cost_in, cost_out = self.prices
        guess = -(-(expects.tokens_in * cost_in + expects.tokens_out * cost_out) // 1_000_000)
        if self.hourly and kind_of(queue) != OWN_KIND:
            timeout = self.timeout_ms if expects.timeout_ms is None else expects.timeout_ms
            lasts = self.takes.get(queue, max(self.takes.values(), default=timeout))
            guess += min(-(-self.hourly * min(lasts, timeout) // 3_600_000), MOST_USED)
        return guess


FREE = Rates()


class Meter(ProtocolModel):
    """One meter of a bearer: `own` or `grid` of a seat; of those that several share `g` (the whole grid),
    `o:<owner>`, `f:<family>`, `a:<agent>`, `t:<team>`. Amounts are micro-dollars, tokens, requests, jobs, or
    stages at once; `turn` is in ms since 1970, None where the window has not begun, or nobody knows.
    """

    bearer: str
    thing: Thing
    window: str
    limit: int
    used: int = 0
    held: int = 0
    turn: int | None = None
    queues: tuple[str, ...] = Field((), description="those alone in which it binds; empty: all")

    @property
    def name(self) -> str:
        """`money/day`: what it is among those of its bearer."""
        return f"{self.thing}/{self.window}"

    @property
    def remaining(self) -> int:
        """What may still be held; below nothing where actual use went over."""
        return self.limit - self.used - self.held

    @property
    def share(self) -> float:
        """The part of the limit that is left, 0 to 1."""
        return min(1.0, max(0.0, self.remaining / self.limit)) if self.limit else 0.0

    def binds_in(self, queue: str) -> bool:
        return not self.queues or queue in self.queues

    @property
    def title(self) -> str:
        """`money a day`: the same in words."""
        return f"{_called(self.thing)}{per(self.window)}"

    def told(self, amount: int) -> str:
        """An amount of its thing in words: `$0.02`, `12 requests`."""
        return dollars(amount) if self.thing == "money" else f"{amount} {_called(self.thing)}"

    def words(self) -> str:
        """`$0.02 left of $5.00 a day`."""
        return f"{self.told(max(self.remaining, 0))} left of {self.told(self.limit)}{per(self.window)}"


def sharer(name: str) -> str:
    """Whose a shared sheet is, in words."""
    return "the whole grid" if name == WHOLE else f"{KINDS[name[0]]} {sharer_name(name)}"


def sharer_name(name: str) -> str:
    """The name of whose a shared sheet is: of a family, which is known by its slug, as people write it."""
    return unquote(name[2:]) if name[:2] == "f:" else name[2:]


def whose(meter: Meter, seat: str) -> str:
    """Who has a meter that binds a seat."""
    return seat if meter.bearer in (OWN, GRID) else sharer(meter.bearer)


def short(meter: Meter, seat: str) -> str:
    """In words, that a meter has too little left for a stage on a seat, and until when."""
    turn = f", until {clock(meter.turn)}" if meter.turn is not None else ""
    return f"{whose(meter, seat)} has {meter.words()}{turn}"


def clock(ms: int) -> str:
    """An instant in the reader's own time, with its day where that is not today."""
    then, today = time.localtime(ms / 1000), time.localtime()
    return time.strftime("%H:%M" if then[:3] == today[:3] else "%Y-%m-%d %H:%M", then)


def _called(thing: Thing) -> str:
    return "stages" if thing == "parallel" else thing


def per(window: str) -> str:
    """` a day`, ` in 5h`, ` at once`."""
    return " at once" if window == "-" else f" in {window}" if window[0].isdigit() else f" a {window}"


def span(window: str) -> int | None:
    """How long a window lasts that begins with its first use, in ms; None: one of the calendar's, or none."""
    return int(window[:-1]) * _UNITS[window[-1]] if window[0].isdigit() else None


def text(limits: Iterable[Limit]) -> str:
    """Limits as the scripts read them."""
    return " ".join(f"{limit.thing}/{limit.window}/{limit.most}" for limit in limits)


def sheet(raw: bytes | str | None, bearer: str, now_ms: float, queues: tuple[str, ...] = ()) -> list[Meter]:
    """The meters of one sheet as they are at `now_ms`: what has turned is empty again."""
    if not raw:
        return []
    found = []
    for thing, window, limit, used, held, turn in _METER.findall(
        raw if isinstance(raw, str) else raw.decode()
    ):
        over = turn != "" and int(turn) <= now_ms
        found.append(
            Meter(
                bearer=bearer,
                thing=thing,
                window=window,
                limit=int(limit),
                used=0 if over else int(used),
                held=int(held),
                turn=None if over or turn == "" else int(turn),
                queues=queues,
            )
        )
    return found


def shared_names(raw: bytes | str | None) -> dict[str, tuple[str, ...]]:
    """The shared sheets that bind a seat, by its record's `shared`: name → the queues in which it does;
    empty: in all.
    """
    found: dict[str, tuple[str, ...]] = {}
    for word in ((raw if isinstance(raw, str) else raw.decode()) if raw else "").split():
        queue, binds, names = word.rpartition("=")
        for name in names.split(","):
            found[name] = (*found.get(name, ()), queue) if binds else ()
    return found


def lacking(meters: Iterable[Meter], queue: str, cost: int, expects: Expects, rates: Rates) -> Meter | None:
    """Of the meters that bind a seat the first that has no room for a stage of a queue which is said to cost
    so many micro-dollars; None where all have. As a claim looks at them (lib/meters.lua: lacking).
    """
    found = needs(meters, queue, cost, expects, rates)
    return next((meter for meter, need in found if meter.remaining < need), None)


def needs(
    meters: Iterable[Meter], queue: str, cost: int, expects: Expects, rates: Rates
) -> Iterator[tuple[Meter, int]]:
    """Each meter that binds in a queue, and how much of it a claim of such a stage asks for."""
    guess = rates.guess(queue, expects)
    free = kind_of(queue) == OWN_KIND
    if free and not cost:
        return
    for meter in meters:
        if meter.binds_in(queue) and not (free and meter.thing != "money"):
            if meter.thing == "money":
                yield meter, max(cost, min(guess, max(meter.limit, 1)))
            else:
                yield meter, max(1, min(expects.tokens, meter.limit)) if meter.thing == "tokens" else 1


def tightest(meters: Iterable[Meter], thing: Thing) -> Meter | None:
    """The meter of a thing with least left of it; None where there is none."""
    return min((meter for meter in meters if meter.thing == thing), key=lambda m: m.remaining, default=None)
