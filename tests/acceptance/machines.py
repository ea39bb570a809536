"""The three machines of the closing test: their seats, what these cost, and every limit that binds.

A limit is written once, as a `Bound`: from it come the lines in the machine's seats.toml or in the quotas
file, and the rule that the ledger is held to. A new kind of limit is a new case of `lines_of` and of
`uses`.
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
LEAST = 6000
"""Micro-dollars of the smallest budget: it lets some calls in, each of which is held with some reserve."""
MOST_TOKENS = 600
"""What a stage says that its answer may take: more than any call has, those of its prompt included."""


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
"""One that says what it may cost, and one of which that is estimated."""


@dataclass(frozen=True)
class Seat:
    """One seat: `price` None where it is a subscription. `families` can be asked of it."""

    machine: str
    name: str
    wire: Wire
    families: tuple[str, ...]
    price: Price | None
    lanes: int = 1
    owner: str = ""

    @property
    def id(self) -> str:
        return f"{self.machine}.{self.name}"

    @property
    def cli(self) -> bool:
        return self.wire in ("claude", "codex")


SEATS = (
    Seat("m1", "openai", "openai", ("fast",), Price("0.5", "2", cached="0.05"), lanes=4, owner="alice"),
    Seat("m1", "claude", "claude", ("deep",), None),
    Seat("m2", "anthropic", "anthropic", ("fast", "deep"),
         Price("0.8", "3", cached="0.08", written="1"), lanes=10),
    Seat("m2", "codex", "codex", ("deep", "rare"), Price("1.25", "2", cached="0.125")),
    Seat("m3", "google", "google", ("fast",), Price("0.3", "2.5", cached="0.075", reasoning="3.5"), lanes=4),
    Seat("m3", "work", "claude", ("deep", "rare"), Price("0.7", "2.75", cached="0.07", written="0.9"),
         owner="alice"),
)  # fmt: skip
FAMILIES: dict[tuple[str, ...], int] = {("fast",): 86, ("deep",): 7, ("rare", "fast"): 7}
"""How often each is asked for; of two the first that a seat can take. Few are for programs: a call of one
costs the start of a process.
"""

AGENTS = {"cat": "research", "thrifty": "research"}
"""Agents whose money is little, and their team."""


Thing = Literal["dollars", "tokens", "requests", "jobs"]


@dataclass(frozen=True)
class Bound:
    """One limit: whom it binds (`seat m1.openai`, `agent thrifty`, `owner alice`, `family deep`, `grid`), how
    much of what (of money micro-dollars), and in which window: one of the calendar in UTC, `5h` from its
    first use on, `1m` too, or `minute`, any sixty seconds. `own` stands in the machine's own file, else in
    the grid's; `key` is its own key there, else it is one of `budgets`. `share`: the owner has set so much
    more, and lends this part of it.
    """

    who: str
    thing: Thing
    amount: int
    per: str
    own: bool = True
    key: str = ""
    share: float = 1.0

    @property
    def kind(self) -> str:
        return self.who.partition(" ")[0]

    @property
    def name(self) -> str:
        """The name of whom it binds."""
        return self.who.partition(" ")[2]

    @property
    def table(self) -> str:
        """Its table in the quotas file."""
        tables = {"family": "families", "grid": "grid"}
        table = tables.get(self.kind, f"{self.kind}s")
        return f'{table}."{self.name}"' if self.name else table

    def value(self) -> str:
        """The amount as the files have it."""
        whole = self.amount / self.share
        return f"{whole / MICRO:.6f}" if self.thing == "dollars" else f"{whole:.0f}"


def lines_of(limits: Iterable[Bound]) -> str:
    """The lines for one table."""
    limits = tuple(limits)
    lines = [f"{each.key} = {each.value()}" for each in limits if each.key]
    lines += [f'period = "{each.per}"' for each in limits if each.key in ("budget", "budget_dollars")]
    listed = [f'{{{each.thing} = {each.value()}, per = "{each.per}"}}' for each in limits if not each.key]
    if listed:
        lines.append(f"budgets = [{', '.join(listed)}]")
    shares = {each.share for each in limits} - {1.0}
    return "\n".join([*lines, *(f"lend = {{share = {share}}}" for share in shares)])


def bounds(stages: int) -> tuple[Bound, ...]:
    """Limits for a run of so many stages. Each seat has some that bind it but the one that can do everything;
    so has each poorer agent.
    """

    def least(micro: int) -> int:
        return max(micro, LEAST)

    return (
        Bound("seat m1.openai", "dollars", least(stages * 32), "day", key="budget"),
        Bound("seat m1.openai", "requests", max(stages // 5, 20), "5h"),
        Bound("seat m1.claude", "tokens", max(stages * 4, 4000), "week"),
        Bound("seat m1.claude", "requests", 20, "minute", own=False, key="requests_per_minute"),
        Bound("seat m2.anthropic", "dollars", stages * 1000, "month"),
        Bound("seat m2.codex", "dollars", least(stages * 3), "week", own=False, key="budget_dollars"),
        Bound("seat m2.codex", "requests", max(stages // 100, 5), "day", own=False),
        Bound("seat m3.google", "dollars", least(stages * 36), "month", own=False),
        Bound("seat m3.google", "requests", max(20, stages // 30), "minute", key="requests_per_minute"),
        Bound("seat m3.google", "tokens", max(20_000, stages * 10), "1m", key="tokens_per_minute"),
        Bound("seat m3.work", "dollars", least(stages * 3), "month", share=0.5),
        Bound("owner alice", "dollars", least(stages * 33), "day"),
        Bound("owner alice", "tokens", stages * 300, "5h"),
        Bound("family deep", "requests", stages * 2, "week"),
        Bound("family fast", "tokens", stages * 1000, "day"),
        Bound("grid", "dollars", stages * 1000, "day"),
        Bound("grid", "tokens", stages * 1000, "5h"),
        Bound("agent thrifty", "dollars", max(stages * 12, 8 * LEAST), "month", key="monthly_dollars"),
        Bound("agent thrifty", "tokens", max(stages * 20, 20 * MOST_TOKENS), "week"),
        Bound("team research", "dollars", max(stages * 30, 12 * LEAST), "month", key="monthly_dollars"),
        Bound("team research", "dollars", max(stages * 28, 12 * LEAST), "day"),
        Bound("agent cat", "jobs", max(3, stages // 250), "month", key="monthly_jobs"),
        Bound("agent cat", "jobs", max(3, stages // 260), "week"),
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
    lines += [f'owner = "{seat.owner}"'] if seat.owner else []
    lines.append(lines_of(each for each in limits if each.who == f"seat {seat.id}" and each.own))
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
    tables: dict[str, list[Bound]] = {f'teams."{team}"': [] for team in AGENTS.values()}
    for each in limits:
        if not (each.kind == "seat" and each.own):
            tables.setdefault(each.table, []).append(each)
    teams = {f'agents."{agent}"': f'team = "{team}"\n' for agent, team in AGENTS.items()}
    told = "".join(f"[{table}]\n{teams.get(table, '')}{lines_of(mine)}\n\n" for table, mine in tables.items())
    rich = '[agents."*"]\nmonthly_dollars = 1000000\n\n[agents.poor]\nmonthly_dollars = {dollars}\n\n'
    return rich + told.replace("{", "{{").replace("}", "}}")


@dataclass(frozen=True)
class Use:
    """The most that was used of a bound in any of its windows, and what of that could not be held back: it
    was told of attempts that the grid had given up, whose hold was gone by then.
    """

    bound: Bound
    most: int
    late: int = 0

    @property
    def over(self) -> bool:
        # Of windows of a minute, which begin with their first use, two may meet within one of the clock's.
        windows = 2 if self.bound.per == "1m" else 1
        return self.most > self.bound.amount * windows + self.late


def uses(limits: Iterable[Bound], entries: list[Entry]) -> list[Use]:
    """How far each bound was used, by the entries of the ledger alone."""
    return [_use(each, entries) for each in limits]


def _use(bound: Bound, entries: list[Entry]) -> Use:
    mine = [entry for entry in entries if bound.name in _of(entry, bound.kind)]
    if bound.per == "minute":
        claims = [at for at, _ in _requests(mine)]
        return Use(bound, _most_within(sorted(claims), MINUTE_MS - ROUNDING_MS))
    sums: Counter[str] = Counter()
    late: Counter[str] = Counter()
    given_up = _given_up(entries)
    if bound.thing == "requests":
        for at, entry in _requests(mine):
            # One that was handed back before it had used anything is not counted.
            sums[_window(at, bound.per)] += entry.what != "back" or bool(entry.tokens_in)
    for entry in mine:
        window = _window(entry.at, bound.per)
        if bound.thing == "jobs":
            sums[window] += entry.what == "job"
        elif bound.thing != "requests" and _pays(bound, entry):
            used = entry.micro_dollars or 0
            if bound.thing == "tokens":
                used = entry.tokens_in + entry.tokens_out
            sums[window] += used
            late[window] += used * (entry.id in given_up)
    most = max(sums, key=lambda name: sums[name] - late[name], default="")
    return Use(bound, sums[most], late[most])


def _pays(bound: Bound, entry: Entry) -> bool:
    """Agents and teams pay for what is recorded, seats and what is above them for all of it."""
    return entry.charged == "agent" if bound.kind in ("agent", "team") else entry.charged is not None


def _of(entry: Entry, kind: str) -> tuple[str, ...]:
    """The names of those of a kind whom an entry concerns."""
    if kind in ("owner", "family"):
        seat = next((seat for seat in SEATS if seat.id == entry.seat), None)
        return () if seat is None else (seat.owner,) if kind == "owner" else seat.families
    return ({"seat": entry.seat, "agent": entry.agent, "team": entry.team, "grid": ""}[kind],)


def _requests(entries: list[Entry]) -> list[tuple[int, Entry]]:
    """The first entry of each attempt, and when it was claimed."""
    found: dict[tuple[str, int | None, int | None], tuple[int, Entry]] = {}
    for entry in entries:
        if entry.charged and entry.ms is not None:
            found.setdefault((entry.job, entry.step, entry.attempt), (entry.at - entry.ms, entry))
    return list(found.values())


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


def _window(at: int, per: str) -> str:
    """Which window an instant is in. Those of hours begin with their first use: no run is as long as one."""
    if per.endswith("h"):
        return per
    if per.endswith("m"):
        return str(at // MINUTE_MS)
    day = datetime.datetime.fromtimestamp(at / 1000, datetime.UTC).date()
    if per == "week":
        day -= datetime.timedelta(days=day.weekday())
    return str(day.replace(day=1) if per == "month" else day)
