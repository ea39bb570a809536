"""The accounts: the active limits, what each account has used and reserved, and the refusals of admit.lua.

The scripts alone enforce limits, from what is in Redis, so that all routers and clients keep them together.
This module reads them and puts them into words.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from redis import Redis

from gridq.errors import (
    AgentGpuSecondsExceeded,
    AgentJobsExceeded,
    AgentMoneyExceeded,
    AgentTokensExceeded,
    QuotaExceeded,
    TeamGpuSecondsExceeded,
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
    format_amount,
    name_resource,
    parse_budget,
)
from gridq.protocol.models import Resource
from gridq.store.connection import now_ms
from gridq.store.keys import Keys
from gridq.store.replies import QuotaReached

MINUTE_MS = 60_000

ORPHANED_MS = 15_000
"""Limits whose file no router has confirmed for this long are orphaned. A router confirms them at least every
seven seconds (`gridq.limits.quotas_loader`).
"""

MONTHLY_RESOURCES: tuple[Resource, Resource] = ("money", "jobs")
"""The resources of agents and teams that are counted by the month, with or without a limit."""

_ERRORS: dict[str, type[QuotaExceeded]] = {
    cls.code.partition(".")[2]: cls
    for cls in (
        AgentMoneyExceeded,
        AgentJobsExceeded,
        AgentTokensExceeded,
        AgentGpuSecondsExceeded,
        TeamMoneyExceeded,
        TeamJobsExceeded,
        TeamTokensExceeded,
        TeamGpuSecondsExceeded,
    )
}


@dataclass(frozen=True, slots=True)
class Window:
    """The time in which a limit counts: `per` as files write it, such as `day` or `5h`.

    `calendar`: a period of the calendar; `first-use`: it begins with its first use; `sliding`: any time of
    that length. `starts_at` and `resets_at` are in ms; None if the window has not begun, slides, or is not
    known.
    """

    per: str
    kind: Literal["calendar", "first-use", "sliding"]
    starts_at: int | None = None
    resets_at: int | None = None

    @property
    def seconds(self) -> int | None:
        """Its length; None for a calendar window whose bounds are not known."""
        length = first_use_window_ms(self.per)
        if length is None and self.starts_at is not None and self.resets_at is not None:
            length = self.resets_at - self.starts_at
        return None if length is None else length // 1000


@dataclass(frozen=True, slots=True)
class Account:
    """The limit and use of one resource by an agent, team, seat, owner, model family or the whole grid, or
    how many stages a queue may hold.

    Amounts are micro-dollars, tokens, jobs, requests, ms of GPU time, or stages at once. `limit` None: no
    limit. `reserved` is set aside for running work. `window` None: it counts what is there now. `team` and
    `parked` (its pending work waits until a window resets) are of agents only. `set_by`: the file with the
    limit.
    """

    kind: str
    name: str
    what: str
    limit: int | None
    spent: int
    reserved: int = 0
    team: str | None = None
    parked: bool = False
    set_by: Literal["seats file", "quotas file"] = "quotas file"
    resource: Resource | Literal["pending"] = field(kw_only=True)
    window: Window | None = None

    @property
    def is_money(self) -> bool:
        """True if it is counted in micro-dollars."""
        return self.resource == "money"

    @property
    def units_per_amount(self) -> int:
        """How many counted units make one that metrics show: micro-dollars a dollar, ms a GPU second."""
        return {"money": 1_000_000, "gpu_seconds": 1000}.get(self.resource, 1)

    def format_amount(self, amount: int) -> str:
        """Return an amount of its resource as people read it: `$12.50`, `100`, or `1.5` GPU seconds."""
        return format_amount(self.resource, amount)

    @property
    def resets_at(self) -> int | None:
        """The time at which its window resets, in ms; None if it has none, or that is not known."""
        return None if self.window is None else self.window.resets_at

    @property
    def remaining(self) -> int | None:
        """The amount that may still be reserved, below 0 if actual use exceeded the limit. None: no limit."""
        return None if self.limit is None else self.limit - self.spent - self.reserved


@dataclass(frozen=True, slots=True)
class ActiveLimits:
    """The quotas file that applies now.

    `source` and `applied_at` (ms): where it came from and when; `error`: why a newer version was refused.
    `holder` and `last_seen` (ms): where and when a router last had the file, None if not known.
    `is_orphaned`: no live router has it any more.
    """

    source: str
    applied_at: int
    digest: str
    error: str = ""
    holder: str = ""
    last_seen: int | None = None
    is_orphaned: bool = False


@dataclass(frozen=True, slots=True)
class AccountsReport:
    """The data of `gridq quota`. `active_limits` None: there are none. `requires_keys`: jobs need a key."""

    zone: str
    active_limits: ActiveLimits | None
    requires_keys: bool
    accounts: tuple[Account, ...]

    @property
    def is_single_tenant(self) -> bool:
        """True if the grid accepts every job of everybody."""
        return self.active_limits is None and not self.requires_keys


def read_accounts(client: Redis, keys: Keys, zone: str) -> AccountsReport:
    """Read all accounts. `zone`: the time zone if no router has written one."""
    now = now_ms(client)
    pipe = client.pipeline(transaction=True)
    pipe.hgetall(keys("limits"))
    pipe.hgetall(keys("calendar"))
    pipe.hgetall(keys("reserved"))
    pipe.hgetall(keys("parked_agents"))
    pipe.exists(keys("api_keys"))
    pipe.zrange(keys("seats"), 0, -1)
    pipe.smembers(keys("queues"))
    pipe.hgetall(keys("meters"))
    replies: list[Any] = pipe.execute()
    limits, calendar, reserved, parked = map(_decode, replies[:4])
    month = _find_calendar_window("month", None, calendar, now)
    spent = _decode(client.hgetall(keys("spent", str(month.starts_at or 0))))
    accounts = _build_monthly(limits, spent, reserved, parked, month)
    accounts += _read_seats(client, keys, [name.decode() for name in replies[5]], calendar, now)
    accounts += _build_shared(_decode(replies[7]), calendar, now)
    accounts += _read_queues(client, keys, limits, [name.decode() for name in replies[6]])
    active = _read_active_limits(limits, now) if "digest" in limits else None
    return AccountsReport(calendar.get("zone", zone), active, bool(replies[4]), tuple(accounts))


def read_zone(client: Redis, keys: Keys, zone: str) -> str:
    """Return the time zone in which windows reset; `zone` if no router has written one."""
    stored: Any = client.hget(keys("calendar"), "zone")
    return zone if stored is None else str(stored.decode())


def find_window(instants: str, now: int) -> tuple[int, int | None]:
    """Return (start, end) in ms of the calendar window around `now`, as the scripts find it.

    `instants`: the starts of windows in ms, separated by spaces. Without a start it is 0, without an end
    None.
    """
    starts = [int(at) for at in instants.split()]
    past = [at for at in starts if at <= now]
    return past[-1] if past else 0, next((at for at in starts if at > now), None)


def build_quota_error(reply: QuotaReached, zone: str) -> QuotaExceeded:
    """Return the refusal that a script's reply stands for; `zone`: the time zone of its `retry_at`."""
    kind, _, resource = reply.what.partition("_")
    used, reserved, limit, needed = reply.used, reply.reserved, reply.limit, reply.needed
    is_money = resource == "money"
    is_monthly = reply.window == "month" and resource in MONTHLY_RESOURCES
    key = f"{kind}s.{reply.name}."
    key += f"monthly_{'dollars' if is_money else 'jobs'}" if is_monthly else "budgets"

    def show(amount: int) -> str:
        return format_amount(resource, amount)

    noun = name_resource(resource)
    never_fits = needed > limit
    retry_at = None if never_fits else format_iso_time(reply.resets_at, zone)
    if never_fits:
        fix = f"raise {key} in the quotas file to {show(needed).removeprefix('$')} or more"
    elif used + needed <= limit:
        fix = "submit it again when running jobs have ended and released what they reserved"
    else:
        fix = f"raise {key} in the quotas file" + (
            f", or submit it again after {retry_at}" if retry_at else ""
        )
    if is_money:
        reason = f"{show(used)} of {show(limit)} a {reply.window} is used, {show(reserved)} is reserved"
        lacks = "too little money left for this job"
    else:
        reason = f"{show(used)} of {show(limit)} {noun} a {reply.window} are used"
        lacks = f"no {noun} left " + ("today" if reply.window == "day" else f"this {reply.window}")
    return _ERRORS[reply.what](
        f"The {kind} {reply.name!r} has {lacks}",
        {
            "path": key,
            "expected": f"at least {show(needed)} left",
            "reason": reason,
            "fix": fix,
            "retry_at": retry_at,
            "limit": limit,
            "used": used,
            "reserved": reserved,
            "needed": needed,
            "window": reply.window,
        },
    )


def _read_active_limits(limits: dict[str, str], now: int) -> ActiveLimits:
    about = json.loads(limits.get("about") or "{}")
    source = str(about.get("source", ""))
    last_seen = int(limits["seen_at"]) if "seen_at" in limits else None
    return ActiveLimits(
        source,
        int(about.get("at", 0)),
        limits["digest"],
        limits.get("error", ""),
        limits.get("holder", source),
        last_seen,
        last_seen is not None and now - last_seen > ORPHANED_MS,
    )


def _build_monthly(
    limits: dict[str, str],
    spent: dict[str, str],
    reserved: dict[str, str],
    parked: dict[str, str],
    month: Window,
) -> list[Account]:
    """Return the monthly accounts of the agents and teams that have a limit, usage or a reservation."""
    known = {name for name in (*limits, *reserved) if name[:2] in ("a:", "t:")}
    known |= {field.partition(" ")[2] for field in spent}
    found = []
    for who in sorted(known - {"a:*"}):
        is_agent, name = who[:2] == "a:", who[2:]
        default = limits.get("a:*", "- - -") if is_agent else "- -"
        *more, money, jobs = limits.get(who, default).split()
        team = next((word for word in more if word != "-"), None)
        for resource, limit in zip(MONTHLY_RESOURCES, (money, jobs), strict=True):
            found.append(
                Account(
                    kind="agent" if is_agent else "team",
                    name=name,
                    what=resource,
                    limit=None if limit == "-" else int(limit),
                    spent=int(spent.get(f"{resource} {who}", 0)),
                    reserved=int(reserved.get(who, 0)) if resource == "money" else 0,
                    team=team,
                    parked=is_agent and name in parked,
                    resource=resource,
                    window=month,
                )
            )
    return found


def _read_queues(client: Redis, keys: Keys, limits: dict[str, str], in_use: list[str]) -> list[Account]:
    """Return the accounts of the queues with a limit; the limit of `q:*` applies to queues in use."""
    bounds = {name[2:]: limit.split()[0] for name, limit in limits.items() if name[:2] == "q:"}
    default = bounds.pop("*", "-")
    bounds = {queue: default for queue in in_use if queue_names.get_kind(queue) != "gridq"} | bounds
    limited = sorted(queue for queue, limit in bounds.items() if limit != "-")
    pipe = client.pipeline(transaction=False)
    for queue in limited:
        pipe.hvals(keys("classes", queue))
    return [
        Account("queue", queue, "pending", int(bounds[queue]), sum(map(int, counts)), resource="pending")
        for queue, counts in zip(limited, pipe.execute() if limited else (), strict=True)
    ]


def _read_seats(
    client: Redis, keys: Keys, names: list[str], calendar: dict[str, str], now: int
) -> list[Account]:
    """Return the accounts of the live seats with a limit, of their machine or of the quotas file."""
    pipe = client.pipeline(transaction=True)
    for name in names:
        pipe.hmget(keys("seat", name), OWN, GRID, "requests_per_minute", "quota_requests_per_minute")
        pipe.lrange(keys("claim_times", name), 0, -1)
    replies = pipe.execute()
    found = []
    for at, name in enumerate(names):
        (own, grid, own_rate, grid_rate), times = replies[at * 2 : at * 2 + 2]
        for account, raw in ((OWN, own), (GRID, grid)):
            meters = parse_budget(raw, account, now)
            found += [_build_metered("seat", name, meter, calendar, now) for meter in meters]
        rates = [int(rate) for rate in (own_rate, grid_rate) if rate is not None]
        if rates:
            recent = sum(now - MINUTE_MS < int(when) <= now for when in times)
            is_own = own_rate is not None and int(own_rate) == min(rates)
            found.append(
                Account(
                    "seat",
                    name,
                    "requests a minute",
                    min(rates),
                    recent,
                    set_by="seats file" if is_own else "quotas file",
                    resource="requests",
                    window=Window(MINUTE, "sliding"),
                )
            )
    return found


def _build_shared(budgets: dict[str, str], calendar: dict[str, str], now: int) -> list[Account]:
    """Return the accounts of the whole grid, owners, model families, agents and teams that have budgets."""
    kinds = ACCOUNT_KINDS | {WHOLE_GRID: "grid"}
    return [
        _build_metered(kinds[account[0]], account_name(account) or "all of it", meter, calendar, now)
        for account in sorted(budgets, key=lambda name: (list(kinds).index(name[0]), name))
        for meter in parse_budget(budgets[account], account, now)
    ]


def _build_metered(kind: str, name: str, meter: Meter, calendar: dict[str, str], now: int) -> Account:
    """Return a meter's account. A seat's limit from the quotas file is called `grid …`."""
    return Account(
        kind,
        name,
        ("grid " if meter.account == GRID else "") + meter.title,
        meter.limit,
        meter.used,
        meter.reserved,
        set_by="seats file" if meter.account == OWN else "quotas file",
        resource=meter.resource,
        window=_find_window(meter, calendar, now),
    )


def _find_window(meter: Meter, calendar: dict[str, str], now: int) -> Window | None:
    if meter.window == NO_WINDOW:
        return None
    if meter.window in CALENDAR:
        return _find_calendar_window(meter.window, meter.resets_at, calendar, now)
    resets_at = meter.resets_at
    starts_at = None if resets_at is None else resets_at - (first_use_window_ms(meter.window) or 0)
    return Window(meter.window, "first-use", starts_at, resets_at)


def _find_calendar_window(period: str, resets_at: int | None, calendar: dict[str, str], now: int) -> Window:
    """Return the window that ends at `resets_at`, as a meter says; None: the present one of the calendar."""
    instants = calendar.get(period, "")
    start, end = find_window(instants, now if resets_at is None else resets_at - 1)
    if resets_at not in (None, end):  # the meter's window is of another time zone, or there is no calendar
        return Window(period, "calendar", None, resets_at)
    return Window(period, "calendar", start or None, end)


def _decode(fields: Any) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in fields.items()}
