"""The quotas file: what agents, teams and seats may use and queues may hold, as the operator wrote it.

It is JSON or TOML, told apart by the file's name. Any mistake refuses the whole file and names its line and
key, so that no limit is ever lost to a slip of the pen. Money is dollars or cents in the file and integer
micro-dollars inside. A limit that is left out, or `"none"`, is no limit; 0 permits nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, get_args

from gridq.config.source_positions import ConfigText
from gridq.errors import ConfigError, QuotasFileError
from gridq.protocol import budget_syntax, meters
from gridq.protocol import queue_names as names
from gridq.protocol.budget_syntax import AGENT_UNITS, MINUTE, NO_WINDOW, SEAT_UNITS, BudgetError, Unit
from gridq.protocol.calendar import WINDOW_COUNTS, Period
from gridq.protocol.models import Limit, Resource

Policy = Literal["reject", "drop-oldest-batch"]

NAME = re.compile(r"[A-Za-z0-9_.@-]{1,64}")
"""What an agent, a team or a seat may be called; an agent's `*` stands for each agent that has no table."""

LONGEST_NAME = 200
"""Characters of a model's or a family's name."""

LLM, ANY = "llm", "any"
"""The kind of the queues that are called by models, and the one that is no model's."""

EVERYONE = "*"
NO_TEAM = "-"
"""What stands in place of a team where there is none; a team so called would lose its limits."""

LONGEST = 1_000_000
"""Bytes that a quotas file may have."""

MOST = 1_000_000_000
MOST_PER_MINUTE = 100_000

FORM = "3"
"""Of what the scripts read: where it changes, limits that are in force are put in force again."""

TABLES = ("agents", "teams", "seats", "owners", "families", "grid", "queues")
POLICIES: tuple[Policy, ...] = get_args(Policy)
SHARED = ("budgets", "requests_per_minute", "tokens_per_minute", "parallel")
"""What a seat, an owner, a model family and the whole grid may have."""

PLAIN: tuple[tuple[str, Resource, str], ...] = (
    ("requests_per_minute", "requests", MINUTE),
    ("tokens_per_minute", "tokens", MINUTE),
    ("parallel", "parallel", NO_WINDOW),
)
"""Keys that are each a budget of their own → its thing and window."""

_EXAMPLE = '[agents.ann] monthly_dollars = 50, or seed JSON such as {"ann": 5000} (cents a month)'


@dataclass(frozen=True, slots=True)
class AgentLimit:
    """What one agent may use in a month; None: no limit. Money in micro-dollars. `budgets`: in the windows of
    each.
    """

    team: str | None = None
    money: int | None = None
    jobs: int | None = None
    budgets: tuple[Limit, ...] = ()


@dataclass(frozen=True, slots=True)
class TeamLimit:
    """What all agents of one team together may use."""

    money: int | None = None
    jobs: int | None = None
    budgets: tuple[Limit, ...] = ()


@dataclass(frozen=True, slots=True)
class SeatLimit:
    """What one seat, by its full id `machine.seat`, may give: beside what its own machine's file says, never
    instead of it. `budgets` are all but the requests a minute. `gridq report` knows by `cost` what is paid
    for it a month, by `owner` whose agent it is.
    """

    budgets: tuple[Limit, ...] = ()
    per_minute: int | None = None
    cost: int | None = None
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class QueueLimit:
    """How many stages may stand ready in one queue when a job is admitted (None: any number), and what is
    done where it is full: refuse, or end the batch job that stands there the longest for an interactive one.
    `*` stands for each capability's queue that has no table of its own.
    """

    most: int | None = None
    policy: Policy = "reject"


@dataclass(frozen=True, slots=True)
class Limits:
    """A whole quotas file. `digest` tells two contents apart."""

    agents: dict[str, AgentLimit] = field(default_factory=dict)
    teams: dict[str, TeamLimit] = field(default_factory=dict)
    seats: dict[str, SeatLimit] = field(default_factory=dict)
    digest: str = ""
    queues: dict[str, QueueLimit] = field(default_factory=dict)
    owners: dict[str, tuple[Limit, ...]] = field(default_factory=dict)
    families: dict[str, tuple[Limit, ...]] = field(default_factory=dict)
    grid: tuple[Limit, ...] = ()

    def fields(self) -> dict[str, str]:
        """As the scripts read them: `a:<agent>` → "team money jobs", `t:<team>` → "money jobs", `s:<seat>` →
        "requests-a-minute owner meter …", `q:<queue>` → "most policy", each `-` where there is none; `q` says
        how many queues have a table; `m:<bearer>` → "meter …" (`gridq.protocol.meters`).
        """
        found = {f"a:{name}": _words(one.team, one.money, one.jobs) for name, one in self.agents.items()}
        found |= {f"t:{name}": _words(one.money, one.jobs) for name, one in self.teams.items()}
        found |= {
            f"s:{name}": f"{_words(one.per_minute, one.owner)} {meters.format_limits(one.budgets)}".rstrip()
            for name, one in self.seats.items()
        }
        shared = {f"a:{name}": one.budgets for name, one in self.agents.items()}
        shared |= {f"t:{name}": one.budgets for name, one in self.teams.items()}
        shared |= {f"o:{name}": limits for name, limits in self.owners.items()}
        shared |= {f"f:{names.normalize_slug(name)}": limits for name, limits in self.families.items()}
        shared[meters.WHOLE_GRID] = self.grid
        found |= {f"m:{bearer}": meters.format_limits(limits) for bearer, limits in shared.items() if limits}
        found |= {f"q:{name}": _words(one.most, one.policy) for name, one in self.queues.items()}
        return found | ({"q": str(len(self.queues))} if self.queues else {})


def _words(*values: object) -> str:
    return " ".join("-" if value is None else str(value) for value in values)


def load(path: Path) -> Limits:
    """The limits of a quotas file. QuotasFileError: it cannot be read, or has a mistake in it."""
    try:
        data = path.read_bytes()
        if len(data) > LONGEST:
            raise QuotasFileError(
                "The quotas file is too long", {"path": str(path), "expected": "up to 1 MB"}
            )
        text = data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as exc:
        raise QuotasFileError(
            "The quotas file cannot be read",
            {
                "path": str(path),
                "reason": getattr(exc, "strerror", None) or str(exc),
                "fix": "correct GRIDQ_QUOTAS or the file's permissions; an empty table {} sets no limits",
            },
        ) from None
    return parse(text, str(path))


def parse(text: str, name: str) -> Limits:
    """The limits in the text of a quotas file called `name`. QuotasFileError names the line and the key."""
    return _Reader(text, name).limits()


class _Reader(ConfigText):
    """One text being read."""

    def limits(self) -> Limits:
        data = self.read()
        if not isinstance(data, dict):
            self.refuse((), "The quotas file is no table", f"a table such as {_EXAMPLE}")
        if data and not data.keys() & set(TABLES) and all(map(_is_number, data.values())):
            # The plain map of key → cents a month, as noether's broker reads it.
            data = {"agents": {key: {"monthly_cents": value} for key, value in data.items()}}
            self.flat = True
        agents: dict[str, AgentLimit] = {}
        teams: dict[str, TeamLimit] = {}
        seats: dict[str, SeatLimit] = {}
        queues: dict[str, QueueLimit] = {}
        self.only(data, (), TABLES)
        keys: tuple[str, ...] = ("monthly_dollars", "monthly_cents", "monthly_jobs", "budgets")
        for team, at, table in self.tables(data, "teams", keys):
            limits = self.money(table, at, "monthly"), self.count(table, at, "monthly_jobs")
            teams[team] = TeamLimit(*limits, self.budgets(table, at, AGENT_UNITS, spans=False))
        keys = ("team", *keys)
        for agent, at, table in self.tables(data, "agents", keys):
            limits = self.money(table, at, "monthly"), self.count(table, at, "monthly_jobs")
            more = self.budgets(table, at, AGENT_UNITS, spans=False)
            agents[agent] = AgentLimit(self.team(table, at, teams), *limits, more)
        keys = ("budget_dollars", "budget_cents", "period", "cost_dollars", "owner", *SHARED)
        for seat, at, table in self.tables(data, "seats", keys):
            seats[seat] = SeatLimit(
                self.of_seat(table, at),
                self.count(table, at, "requests_per_minute", MOST_PER_MINUTE),
                self.money(table, at, "cost"),
                self.owner(table, at),
            )
        owners = {name: self.all_of(table, at) for name, at, table in self.tables(data, "owners", SHARED)}
        families: dict[str, tuple[Limit, ...]] = {}
        written: dict[str, str] = {}
        for family, at, table in self.tables(data, "families", SHARED):
            self.apart(written, names.normalize_slug(family), at, "family")
            families[family] = self.all_of(table, at)
        whole = data.get("grid", {})
        if not isinstance(whole, dict):
            self.refuse(("grid",), "grid is no table", "a table with " + ", ".join(SHARED))
        self.only(whole, ("grid",), SHARED)
        grid = self.all_of(whole, ("grid",))
        for name, at, table in self.tables(data, "queues", ("max_pending", "policy")):
            queue = name if name == EVERYONE else self.queue(name, at)
            self.apart(written, queue, at, "queue")
            queues[queue] = QueueLimit(self.count(table, at, "max_pending"), self.policy(table, at))
        digest = hashlib.sha256(f"{FORM} {self.text}".encode()).hexdigest()[:16]
        return Limits(agents, teams, seats, digest, queues, owners, families, grid)

    # -- values

    def tables(
        self, data: dict[str, Any], kind: str, keys: tuple[str, ...]
    ) -> list[tuple[str, tuple[str, ...], dict[str, Any]]]:
        """(name, where it stands, its table) of every entry of one kind, each with known keys alone."""
        tables = data.get(kind, {})
        if not isinstance(tables, dict):
            self.refuse((kind,), f"{kind} is no table", f"a table of {kind} by name")
        found: list[tuple[str, tuple[str, ...], dict[str, Any]]] = []
        for name, table in tables.items():
            at = (kind, name)
            everyone = kind in ("agents", "queues") and name == EVERYONE
            if name.startswith("gq_"):
                self.refuse(at, "An API key stands in the quotas file", "the agent's name", "revoke that key")
            if kind == "families":
                self.family(name, at)
            elif kind != "queues" and not everyone and not NAME.fullmatch(name):
                self.refuse(at, f"{name!r} is no name", "1 to 64 letters, digits, '_', '.', '@' or '-'")
            if kind == "teams" and name == NO_TEAM:
                self.refuse(
                    at, f"{name!r} is no team's name", "another name", "the grid writes it for no team"
                )
            if not isinstance(table, dict):
                self.refuse(at, f"The entry of {name!r} is no table", f"a table such as {_EXAMPLE}")
            self.only(table, at, keys)
            found.append((name, at, table))
        return found

    def only(self, table: dict[str, Any], at: tuple[str, ...], keys: tuple[str, ...]) -> None:
        for key in table:
            if key not in keys:
                self.refuse((*at, key), f"There is no key {key!r}", "one of " + ", ".join(keys))

    def money(self, table: dict[str, Any], at: tuple[str, ...], what: str) -> int | None:
        """Micro-dollars; None: no limit."""
        dollars, cents = f"{what}_dollars", f"{what}_cents"
        if dollars in table and cents in table:
            self.refuse((*at, cents), f"Both {dollars} and {cents} are given", "one of them", "remove one")
        unit: Unit = "cents" if cents in table else "dollars"
        key = f"{what}_{unit}"
        value = table.get(key)
        if value is None or value == "none":
            return None
        try:
            return budget_syntax.parse_amount(value, unit, key)
        except BudgetError as exc:
            self.refuse((*at, key), exc.message, f'{exc.expected}, or "none"')

    def count(self, table: dict[str, Any], at: tuple[str, ...], key: str, most: int = MOST) -> int | None:
        value = table.get(key)
        if value is None or value == "none":
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            self.refuse((*at, key), f"{key} is no count", f'a whole number from 0 to {most}, or "none"')
        return int(value)

    def budgets(
        self, table: dict[str, Any], at: tuple[str, ...], units: tuple[Unit, ...], *, spans: bool = True
    ) -> tuple[Limit, ...]:
        """What `budgets` lists."""
        listed, at = table.get("budgets", []), (*at, "budgets")
        if not isinstance(listed, list):
            self.refuse(at, "budgets is no list", f'a list such as [{{{units[0]} = 5, per = "day"}}]')
        try:
            return budget_syntax.check_distinct(
                [budget_syntax.parse_limit(each, units, first_use=spans) for each in listed]
            )
        except BudgetError as exc:
            self.refuse(at, exc.message + (f" (its {exc.key})" if exc.key else ""), exc.expected)

    def of_seat(self, table: dict[str, Any], at: tuple[str, ...]) -> tuple[Limit, ...]:
        """The budgets of a seat: its requests a minute are none, for they are exact in any minute."""
        budget, period = self.money(table, at, "budget"), self.period(table, at)
        found = [] if budget is None else [Limit(resource="money", window=period, amount=budget)]
        return self.all_of({**table, "requests_per_minute": None}, at, found)

    def all_of(
        self, table: dict[str, Any], at: tuple[str, ...], others: Sequence[Limit] = ()
    ) -> tuple[Limit, ...]:
        """What the keys SHARED state, behind `others`."""
        found = [*others, *self.budgets(table, at, SEAT_UNITS)]
        for key, resource, window in PLAIN:
            most = self.count(table, at, key)
            if most is not None:
                found.append(Limit(resource=resource, window=window, amount=most))
        try:
            return budget_syntax.check_distinct(found)
        except BudgetError as exc:
            self.refuse((*at, "budgets"), exc.message, exc.expected)

    def team(self, table: dict[str, Any], at: tuple[str, ...], teams: dict[str, TeamLimit]) -> str | None:
        team = table.get("team")
        if team is None:
            return None
        if at[1] == EVERYONE:
            self.refuse((*at, "team"), "Everyone else is no team", "no team here", "name the agents")
        if not isinstance(team, str) or team not in teams:
            expected = "one of " + ", ".join(sorted(teams)) if teams else "a team with a table of its own"
            fix = f"add [teams.{team}] or correct the name" if isinstance(team, str) else "write a name"
            self.refuse((*at, "team"), f"There is no team {team!r}", expected, fix)
        return team

    def period(self, table: dict[str, Any], at: tuple[str, ...]) -> Period:
        value = table.get("period", "month")
        for period in WINDOW_COUNTS:
            if value == period:
                return period
        return self.refuse((*at, "period"), f"{value!r} is no period", "one of " + ", ".join(WINDOW_COUNTS))

    def owner(self, table: dict[str, Any], at: tuple[str, ...]) -> str | None:
        name = table.get("owner")
        if name is not None and not (isinstance(name, str) and NAME.fullmatch(name)):
            self.refuse((*at, "owner"), f"{name!r} is no agent's name", "an agent's name")
        return name

    def family(self, name: str, at: tuple[str, ...]) -> None:
        """A model's or a family's own name, such as `meta/llama-3`, or its slug."""
        if not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
            expected = f"a model's or a family's name, up to {LONGEST_NAME} characters"
            self.refuse(at, f"{name[:LONGEST_NAME]!r} is no name", expected)
        if names.normalize_slug(name) == ANY:
            self.refuse(at, f"{name!r} is no family", "a model's or a family's name", "limit all by [grid]")
        if names.get_kind(name) == LLM:
            model = name.removeprefix(f"{LLM}:")
            self.refuse(at, f"{name!r} is a queue, no family", repr(model), f'write [families."{model}"]')

    def queue(self, name: str, at: tuple[str, ...]) -> str:
        """The queue that a name means: as `gridq queues` shows it, or with the model's own name in it."""
        kind, colon, rest = name.partition(":")
        try:
            return names.check_queue_name(
                f"{kind}:{names.normalize_slug(rest)}" if colon and name.isprintable() else name
            )
        except ConfigError as exc:
            self.refuse(at, f"{name!r} is no queue", str(exc.expected), "take a name that gridq queues shows")

    def apart(self, written: dict[str, str], name: str, at: tuple[str, ...], what: str) -> None:
        """Refuse a second table of what is known as `name`, however the two are written."""
        first = written.setdefault(name, at[1])
        if first != at[1]:
            self.refuse(at, f"{first!r} and {at[1]!r} are one {what}", "one table for both")

    def policy(self, table: dict[str, Any], at: tuple[str, ...]) -> Policy:
        value = table.get("policy", "reject")
        for policy in POLICIES:
            if value == policy:
                return policy
        return self.refuse((*at, "policy"), f"{value!r} is no policy", "one of " + ", ".join(POLICIES))


def _is_number(value: object) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)
