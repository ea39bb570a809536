"""Limits as data: from one `Bound` come the lines in a machine's seats.toml or in the quotas file, and the
rule that the ledger is held to. A new kind of limit is a new case of `lines_of` and of `uses`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from gridq.limits.ledger import LATE, Entry
from gridq.protocol.meters import WHOLE_GRID

MICRO = 1_000_000
MINUTE_MS = 60_000
ROUNDING_MS = 2
"""A claim is told as the ms before its end, both rounded."""

Resource = Literal["dollars", "tokens", "requests", "jobs"]


@dataclass(frozen=True)
class Bound:
    """One limit: whom it binds (`seat m1.openai`, `agent thrifty`, `owner alice`, `family deep`, `grid`), how
    much of what (of money micro-dollars), and in which window: one of the calendar, `5h` from its first use
    on, `1m` too, or `minute`, any sixty seconds. `own` stands in the machine's own file, else in the grid's;
    `key` is its own key there, else it is one of `budgets`. `share`: the owner has set so much more, and
    lends this part of it.
    """

    who: str
    resource: Resource
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
        return f"{whole / MICRO:.6f}" if self.resource == "dollars" else f"{whole:.0f}"


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


def own_lines(seat: str, limits: Iterable[Bound]) -> str:
    """The lines of a seat's table in its machine's file."""
    return lines_of(each for each in limits if each.own and each.who == f"seat {seat}")


def quotas_of(limits: Iterable[Bound], teams: Mapping[str, str]) -> str:
    """The quotas file as a layout has it, `{dollars}` where the money of the agent `poor` stands. `teams`: of
    agents. Whoever has no table of its own is rich.
    """
    tables: dict[str, list[Bound]] = {f'teams."{team}"': [] for team in teams.values()}
    for each in limits:
        if not (each.kind == "seat" and each.own):
            tables.setdefault(each.table, []).append(each)
    of_team = {f'agents."{agent}"': f'team = "{team}"\n' for agent, team in teams.items()}
    for table in of_team:
        tables.setdefault(table, [])
    told = "".join(
        f"[{table}]\n{of_team.get(table, '')}{lines_of(mine)}\n\n" for table, mine in tables.items()
    )
    rich = '[agents."*"]\nmonthly_dollars = 1000000\n\n[agents.poor]\nmonthly_dollars = {dollars}\n\n'
    return rich + told.replace("{", "{{").replace("}", "}}")


@dataclass(frozen=True)
class Use:
    """The most that was used of a bound in any of its windows, and what of that could not be held back: it
    was told of attempts that the grid had given up, whose hold was gone by then. `windows`: how many had any
    use.
    """

    bound: Bound
    most: int
    late: int = 0
    windows: int = 1

    @property
    def over(self) -> bool:
        return self.most > self.bound.amount + self.late

    @property
    def reached(self) -> bool:
        """Whether it kept something back, or was about to: nine tenths of it were used."""
        return self.most >= self.bound.amount * 0.9

    def to_json(self) -> dict[str, str | int]:
        """The figures."""
        bound = self.bound
        return {"who": bound.who, "of": bound.amount, "thing": bound.resource, "per": bound.per,
                "used": self.most, "late": self.late, "windows": self.windows}  # fmt: skip


def overdrawn(uses: Iterable[Use]) -> tuple[str, ...]:
    """In words, each limit of which more was used than may be."""
    return tuple(
        f"{use.bound.who}: {use.most} {use.bound.resource} in {use.bound.per}, of {use.bound.amount} and "
        f"{use.late} of attempts given up"
        for use in uses
        if use.over
    )


def uses(
    limits: Iterable[Bound],
    entries: list[Entry],
    owners: Mapping[str, str],
    families: Mapping[str, tuple[str, ...]],
) -> list[Use]:
    """How far each bound was used, by the entries of the ledger alone. `owners` and `families` are those of
    seats, by their ids.
    """
    given_up = _given_up(entries)

    def concerns(entry: Entry, bound: Bound) -> bool:
        if bound.kind == "owner":
            return owners.get(entry.seat) == bound.name
        if bound.kind == "family":
            return bound.name in families.get(entry.seat, ())
        return {"seat": entry.seat, "agent": entry.agent, "team": entry.team, "grid": ""}[
            bound.kind
        ] == bound.name

    def use(bound: Bound) -> Use:
        if bound.per == "minute":
            claims = [at for at, entry in _requests(entries) if concerns(entry, bound)]
            return Use(bound, _most_within(sorted(claims), MINUTE_MS - ROUNDING_MS))
        sums: Counter[str] = Counter()
        late: Counter[str] = Counter()
        window = ""  # the id of the entry with which it begins
        for entry in entries:
            if _begins(entry, bound):
                window = entry.id
            elif concerns(entry, bound):
                used = _used(bound, entry)
                # What agents and teams have used in a month is counted by the month, without such entries.
                at = entry.month if bound.key.startswith("monthly_") else window
                sums[at] += used
                late[at] += used * (entry.id in given_up)
        most = max(sums, key=lambda name: sums[name] - late[name], default="")
        return Use(bound, sums[most], late[most], len(+sums))

    return [use(bound) for bound in limits]


def _begins(entry: Entry, bound: Bound) -> bool:
    """Whether an entry says that a window of a bound begins, with nothing used of it."""
    if entry.what != "refill":
        return False
    name = f"{'money' if bound.resource == 'dollars' else bound.resource}/{bound.per}"
    if bound.kind == "seat":
        sheet = "own" if bound.own else "grid"
        return (entry.seat, entry.queue) == (bound.name, f"{sheet}/{name}")
    bearer = WHOLE_GRID if bound.kind == "grid" else f"{bound.kind[0]}:{bound.name}"
    return (entry.seat, entry.agent, entry.queue) == ("", bearer, name)


def _used(bound: Bound, entry: Entry) -> int:
    """What an entry uses of a bound that it concerns. Agents and teams pay for what is recorded, seats and
    what is above them for all of it.
    """
    if bound.resource == "jobs":
        return int(entry.what == "job")
    pays = entry.charged == "agent" if bound.kind in ("agent", "team") else entry.charged is not None
    if not pays:
        return 0
    if bound.resource == "requests":
        return entry.requests
    return entry.tokens_in + entry.tokens_out if bound.resource == "tokens" else entry.micro_dollars or 0


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
