"""The quotas file: what agents, teams and seats may use, and how many stages queues may hold.

It is JSON or TOML, by the file's name. An error anywhere refuses the whole file and names its line and key,
so that a typo never removes a limit. Money is dollars or cents in the file, and integer micro-dollars in
here. A limit that is missing or `"none"` is no limit; 0 permits nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from gridq.config.source_positions import ConfigText
from gridq.errors import ConfigError, QuotasFileError, quote
from gridq.protocol import budget_syntax, meters
from gridq.protocol import queue_names as names
from gridq.protocol.budget_syntax import AGENT_UNITS, MINUTE, NO_WINDOW, SEAT_UNITS, BudgetError, Unit
from gridq.protocol.calendar import Period
from gridq.protocol.models import Limit, Resource
from gridq.protocol.queue_aliases import NO_ALIASES, WILDCARD, QueueAliases
from gridq.protocol.queue_names import ANY_MODEL, LLM

Policy = Literal["reject", "drop-oldest-batch"]
Choice = TypeVar("Choice", bound=str)

NAME = re.compile(r"[A-Za-z0-9_.@-]{1,64}")
"""The names of agents, teams and seats."""

MAX_FAMILY_NAME_LENGTH = 200
"""Characters of the name of a model or a family."""

MAX_ALIAS_DEPTH = 8
"""How many aliases may stand for each other in a row."""

MAX_RESOLVED_TARGETS = 32
"""The most models that an alias stands for, with those of the aliases that it names."""

MAX_ALIAS_TARGETS = 7
"""Models that one name in `[models]` may stand for. With itself, as many as an effect may list."""

TARGETS = '"any", "llm:" and the name of a model or a family, or another name of [models]'

EVERYONE = "*"
"""Stands for each agent, or each queue, that has no table of its own."""

NO_TEAM = "-"
"""Stands for no team; a team of this name would lose its limits."""

MAX_FILE_BYTES = 1_000_000

MAX_COUNT = 1_000_000_000
MAX_PER_MINUTE = 100_000

FORMAT_VERSION = "4"
"""The version of what the scripts read. When it changes, routers apply their limits again."""

TABLES = ("agents", "teams", "seats", "owners", "families", "grid", "queues", "models")
POLICIES: tuple[Policy, ...] = get_args(Policy)
PERIODS: tuple[Period, ...] = get_args(Period)
SHARED = ("budgets", "requests_per_minute", "tokens_per_minute", "parallel")
"""Keys that a seat, an owner, a model family and the whole grid may have."""

SHORT_BUDGETS: tuple[tuple[str, Resource, str], ...] = (
    ("requests_per_minute", "requests", MINUTE),
    ("tokens_per_minute", "tokens", MINUTE),
    ("parallel", "parallel", NO_WINDOW),
)
"""Keys that are short for a budget: (key, resource, window)."""

_EXAMPLE = '[agents.ann] monthly_dollars = 50, or seed JSON such as {"ann": 5000} (cents a month)'


@dataclass(frozen=True, slots=True)
class AgentLimit:
    """The limits of one agent, by the month and in other windows. None: no limit; money in micro-dollars."""

    team: str | None = None
    money: int | None = None
    jobs: int | None = None
    budgets: tuple[Limit, ...] = ()


@dataclass(frozen=True, slots=True)
class TeamLimit:
    """The limits of all agents of one team together."""

    money: int | None = None
    jobs: int | None = None
    budgets: tuple[Limit, ...] = ()


@dataclass(frozen=True, slots=True)
class SeatLimit:
    """The limits of one seat, by its full id `machine.seat`, in addition to those of its own machine.

    `budgets` does not include the requests per minute. `gridq report` reads `cost`, the seat's price a month
    in micro-dollars, and `owner`, the agent that it belongs to.
    """

    budgets: tuple[Limit, ...] = ()
    requests_per_minute: int | None = None
    cost: int | None = None
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class QueueLimit:
    """The ready stages that one queue may hold when a job is admitted (None: any number), and the policy for
    a full queue: refuse the job, or drop the oldest batch job for an interactive one.
    """

    max_pending: int | None = None
    policy: Policy = "reject"


@dataclass(frozen=True, slots=True)
class Limits:
    """A quotas file. `digest` differs for different contents."""

    agents: dict[str, AgentLimit] = field(default_factory=dict)
    teams: dict[str, TeamLimit] = field(default_factory=dict)
    seats: dict[str, SeatLimit] = field(default_factory=dict)
    digest: str = ""
    queues: dict[str, QueueLimit] = field(default_factory=dict)
    owners: dict[str, tuple[Limit, ...]] = field(default_factory=dict)
    families: dict[str, tuple[Limit, ...]] = field(default_factory=dict)
    grid: tuple[Limit, ...] = ()
    models: QueueAliases = NO_ALIASES

    def to_fields(self) -> dict[str, str]:
        """Return the limits as the scripts read them, with `-` for a value that is missing.

        `models` → the aliases as JSON, `a:<agent>` → "team money jobs", `t:<team>` → "money jobs",
        `s:<seat>` → "requests-per-minute owner meter …", `q:<queue>` → "max_pending policy", `q` → the number
        of queues with a table, `m:<account>` → "meter …" (`gridq.protocol.meters`).
        """
        found = {f"a:{name}": _join_words(one.team, one.money, one.jobs) for name, one in self.agents.items()}
        found |= {f"t:{name}": _join_words(one.money, one.jobs) for name, one in self.teams.items()}
        for name, seat in self.seats.items():
            words = _join_words(seat.requests_per_minute, seat.owner)
            found[f"s:{name}"] = f"{words} {meters.format_limits(seat.budgets)}".rstrip()
        shared = {f"a:{name}": one.budgets for name, one in self.agents.items()}
        shared |= {f"t:{name}": one.budgets for name, one in self.teams.items()}
        shared |= {f"o:{name}": limits for name, limits in self.owners.items()}
        shared |= {f"f:{names.normalize_slug(name)}": limits for name, limits in self.families.items()}
        shared[meters.WHOLE_GRID] = self.grid
        found |= {f"m:{name}": meters.format_limits(limits) for name, limits in shared.items() if limits}
        found |= {f"q:{name}": _join_words(one.max_pending, one.policy) for name, one in self.queues.items()}
        if self.models:
            found["models"] = self.models.to_json()
        return found | ({"q": str(len(self.queues))} if self.queues else {})


def _join_words(*values: object) -> str:
    return " ".join("-" if value is None else str(value) for value in values)


def load(path: Path) -> Limits:
    """Read a quotas file. Raises QuotasFileError if it cannot be read or has an error."""
    try:
        data = path.read_bytes()
        if len(data) > MAX_FILE_BYTES:
            raise QuotasFileError(
                "The quotas file is too large", {"path": str(path), "expected": "at most 1 MB"}
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
    """Read the text of a quotas file called `name`. Raises QuotasFileError with the line and the key."""
    return _Reader(text, name).read_limits()


class _Reader(ConfigText):
    """The reader of one text."""

    def read_limits(self) -> Limits:
        data = self.parse()
        if not isinstance(data, dict):
            self.refuse((), "The quotas file must be a table", f"a table such as {_EXAMPLE}")
        if data and not data.keys() & set(TABLES) and all(map(_is_number, data.values())):
            # A plain map of agent → cents a month, as noether's broker reads it.
            data = {"agents": {key: {"monthly_cents": value} for key, value in data.items()}}
            self.flat = True
        agents: dict[str, AgentLimit] = {}
        teams: dict[str, TeamLimit] = {}
        seats: dict[str, SeatLimit] = {}
        queues: dict[str, QueueLimit] = {}
        self.check_keys(data, (), TABLES)
        keys: tuple[str, ...] = ("monthly_dollars", "monthly_cents", "monthly_jobs", "budgets")
        for team, at, table in self.read_tables(data, "teams", keys):
            limits = self.read_money(table, at, "monthly"), self.read_count(table, at, "monthly_jobs")
            teams[team] = TeamLimit(*limits, self.read_budgets(table, at, AGENT_UNITS, spans=False))
        keys = ("team", *keys)
        for agent, at, table in self.read_tables(data, "agents", keys):
            limits = self.read_money(table, at, "monthly"), self.read_count(table, at, "monthly_jobs")
            more = self.read_budgets(table, at, AGENT_UNITS, spans=False)
            agents[agent] = AgentLimit(self.read_team(table, at, teams), *limits, more)
        keys = ("budget_dollars", "budget_cents", "period", "cost_dollars", "owner", *SHARED)
        for seat, at, table in self.read_tables(data, "seats", keys):
            seats[seat] = SeatLimit(
                self.read_seat_budgets(table, at),
                self.read_count(table, at, "requests_per_minute", MAX_PER_MINUTE),
                self.read_money(table, at, "cost"),
                self.read_owner(table, at),
            )
        owners = {
            name: self.read_shared(table, at) for name, at, table in self.read_tables(data, "owners", SHARED)
        }
        families: dict[str, tuple[Limit, ...]] = {}
        written: dict[str, str] = {}
        for family, at, table in self.read_tables(data, "families", SHARED):
            self.refuse_duplicate(written, names.normalize_slug(family), at, "family")
            families[family] = self.read_shared(table, at)
        whole = data.get("grid", {})
        if not isinstance(whole, dict):
            self.refuse(("grid",), "grid must be a table", "a table with " + ", ".join(SHARED))
        self.check_keys(whole, ("grid",), SHARED)
        grid = self.read_shared(whole, ("grid",))
        for name, at, table in self.read_tables(data, "queues", ("max_pending", "policy")):
            queue = name if name == EVERYONE else self.read_queue(name, at)
            self.refuse_duplicate(written, queue, at, "queue")
            queues[queue] = QueueLimit(
                self.read_count(table, at, "max_pending"), self.read_choice(table, at, "policy", POLICIES)
            )
        digest = hashlib.sha256(f"{FORMAT_VERSION} {self.text}".encode()).hexdigest()[:16]
        aliases = self.read_aliases(data, written)
        return Limits(agents, teams, seats, digest, queues, owners, families, grid, aliases)

    # -- aliases

    def read_aliases(self, data: dict[str, Any], written: dict[str, str]) -> QueueAliases:
        """Return the aliases of models: `"gpt-4o-mini" = ["llm:qwen3-8b", "any"]`."""
        table = data.get("models", {})
        example = 'a table such as {"gpt-4o-mini" = ["llm:qwen3-8b", "any"]}'
        if not isinstance(table, dict):
            self.refuse(("models",), "models must be a table", example)
        listed: dict[str, tuple[str, list[Any]]] = {}  # normalized name → (name, its list)
        for name, value in table.items():
            at = ("models", name)
            self.check_alias_name(name, at)
            targets = [value] if isinstance(value, str) else value
            if not isinstance(targets, list) or not 1 <= len(targets) <= MAX_ALIAS_TARGETS:
                self.refuse(
                    at, f"{quote(name)} stands for no list of models", f"1 to {MAX_ALIAS_TARGETS} models"
                )
            normalized = names.normalize_slug(name)
            self.refuse_duplicate(written, f"model {normalized}", at, "model")
            listed[normalized] = name, targets
        resolved: dict[str, tuple[str, ...]] = {}
        return QueueAliases(
            tuple(
                (_make_alias_queue(name), self.resolve_alias(key, (key,), listed, resolved))
                for key, (name, _) in listed.items()
            )
        )

    def check_alias_name(self, name: str, at: tuple[str, ...]) -> None:
        if not 0 < len(name) <= MAX_FAMILY_NAME_LENGTH or not name.isprintable():
            expected = (
                f"the name of a model, up to {MAX_FAMILY_NAME_LENGTH} characters, '*' for any characters"
            )
            self.refuse(at, f"Invalid name {name[:MAX_FAMILY_NAME_LENGTH]!r}", expected)
        if names.get_kind(name) == LLM and name != LLM:
            model = name.removeprefix(f"{LLM}:")
            self.refuse(at, f"{quote(name)} is a queue, not a model", repr(model), f"write {model!r}")
        if names.normalize_slug(name) == ANY_MODEL:
            self.refuse(at, f"{quote(name)} cannot stand for others", "another name", "remove it")

    def resolve_alias(
        self,
        key: str,
        trail: tuple[str, ...],
        listed: dict[str, tuple[str, list[Any]]],
        resolved: dict[str, tuple[str, ...]],
    ) -> tuple[str, ...]:
        """Return the queues that an alias stands for. `trail`: the aliases that led to it, itself included.

        `resolved` keeps those that were found before: aliases may share others.
        """
        if key not in resolved:
            at = ("models", listed[key][0])
            if len(trail) > MAX_ALIAS_DEPTH:
                self.refuse(at, "Too many aliases refer to each other", f"at most {MAX_ALIAS_DEPTH} in a row")
            found = tuple(dict.fromkeys(self.read_targets(key, trail, listed, resolved)))
            if len(found) > MAX_RESOLVED_TARGETS:
                reason = f"{listed[key][0]!r} and the aliases in it stand for {len(found)} models"
                self.refuse(at, reason, f"at most {MAX_RESOLVED_TARGETS} models")
            resolved[key] = found
        return resolved[key]

    def read_targets(
        self,
        key: str,
        trail: tuple[str, ...],
        listed: dict[str, tuple[str, list[Any]]],
        resolved: dict[str, tuple[str, ...]],
    ) -> Iterator[str]:
        """Yield the queues that an alias stands for, some of them more than once."""
        name, targets = listed[key]
        at = ("models", name)
        for target in targets:
            if not isinstance(target, str) or not target.isprintable():
                self.refuse(at, f"{quote(target)} is not a model", TARGETS)
            kind, colon, model = target.partition(":")
            if target == ANY_MODEL:
                yield names.make_queue_name(LLM, ANY_MODEL)
            elif kind == LLM and colon and 0 < len(model) <= MAX_FAMILY_NAME_LENGTH and WILDCARD not in model:
                yield f"{LLM}:{names.normalize_slug(model)}"
            elif target and names.normalize_slug(target) in trail:
                circle = " → ".join(listed[each][0] for each in trail)
                self.refuse(at, f"The models stand for each other: {circle} → {target}", TARGETS)
            elif target and names.normalize_slug(target) in listed and WILDCARD not in target:
                inner = names.normalize_slug(target)
                yield from self.resolve_alias(inner, (*trail, inner), listed, resolved)
            else:
                fix = f'write "{LLM}:{target}"' if target and WILDCARD not in target else None
                self.refuse(at, f"{quote(target)} is not a known model", TARGETS, fix)

    # -- values

    def read_tables(
        self, data: dict[str, Any], kind: str, keys: tuple[str, ...]
    ) -> list[tuple[str, tuple[str, ...], dict[str, Any]]]:
        """Return (name, place, table) for each entry of one kind, after a check of names and keys."""
        tables = data.get(kind, {})
        if not isinstance(tables, dict):
            self.refuse((kind,), f"{kind} must be a table", f"a table of {kind} by name")
        found: list[tuple[str, tuple[str, ...], dict[str, Any]]] = []
        for name, table in tables.items():
            at = (kind, name)
            everyone = kind in ("agents", "queues") and name == EVERYONE
            if name.startswith("gq_"):
                self.refuse(at, "The quotas file contains an API key", "the agent's name", "revoke that key")
            if kind == "families":
                self.check_family(name, at)
            elif kind != "queues" and not everyone and not NAME.fullmatch(name):
                self.refuse(
                    at, f"Invalid name {quote(name)}", "1 to 64 letters, digits, '_', '.', '@' or '-'"
                )
            if kind == "teams" and name == NO_TEAM:
                self.refuse(
                    at,
                    f"{quote(name)} cannot be a team's name",
                    "another name",
                    "rename the team: the grid uses this name for no team",
                )
            if not isinstance(table, dict):
                self.refuse(at, f"The entry of {quote(name)} must be a table", f"a table such as {_EXAMPLE}")
            self.check_keys(table, at, keys)
            found.append((name, at, table))
        return found

    def check_keys(self, table: dict[str, Any], at: tuple[str, ...], keys: tuple[str, ...]) -> None:
        for key in table:
            if key not in keys:
                self.refuse((*at, key), f"Unknown key {quote(key)}", "one of " + ", ".join(keys))

    def read_money(self, table: dict[str, Any], at: tuple[str, ...], what: str) -> int | None:
        """Return micro-dollars; None: no limit."""
        dollars, cents = f"{what}_dollars", f"{what}_cents"
        if dollars in table and cents in table:
            self.refuse((*at, cents), f"Both {dollars} and {cents} are set", "one of them", "remove one")
        unit: Unit = "cents" if cents in table else "dollars"
        key = f"{what}_{unit}"
        value = table.get(key)
        if value is None or value == "none":
            return None
        try:
            return budget_syntax.parse_amount(value, unit, key)
        except BudgetError as exc:
            self.refuse((*at, key), exc.message, f'{exc.expected}, or "none"')

    def read_count(
        self, table: dict[str, Any], at: tuple[str, ...], key: str, maximum: int = MAX_COUNT
    ) -> int | None:
        value = table.get(key)
        if value is None or value == "none":
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= maximum:
            self.refuse(
                (*at, key), f"{key} is not a valid count", f'a whole number from 0 to {maximum}, or "none"'
            )
        return int(value)

    def read_budgets(
        self, table: dict[str, Any], at: tuple[str, ...], units: tuple[Unit, ...], *, spans: bool = True
    ) -> tuple[Limit, ...]:
        """Return the limits in `budgets`."""
        listed, at = table.get("budgets", []), (*at, "budgets")
        if not isinstance(listed, list):
            self.refuse(at, "budgets must be a list", f'a list such as [{{{units[0]} = 5, per = "day"}}]')
        try:
            return budget_syntax.check_distinct(
                [budget_syntax.parse_limit(each, units, first_use=spans) for each in listed]
            )
        except BudgetError as exc:
            self.refuse(at, exc.message + (f" (its {exc.key})" if exc.key else ""), exc.expected)

    def read_seat_budgets(self, table: dict[str, Any], at: tuple[str, ...]) -> tuple[Limit, ...]:
        """Return the budgets of a seat, without its requests per minute, which are exact in any minute."""
        budget, period = self.read_money(table, at, "budget"), self.read_choice(table, at, "period", PERIODS)
        found = [] if budget is None else [Limit(resource="money", window=period, amount=budget)]
        return self.read_shared({**table, "requests_per_minute": None}, at, found)

    def read_shared(
        self, table: dict[str, Any], at: tuple[str, ...], others: Sequence[Limit] = ()
    ) -> tuple[Limit, ...]:
        """Return `others` and the limits in the keys SHARED."""
        found = [*others, *self.read_budgets(table, at, SEAT_UNITS)]
        for key, resource, window in SHORT_BUDGETS:
            most = self.read_count(table, at, key)
            if most is not None:
                found.append(Limit(resource=resource, window=window, amount=most))
        try:
            return budget_syntax.check_distinct(found)
        except BudgetError as exc:
            self.refuse((*at, "budgets"), exc.message, exc.expected)

    def read_team(
        self, table: dict[str, Any], at: tuple[str, ...], teams: dict[str, TeamLimit]
    ) -> str | None:
        team = table.get("team")
        if team is None:
            return None
        if at[1] == EVERYONE:
            self.refuse(
                (*at, "team"),
                "The agent '*' cannot have a team",
                "no team",
                "add a table for each agent of the team",
            )
        if not isinstance(team, str) or team not in teams:
            expected = "one of " + ", ".join(sorted(teams)) if teams else "a team with a table of its own"
            fix = (
                f"add [teams.{team}] or correct the name"
                if isinstance(team, str)
                else "write the team's name"
            )
            self.refuse((*at, "team"), f"Unknown team {quote(team)}", expected, fix)
        return team

    def read_choice(
        self, table: dict[str, Any], at: tuple[str, ...], key: str, choices: tuple[Choice, ...]
    ) -> Choice:
        """Return the value of `key`; the first of the `choices` is the default."""
        value = table.get(key, choices[0])
        for choice in choices:
            if value == choice:
                return choice
        return self.refuse((*at, key), f"Unknown {key} {quote(value)}", "one of " + ", ".join(choices))

    def read_owner(self, table: dict[str, Any], at: tuple[str, ...]) -> str | None:
        name = table.get("owner")
        if name is not None and not (isinstance(name, str) and NAME.fullmatch(name)):
            self.refuse((*at, "owner"), f"Invalid agent name {quote(name)}", "an agent's name")
        return name

    def check_family(self, name: str, at: tuple[str, ...]) -> None:
        """Check the name of a model or family, such as `meta/llama-3`, or its slug."""
        if not 0 < len(name) <= MAX_FAMILY_NAME_LENGTH or not name.isprintable():
            expected = f"the name of a model or a family, up to {MAX_FAMILY_NAME_LENGTH} characters"
            self.refuse(at, f"Invalid name {name[:MAX_FAMILY_NAME_LENGTH]!r}", expected)
        if names.normalize_slug(name) == ANY_MODEL:
            self.refuse(
                at,
                f"{quote(name)} is not a family",
                "the name of a model or a family",
                "use [grid] to limit all",
            )
        if names.get_kind(name) == LLM:
            model = name.removeprefix(f"{LLM}:")
            self.refuse(
                at, f"{quote(name)} is a queue, not a family", repr(model), f'write [families."{model}"]'
            )

    def read_queue(self, name: str, at: tuple[str, ...]) -> str:
        """Return the queue of a name, as `gridq queues` shows it, or with the model's own name in it."""
        kind, colon, rest = name.partition(":")
        try:
            return names.check_queue_name(
                f"{kind}:{names.normalize_slug(rest)}" if colon and name.isprintable() else name
            )
        except ConfigError as exc:
            self.refuse(
                at, f"Invalid queue name {quote(name)}", str(exc.expected), "use a name from `gridq queues`"
            )

    def refuse_duplicate(self, written: dict[str, str], name: str, at: tuple[str, ...], what: str) -> None:
        """Refuse a second table for `name`, however the two are written."""
        first = written.setdefault(name, at[1])
        if first != at[1]:
            self.refuse(at, f"{first!r} and {at[1]!r} are the same {what}", "one table for both")


def _make_alias_queue(name: str) -> str:
    """Return the queue of an alias, with its wildcards."""
    parts = (names.normalize_slug(part) if part else "" for part in name.split(WILDCARD))
    return f"{LLM}:{WILDCARD.join(parts)}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)
