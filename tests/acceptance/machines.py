"""The three machines of the closing test: their seats, what these cost, and every limit that binds.

A limit is written once, as a `Bound`: from it come the lines in the machine's seats.toml or in the quotas
file, and the rule that the ledger is held to. A new kind of limit is a new case of `Bound.toml` and of
`used_of`.
"""

from __future__ import annotations

import datetime
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gridq.entries import LATE, Entry
from gridq.protocol import Json
from tests.acceptance import paid_cli
from tests.acceptance.vendor_wires import Wire
from tests.acceptance.vendors import Price
from workers.chaos.layout import Layout, Machine

CENTS = 0.09
"""What a stage declares that it may cost: no call of any seat costs more, so each hold covers its call."""
MINUTE_MS = 60_000
ROUNDING_MS = 2
"""A claim is told as the ms before its end, both rounded."""
MICRO = 1_000_000
LEAST = 2000
"""Micro-dollars of the smallest budget: it lets two calls in."""


def stage(name: str, *effects: dict[str, Json]) -> dict[str, Json]:
    """The spec of a stage that asks a model of the family its node's config names."""
    return {
        "name": name,
        "description": "Ask a model.",
        "input": {"kind": "Any"},
        "output": {"kind": "Text"},
        "effects": [
            {"effect": "Llm", "model": {"$config": "model", "default": "any"}},
            {"effect": "Fallible"},
            *effects,
        ],
        "implementation": "llm:complete",
    }


HELD, UNHELD = "ask", "ask_freely"
STAGES = (stage(HELD, {"effect": "Cost", "cents": CENTS}), stage(UNHELD))
"""One whose cost is held before it runs, and one that is not: lanes side by side may overdraw by it."""


@dataclass(frozen=True)
class Seat:
    """One seat: `price` None where it is a subscription. `families` can be asked of it."""

    machine: str
    name: str
    wire: Wire
    families: tuple[str, ...]
    price: Price | None
    lanes: int = 1

    @property
    def id(self) -> str:
        return f"{self.machine}.{self.name}"

    @property
    def cli(self) -> bool:
        return self.wire in ("claude", "codex")


SEATS = (
    Seat("m1", "openai", "openai", ("fast",), Price("0.5", "2", cached="0.05"), lanes=4),
    Seat("m1", "claude", "claude", ("deep",), None),
    Seat("m2", "anthropic", "anthropic", ("fast", "deep"),
         Price("0.8", "3", cached="0.08", written="1"), lanes=6),
    Seat("m2", "codex", "codex", ("deep",), Price("1.25", "2", cached="0.125")),
    Seat("m3", "google", "google", ("fast",), Price("0.3", "2.5", cached="0.075", reasoning="3.5"), lanes=4),
    Seat("m3", "work", "claude", ("deep",), Price("0.7", "2.75", cached="0.07", written="0.9")),
)  # fmt: skip
FAMILIES = {"fast": 92, "deep": 8}
"""How often each is asked for: a call of a program costs the start of a process."""

AGENTS = {"cat": "research", "thrifty": "research"}
"""Agents whose money is little, and their team."""


Window = Literal["month", "week", "day", "minute"]


@dataclass(frozen=True)
class Bound:
    """One limit: whom it binds (`seat m1.openai`, `agent thrifty`, `team research`), how much of what, and
    in which window: `month` by the calendar in UTC, `minute` any sixty seconds. `own` stands in the machine's
    own file, else in the grid's. `share`: the owner has set so much more, and lends this part of it.
    """

    who: str
    unit: Literal["micro-dollars", "requests", "jobs"]
    amount: int
    window: Window
    own: bool = True
    share: float = 1.0

    @property
    def name(self) -> str:
        """The name of whom it binds."""
        return self.who.partition(" ")[2]

    def toml(self) -> str:
        """The lines for its table."""
        dollars = f"{self.amount / self.share / MICRO:.6f}"
        match self.who.partition(" ")[0], self.unit:
            case "seat", "micro-dollars":
                lent = f"lend = {{share = {self.share}}}\n" if self.share != 1.0 else ""
                name = "budget" if self.own else "budget_dollars"
                return f'{name} = {dollars}\nperiod = "{self.window}"\n{lent}'
            case "seat", "requests":
                return f"requests_per_minute = {self.amount}\n"
            case _, "micro-dollars":
                return f"monthly_dollars = {dollars}\n"
            case _:
                return f"monthly_jobs = {self.amount}\n"


def bounds(stages: int) -> tuple[Bound, ...]:
    """Limits that bind in a run of so many stages: each seat's but the one that can do everything, and each
    poorer agent's.
    """

    def dollars(
        who: str, micro: int, window: Window = "month", *, own: bool = True, share: float = 1.0
    ) -> Bound:
        return Bound(who, "micro-dollars", max(micro, LEAST), window, own, share)

    return (
        dollars("seat m1.openai", stages * 32, "day"),
        dollars("seat m2.codex", stages * 3, "week", own=False),
        dollars("seat m3.work", stages * 3, share=0.5),
        dollars("seat m3.google", stages * 36, own=False),
        Bound("seat m3.google", "requests", max(20, stages // 30), "minute"),
        Bound("seat m1.claude", "requests", 20, "minute", own=False),
        dollars("agent thrifty", max(stages * 12, 8 * LEAST)),
        dollars("team research", max(stages * 30, 12 * LEAST)),
        Bound("agent cat", "jobs", max(3, stages // 250), "month"),
    )


def layout(folder: Path, url: str, limits: Iterable[Bound]) -> Layout:
    """The machines, whose vendors answer at `url`."""
    limits = tuple(limits)
    (folder / "stages").mkdir()
    for spec in STAGES:
        (folder / "stages" / f"{spec['name']}.json").write_text(json.dumps(spec))
    (folder / "key").write_text("sk-test-0123456789")
    names = dict.fromkeys(seat.machine for seat in SEATS)
    machines = [
        Machine(
            name,
            {seat.name: "login" if seat.cli else "key" for seat in SEATS if seat.machine == name},
            "\n".join(_table(seat, folder, url, limits) for seat in SEATS if seat.machine == name),
        )
        for name in names
    ]
    return Layout(
        machines=tuple(machines),
        profiles=("llm",),
        stages_dir=folder / "stages",
        quotas=_quotas(limits),
        env={"HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache")},
    )


_PATHS = {"openai": "/v1", "anthropic": "/v1", "google": "/v1beta"}


def _table(seat: Seat, folder: Path, url: str, limits: tuple[Bound, ...]) -> str:
    lines = [f'[[llm]]\nname = "{seat.name}"\nlanes = {seat.lanes}']
    if seat.cli:
        program = paid_cli.install(folder / seat.id, seat.wire, seat.id, url)
        home = folder / seat.id / "login"
        home.mkdir()
        lines.append(f'cli = "{seat.wire}"\nprogram = "{program}"\nhome = "{home}"')
    else:
        lines.append(f'url = "{url}/{seat.id}{_PATHS[seat.wire]}"\nwire = "{seat.wire}"')
        lines.append(f'key_file = "{folder / "key"}"\nallow_loopback = true')
    lines.append(f'billing = "{"metered" if seat.price else "subscription"}"')
    lines += [each.toml() for each in limits if each.who == f"seat {seat.id}" and each.own]
    families = ", ".join(f'"{name}"' for name in seat.families)
    model = f'name = "{seat.name}-1", families = [{families}]'
    prices = {
        "price_in": seat.price and seat.price.tokens_in,
        "price_out": seat.price and seat.price.tokens_out,
        "price_cached": seat.price and seat.price.cached,
        "price_cache_write": seat.price and seat.price.written,
        "price_reasoning": seat.price and seat.price.reasoning,
    }
    model += "".join(f", {name} = {price}" for name, price in prices.items() if price)
    return "\n".join([*lines, f"models = [{{{model}}}]"]) + "\n"


def _quotas(limits: tuple[Bound, ...]) -> str:
    """The quotas file; whoever has no table of its own is rich."""
    tables: dict[str, str] = {f"teams.{team}": "" for team in AGENTS.values()}
    tables |= {f"agents.{agent}": f'team = "{team}"\n' for agent, team in AGENTS.items()}
    for each in limits:
        kind, _, name = each.who.partition(" ")
        table = f'{kind}s."{name}"' if kind == "seat" else f"{kind}s.{name}"
        if not (kind == "seat" and each.own):
            tables[table] = tables.get(table, "") + each.toml()
    told = "".join(f"[{table}]\n{lines}\n" for table, lines in tables.items())
    return (
        f'[agents."*"]\nmonthly_dollars = 1000000\n\n[agents.poor]\nmonthly_dollars = {{dollars}}\n\n{told}'
    )


@dataclass(frozen=True)
class Use:
    """The most that was used of a bound in any of its windows, and what of that could not be held back.
    `late` was told of attempts that the grid had given up, whose hold was gone by then; `unheld` is what
    lanes side by side can use at once where their stages do not say what they may cost.
    """

    bound: Bound
    most: int
    late: int = 0
    unheld: int = 0

    @property
    def over(self) -> bool:
        return self.most > self.bound.amount + self.late + self.unheld


def uses(limits: Iterable[Bound], entries: list[Entry], *, held: bool = True) -> list[Use]:
    """How far each bound was used, by the entries of the ledger alone. `held`: every stage says what it may
    cost.
    """
    return [_use(each, entries, held) for each in limits]


def _use(bound: Bound, entries: list[Entry], held: bool) -> Use:
    kind = bound.who.partition(" ")[0]
    mine = [entry for entry in entries if _of(entry, kind) == bound.name]
    if bound.unit == "requests":
        claims: dict[tuple[str, int | None, int | None], int] = {}
        for entry in mine:
            if entry.charged and entry.ms is not None:
                claims.setdefault((entry.job, entry.step, entry.attempt), entry.at - entry.ms)
        return Use(bound, _most_within(sorted(claims.values()), MINUTE_MS - ROUNDING_MS))
    sums: Counter[str] = Counter()
    late: Counter[str] = Counter()
    given_up = _given_up(entries)
    for entry in mine:
        window = _window(entry.at, bound.window)
        if bound.unit == "jobs":
            sums[window] += entry.what == "job"
        elif entry.charged == "agent" or (entry.charged and kind == "seat"):
            sums[window] += entry.micro_dollars or 0
            if entry.id in given_up:
                late[window] += entry.micro_dollars or 0
    most = max(sums, key=lambda name: sums[name] - late[name], default="")
    unheld = 0
    if not held and kind == "seat":
        lanes = next(seat.lanes for seat in SEATS if seat.id == bound.name)
        unheld = lanes * max((entry.micro_dollars or 0 for entry in mine if entry.charged), default=0)
    return Use(bound, sums[most], late[most], unheld)


def _of(entry: Entry, kind: str) -> str:
    return {"seat": entry.seat, "agent": entry.agent, "team": entry.team}[kind]


def _given_up(entries: list[Entry]) -> set[str]:
    """The ids of the entries that tell more of an attempt that the ledger has already."""
    known: set[tuple[str, int | None, int | None]] = set()
    found = set()
    for entry in entries:
        if entry.charged:
            attempt = (entry.job, entry.step, entry.attempt)
            if attempt in known or entry.what == LATE:
                found.add(entry.id)
            known.add(attempt)
    return found


def _most_within(times: list[int], span: int) -> int:
    """How many of these (in their order) lie within any `span`."""
    most = start = 0
    for end, at in enumerate(times):
        while at - times[start] >= span:
            start += 1
        most = max(most, end + 1 - start)
    return most


def _window(at: int, window: str) -> str:
    day = datetime.datetime.fromtimestamp(at / 1000, datetime.UTC).date()
    if window == "week":
        day -= datetime.timedelta(days=day.weekday())
    return str(day.replace(day=1) if window == "month" else day)
