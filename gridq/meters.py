"""Meters: how much of a thing may be used in a window, how much has been, how much what runs now holds of it.

The scripts alone move them (store/lua/lib/meters.lua, where their texts are described); this module writes
limits as the scripts read them, and reads sheets.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from urllib.parse import unquote

from pydantic import Field

from gridq.money import dollars
from gridq.protocol import Limit, Thing, Wire

OWN, GRID = "own", "grid"
"""The two sheets of a seat: by its machine, and by the grid's quotas file."""

WHOLE = "g"
"""The sheet of the whole grid, among the shared ones."""

KINDS = {"a": "agent", "t": "team", "o": "owner", "f": "family"}
"""Whose a shared sheet is, by the first letter of its name."""

_METER = re.compile(r"(\w+)/([^/]+)/(\d+)/(\d+)/(\d+)/(\d*)")
_UNITS = {"m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Meter(Wire):
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


def tightest(meters: Iterable[Meter], thing: Thing) -> Meter | None:
    """The meter of a thing with least left of it; None where there is none."""
    return min((meter for meter in meters if meter.thing == thing), key=lambda m: m.remaining, default=None)
