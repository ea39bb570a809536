"""Limits as data. A `Bound` gives both the lines in seats.toml or the quotas file, and the rule that the
ledger is checked against. A new kind of limit is a new case of `format_limits` and `compute_uses`.
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
"""A claim's time is known as the ms before its end, both rounded."""

Resource = Literal["dollars", "tokens", "requests", "jobs"]


@dataclass(frozen=True)
class Bound:
    """One limit. `who`: its subject (`seat m1.openai`, `agent thrifty`, `owner alice`, `family deep`,
    `grid`). `amount`: money in micro-dollars. `per`: its window: one of the calendar; `5h` or `1m`, from the
    first use; or `minute`, any sixty seconds. `own`: it is in the machine's seats file, else in the quotas
    file. `key`: its own key there, else it is in `budgets`. `share`: the part that the owner lends of a
    larger limit.
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
        """The subject's name."""
        return self.who.partition(" ")[2]

    @property
    def table(self) -> str:
        """Its table in the quotas file."""
        tables = {"family": "families", "grid": "grid"}
        table = tables.get(self.kind, f"{self.kind}s")
        return f'{table}."{self.name}"' if self.name else table

    def value(self) -> str:
        """Return the amount as it is written in the files."""
        whole = self.amount / self.share
        return f"{whole / MICRO:.6f}" if self.resource == "dollars" else f"{whole:.0f}"


def format_limits(limits: Iterable[Bound]) -> str:
    """Return the lines of one table."""
    limits = tuple(limits)
    lines = [f"{each.key} = {each.value()}" for each in limits if each.key]
    lines += [f'period = "{each.per}"' for each in limits if each.key in ("budget", "budget_dollars")]
    listed = [f'{{{each.resource} = {each.value()}, per = "{each.per}"}}' for each in limits if not each.key]
    if listed:
        lines.append(f"budgets = [{', '.join(listed)}]")
    shares = {each.share for each in limits} - {1.0}
    return "\n".join([*lines, *(f"lend = {{share = {share}}}" for share in shares)])


def format_seat_limits(seat: str, limits: Iterable[Bound]) -> str:
    """Return the lines of a seat's table in its machine's seats file."""
    return format_limits(each for each in limits if each.own and each.who == f"seat {seat}")


def format_quotas_file(limits: Iterable[Bound], teams: Mapping[str, str]) -> str:
    """Return a layout's quotas file, with `{dollars}` for the money of the agent `poor`. `teams`: agent →
    team. Agents without a table have more money than they use.
    """
    tables: dict[str, list[Bound]] = {f'teams."{team}"': [] for team in teams.values()}
    for each in limits:
        if not (each.kind == "seat" and each.own):
            tables.setdefault(each.table, []).append(each)
    of_team = {f'agents."{agent}"': f'team = "{team}"\n' for agent, team in teams.items()}
    for table in of_team:
        tables.setdefault(table, [])
    text = "".join(
        f"[{table}]\n{of_team.get(table, '')}{format_limits(mine)}\n\n" for table, mine in tables.items()
    )
    rich = '[agents."*"]\nmonthly_dollars = 1000000\n\n[agents.poor]\nmonthly_dollars = {dollars}\n\n'
    return rich + text.replace("{", "{{").replace("}", "}}")


@dataclass(frozen=True)
class Use:
    """The use of a limit. `used`: in its fullest window. `late`: the part of that which attempts reported
    after the grid had given them up, when their reservation was gone. `windows`: the number of windows with
    any use.
    """

    bound: Bound
    used: int
    late: int = 0
    windows: int = 1

    @property
    def over(self) -> bool:
        return self.used > self.bound.amount + self.late

    @property
    def reached(self) -> bool:
        """True if at least nine tenths of it were used."""
        return self.used >= self.bound.amount * 0.9

    def to_json(self) -> dict[str, str | int]:
        """Return it as JSON."""
        bound = self.bound
        return {"who": bound.who, "of": bound.amount, "resource": bound.resource, "per": bound.per,
                "used": self.used, "late": self.late, "windows": self.windows}  # fmt: skip


def list_overdrawn(compute_uses: Iterable[Use]) -> tuple[str, ...]:
    """Return a sentence for each limit that was exceeded."""
    return tuple(
        f"{use.bound.who}: {use.used} {use.bound.resource} in {use.bound.per}, of {use.bound.amount} and "
        f"{use.late} of attempts given up"
        for use in compute_uses
        if use.over
    )


def compute_uses(
    limits: Iterable[Bound],
    entries: list[Entry],
    owners: Mapping[str, str],
    families: Mapping[str, tuple[str, ...]],
) -> list[Use]:
    """Return the use of each limit, from the entries of the ledger alone. `owners`, `families`: by the ids of
    seats.
    """
    late_entries = _find_late_entries(entries)

    def applies(entry: Entry, bound: Bound) -> bool:
        if bound.kind == "owner":
            return owners.get(entry.seat) == bound.name
        if bound.kind == "family":
            return bound.name in families.get(entry.seat, ())
        return {"seat": entry.seat, "agent": entry.agent, "team": entry.team, "grid": ""}[
            bound.kind
        ] == bound.name

    def use(bound: Bound) -> Use:
        if bound.per == "minute":
            claims = [at for at, entry in _list_claims(entries) if applies(entry, bound)]
            return Use(bound, _max_within(sorted(claims), MINUTE_MS - ROUNDING_MS))
        sums: Counter[str] = Counter()
        late: Counter[str] = Counter()
        window = ""  # the id of the entry with which it begins
        for entry in entries:
            if _starts_window(entry, bound):
                window = entry.id
            elif applies(entry, bound):
                used = _get_use(bound, entry)
                # What agents and teams have used in a month is counted by the month, without such entries.
                at = entry.month if bound.key.startswith("monthly_") else window
                sums[at] += used
                late[at] += used * (entry.id in late_entries)
        fullest = max(sums, key=lambda name: sums[name] - late[name], default="")
        return Use(bound, sums[fullest], late[fullest], len(+sums))

    return [use(bound) for bound in limits]


def _starts_window(entry: Entry, bound: Bound) -> bool:
    """Return whether an entry starts a new window of a limit."""
    if entry.what != "refill":
        return False
    name = f"{'money' if bound.resource == 'dollars' else bound.resource}/{bound.per}"
    if bound.kind == "seat":
        account = "own" if bound.own else "grid"
        return (entry.seat, entry.queue) == (bound.name, f"{account}/{name}")
    account_name = WHOLE_GRID if bound.kind == "grid" else f"{bound.kind[0]}:{bound.name}"
    return (entry.seat, entry.agent, entry.queue) == ("", account_name, name)


def _get_use(bound: Bound, entry: Entry) -> int:
    """Return what an entry uses of a limit. Agents and teams pay for recorded attempts, seats and all above
    them for every attempt.
    """
    if bound.resource == "jobs":
        return int(entry.what == "job")
    pays = entry.charged == "agent" if bound.kind in ("agent", "team") else entry.charged is not None
    if not pays:
        return 0
    if bound.resource == "requests":
        return entry.requests
    return entry.tokens_in + entry.tokens_out if bound.resource == "tokens" else entry.micro_dollars or 0


def _list_claims(entries: list[Entry]) -> list[tuple[int, Entry]]:
    """Return the first entry of each attempt, with the time of its claim."""
    found: dict[tuple[str, int | None, int | None], tuple[int, Entry]] = {}
    for entry in entries:
        if entry.charged and entry.ms is not None:
            found.setdefault((entry.job, entry.step, entry.attempt), (entry.at - entry.ms, entry))
    return list(found.values())


def _find_late_entries(entries: list[Entry]) -> set[str]:
    """Return the ids of the entries that add use to an attempt that the ledger already had."""
    known: set[tuple[str, int | None, int | None]] = set()
    found = set()
    for entry in entries:
        if entry.charged:
            attempt = (entry.job, entry.step, entry.attempt)
            if attempt in known or entry.what == LATE:
                found.add(entry.id)
            known.add(attempt)
    return found


def _max_within(times: list[int], span: int) -> int:
    """Return the largest number of these sorted times that lie within any `span`."""
    most = start = 0
    for end, at in enumerate(times):
        while at - times[start] >= span:
            start += 1
        most = max(most, end + 1 - start)
    return most
