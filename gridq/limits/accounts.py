"""The accounts: the limits in force, what whoever has one has used and holds, and the refusals that follow.

Limits are enforced by the scripts alone, from what stands in Redis, so that all routers and clients together
keep them. This module reads, and says in words.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from redis import Redis

from gridq.errors import (
    AgentJobsExceeded,
    AgentMoneyExceeded,
    AgentTokensExceeded,
    QuotaExceeded,
    TeamJobsExceeded,
    TeamMoneyExceeded,
    TeamTokensExceeded,
)
from gridq.protocol import queue_names
from gridq.protocol.budget_syntax import CALENDAR, MINUTE, NO_WINDOW
from gridq.protocol.calendar import format_iso_time
from gridq.protocol.meters import (
    ACCOUNT_KINDS,
    GRID,
    OWN,
    WHOLE_GRID,
    Meter,
    account_name,
    first_use_window_ms,
    parse_budget,
)
from gridq.protocol.models import Resource
from gridq.protocol.money import format_dollars
from gridq.store.connection import now_ms
from gridq.store.keys import Keys

MINUTE_MS = 60_000

ORPHANED_MS = 15_000
"""A router that has the quotas file says so every seven seconds at the latest (`gridq.limits.enforcement`).
"""

MONTHLY: tuple[Resource, Resource] = ("money", "jobs")
"""What agents and teams use that is counted by the month, whether it has a limit or not."""

_CODES: dict[str, type[QuotaExceeded]] = {
    cls.code.partition(".")[2]: cls
    for cls in (
        AgentMoneyExceeded,
        AgentJobsExceeded,
        AgentTokensExceeded,
        TeamMoneyExceeded,
        TeamJobsExceeded,
        TeamTokensExceeded,
    )
}


@dataclass(frozen=True, slots=True)
class Window:
    """In which time a limit counts: `per` as files write it, such as `day` or `5h`.

    `calendar`: of the calendar; `first-use`: so long from its first use on; `sliding`: any time so long.
    `since` and `until`: when it began and turns, ms; None where it has not begun, slides, or nobody knows.
    """

    per: str
    kind: Literal["calendar", "first-use", "sliding"]
    since: int | None = None
    until: int | None = None

    @property
    def seconds(self) -> int | None:
        """How long it is; None: one of the calendar, of which nobody knows."""
        length = first_use_window_ms(self.per)
        if length is None and self.since is not None and self.until is not None:
            length = self.until - self.since
        return None if length is None else length // 1000


@dataclass(frozen=True, slots=True)
class Account:
    """What one agent, team, seat, owner, model family or the whole grid may use of one thing, in
    micro-dollars, tokens, jobs, requests or stages at once, or a queue may hold of stages that stand ready.

    `limit` None: none. `reserved` is set aside for running work. `window` None: it counts what is there now.
    `team`, `parked` (its pending work stands aside): of agents alone. `by`: the file that sets the limit.
    """

    kind: str
    name: str
    what: str
    limit: int | None
    spent: int
    reserved: int = 0
    team: str | None = None
    parked: bool = False
    by: Literal["seats file", "quotas file"] = "quotas file"
    resource: Resource | Literal["pending"] = field(kw_only=True)
    window: Window | None = None

    @property
    def money(self) -> bool:
        """Whether it is counted in micro-dollars."""
        return self.resource == "money"

    @property
    def until(self) -> int | None:
        """When its window turns, ms; None: it has none, or nobody knows."""
        return None if self.window is None else self.window.until

    @property
    def remaining(self) -> int | None:
        """What may still be promised; below nothing where actual use went over. None: no limit."""
        return None if self.limit is None else self.limit - self.spent - self.reserved


@dataclass(frozen=True, slots=True)
class ActiveLimits:
    """The limits in force: where they came from and when (ms), and why a newer file was refused. `holder`,
    `seen`: where and when (ms) a router last had their file; None: not known. `orphaned`: none has it now.
    """

    source: str
    at: int
    digest: str
    error: str = ""
    holder: str = ""
    seen: int | None = None
    orphaned: bool = False


@dataclass(frozen=True, slots=True)
class AccountsReport:
    """Everything that `gridq quota` shows. `in_force` None: no limits; `keys`: the grid asks for API keys."""

    zone: str
    in_force: ActiveLimits | None
    keys: bool
    accounts: tuple[Account, ...]

    @property
    def single_tenant(self) -> bool:
        """Whether the grid takes every job of everybody."""
        return self.in_force is None and not self.keys


def read(client: Redis, keys: Keys, zone: str) -> AccountsReport:
    """The accounts now; `zone` where no router has said which one counts."""
    now = now_ms(client)
    look = client.pipeline(transaction=True)
    look.hgetall(keys("limits"))
    look.hgetall(keys("calendar"))
    look.hgetall(keys("reserved"))
    look.hgetall(keys("parked_agents"))
    look.exists(keys("api_keys"))
    look.zrange(keys("seats"), 0, -1)
    look.smembers(keys("queues"))
    look.hgetall(keys("meters"))
    found: list[Any] = look.execute()
    limits, turns, promised, parked = map(_texts, found[:4])
    month = _of_calendar("month", None, turns, now)
    spent = _texts(client.hgetall(keys("spent", str(month.since or 0))))
    meters = _texts(found[7])
    accounts = _people(limits, spent, promised, parked, month)
    accounts += _seats(client, keys, [name.decode() for name in found[5]], turns, now)
    accounts += _shared(meters, turns, now)
    accounts += _queues(client, keys, limits, [name.decode() for name in found[6]])
    in_force = None
    if "digest" in limits:
        about = json.loads(limits.get("about") or "{}")
        source, at = str(about.get("source", "")), int(about.get("at", 0))
        seen = int(limits["seen_at"]) if "seen_at" in limits else None
        in_force = ActiveLimits(
            source,
            at,
            limits["digest"],
            limits.get("error", ""),
            limits.get("holder", source),
            seen,
            seen is not None and now - seen > ORPHANED_MS,
        )
    return AccountsReport(turns.get("zone", zone), in_force, bool(found[4]), tuple(accounts))


def read_zone(client: Redis, keys: Keys, zone: str) -> str:
    """The time zone in which windows turn; `zone` where no router has said so."""
    told: Any = client.hget(keys("calendar"), "zone")
    return zone if told is None else str(told.decode())


def window(turns: str, now: int) -> tuple[int, int | None]:
    """(start, end) in ms of the window that `now` stands in, as the scripts find it: 0 and None where no
    calendar says.
    """
    instants = [int(at) for at in turns.split()]
    past = [at for at in instants if at <= now]
    return past[-1] if past else 0, next((at for at in instants if at > now), None)


def build_quota_error(reply: Sequence[str], zone: str) -> QuotaExceeded:
    """The refusal that a script's reply stands for: `quota`, which limit, whose, used, held, the limit,
    needed, the window's end or '', the window.
    """
    what, name = reply[1], reply[2]
    used, held, limit, needed = map(int, reply[3:7])
    until = int(reply[7]) if reply[7] else None
    window = reply[8]
    kind, _, resource = what.partition("_")
    money = resource == "money"
    monthly = window == "month" and resource != "tokens"
    key = f"{kind}s.{name}." + (f"monthly_{'dollars' if money else 'jobs'}" if monthly else "budgets")

    def told(amount: int) -> str:
        return format_dollars(amount) if money else str(amount)

    alone = needed > limit
    retry_at = None if alone else format_iso_time(until, zone)
    if alone:
        fix = f"raise {key} in the quotas file to {told(needed).removeprefix('$')} or more"
    elif used + needed <= limit:
        fix = "submit again when jobs that run have ended and given back what they hold"
    else:
        fix = f"raise {key} in the quotas file" + (f", or submit again after {retry_at}" if retry_at else "")
    reason = f"of {told(limit)} a {window} {told(used)} is used and {told(held)} held by jobs that run"
    if not money:
        reason = f"of {limit} {resource} a {window} {used} are used"
    this = "today" if window == "day" else f"this {window}"
    lacks = "too little money left for this job" if money else f"no {resource} left {this}"
    return _CODES[what](
        f"The {kind} {name!r} has {lacks}",
        {
            "path": key,
            "expected": f"at least {told(needed)} left",
            "reason": reason,
            "fix": fix,
            "retry_at": retry_at,
            "limit": limit,
            "used": used,
            "reserved": held,
            "needed": needed,
            "window": window,
        },
    )


def _people(
    limits: dict[str, str],
    spent: dict[str, str],
    promised: dict[str, str],
    parked: dict[str, str],
    month: Window,
) -> list[Account]:
    """The accounts of agents and teams: whoever has a limit, has used or holds something."""
    known = {name for name in (*limits, *promised) if name[:2] in ("a:", "t:")}
    known |= {field.partition(" ")[2] for field in spent}
    found = []
    for who in sorted(known - {"a:*"}):
        agent, name = who[:2] == "a:", who[2:]
        default = limits.get("a:*", "- - -") if agent else "- -"
        *more, money, jobs = limits.get(who, default).split()
        team = next((word for word in more if word != "-"), None)
        for what, limit in zip(MONTHLY, (money, jobs), strict=True):
            found.append(
                Account(
                    kind="agent" if agent else "team",
                    name=name,
                    what=what,
                    limit=None if limit == "-" else int(limit),
                    spent=int(spent.get(f"{what} {who}", 0)),
                    reserved=int(promised.get(who, 0)) if what == "money" else 0,
                    team=team,
                    parked=agent and name in parked,
                    resource=what,
                    window=month,
                )
            )
    return found


def _queues(client: Redis, keys: Keys, limits: dict[str, str], used: list[str]) -> list[Account]:
    """The accounts of the queues that have a bound: of those under `q:*` the ones that are in use."""
    bounds = {name[2:]: limit.split()[0] for name, limit in limits.items() if name[:2] == "q:"}
    default = bounds.pop("*", "-")
    bounds = {queue: default for queue in used if queue_names.get_kind(queue) != "gridq"} | bounds
    bounded = sorted(queue for queue, most in bounds.items() if most != "-")
    look = client.pipeline(transaction=False)
    for queue in bounded:
        look.hvals(keys("classes", queue))
    return [
        Account("queue", queue, "pending", int(bounds[queue]), sum(map(int, counts)), resource="pending")
        for queue, counts in zip(bounded, look.execute() if bounded else (), strict=True)
    ]


_SEAT = [OWN, GRID, "requests_per_minute", "quota_requests_per_minute"]


def _seats(client: Redis, keys: Keys, names: list[str], turns: dict[str, str], now: int) -> list[Account]:
    """The accounts of the live seats that have a limit: of both sheets, the machine's own and the grid's."""
    look = client.pipeline(transaction=True)
    for name in names:
        look.hmget(keys("seat", name), _SEAT)
        look.lrange(keys("claim_times", name), 0, -1)
    replies = look.execute()
    found = []
    for at, name in enumerate(names):
        (own, grid, rpm, grpm), times = replies[at * 2 : at * 2 + 2]
        for bearer, raw in ((OWN, own), (GRID, grid)):
            found += [_metered("seat", name, meter, turns, now) for meter in parse_budget(raw, bearer, now)]
        rates = [int(rate) for rate in (rpm, grpm) if rate is not None]
        if rates:
            recent = sum(now - MINUTE_MS < int(when) <= now for when in times)
            found.append(
                Account(
                    "seat",
                    name,
                    "requests a minute",
                    min(rates),
                    recent,
                    by="seats file" if rpm is not None and int(rpm) == min(rates) else "quotas file",
                    resource="requests",
                    window=Window(MINUTE, "sliding"),
                )
            )
    return found


def _shared(meters: dict[str, str], turns: dict[str, str], now: int) -> list[Account]:
    """The accounts of the whole grid, of owners and model families, and of agents and teams beside those of
    their month.
    """
    kinds = ACCOUNT_KINDS | {WHOLE_GRID: "grid"}
    return [
        _metered(kinds[bearer[0]], account_name(bearer) or "all of it", meter, turns, now)
        for bearer in sorted(meters, key=lambda name: (list(kinds).index(name[0]), name))
        for meter in parse_budget(meters[bearer], bearer, now)
    ]


def _metered(kind: str, name: str, meter: Meter, turns: dict[str, str], now: int) -> Account:
    """A meter's account. What the quotas file allows a seat, beside what its machine does, says `grid`."""
    return Account(
        kind,
        name,
        ("grid " if meter.account == GRID else "") + meter.title,
        meter.limit,
        meter.used,
        meter.reserved,
        by="seats file" if meter.account == OWN else "quotas file",
        resource=meter.resource,
        window=_window_of(meter, turns, now),
    )


def _window_of(meter: Meter, turns: dict[str, str], now: int) -> Window | None:
    if meter.window == NO_WINDOW:
        return None
    if meter.window in CALENDAR:
        return _of_calendar(meter.window, meter.resets_at, turns, now)
    since = None if meter.resets_at is None else meter.resets_at - (first_use_window_ms(meter.window) or 0)
    return Window(meter.window, "first-use", since, meter.resets_at)


def _of_calendar(period: str, turn: int | None, turns: dict[str, str], now: int) -> Window:
    """The window that ends at `turn`, as a meter says; None: the present one by the calendar."""
    instants = turns.get(period, "")
    since, until = window(instants, now if turn is None else turn - 1)
    if turn not in (None, until):  # the meter's is of another time zone, or there is no calendar
        return Window(period, "calendar", None, turn)
    return Window(period, "calendar", since or None, until)


def _texts(found: Any) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in found.items()}
