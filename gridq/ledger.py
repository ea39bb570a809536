"""The accounts: the limits in force, what whoever has one has used and holds, and the refusals that follow.

Limits are enforced by the scripts alone, from what stands in Redis, so that all routers and clients together
keep them. This module reads, and says in words.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis import Redis

from gridq import queues
from gridq.errors import (
    AgentJobsExceeded,
    AgentMoneyExceeded,
    AgentTokensExceeded,
    QuotaExceeded,
    TeamJobsExceeded,
    TeamMoneyExceeded,
    TeamTokensExceeded,
)
from gridq.meters import GRID, KINDS, OWN, WHOLE, Meter, sheet
from gridq.money import dollars
from gridq.periods import text_time
from gridq.store.connection import now_ms
from gridq.store.keys import Keys

MINUTE_MS = 60_000

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
class Account:
    """What one agent, team, seat, owner, model family or the whole grid may use of one thing, in
    micro-dollars, tokens, jobs, requests or stages at once, or a queue may hold of stages that stand ready.

    `limit` None: none. `held` is promised to what runs now. `until`: when the window turns, ms; None: not
    known, or the next minute for requests. `team`, `parked` (its pending work stands aside): of agents alone.
    `money`: whether it is counted in micro-dollars.
    """

    kind: str
    name: str
    what: str
    limit: int | None
    spent: int
    held: int = 0
    until: int | None = None
    team: str | None = None
    parked: bool = False
    money: bool = False

    @property
    def remaining(self) -> int | None:
        """What may still be promised; below nothing where actual use went over. None: no limit."""
        return None if self.limit is None else self.limit - self.spent - self.held


@dataclass(frozen=True, slots=True)
class InForce:
    """The limits in force: where they came from and when (ms), and why a newer file was refused."""

    source: str
    at: int
    digest: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class Ledger:
    """Everything that `gridq quota` shows. `in_force` None: no limits; `keys`: the grid asks for API keys."""

    zone: str
    in_force: InForce | None
    keys: bool
    accounts: tuple[Account, ...]

    @property
    def single_tenant(self) -> bool:
        """Whether the grid takes every job of everybody."""
        return self.in_force is None and not self.keys


def read(client: Redis, keys: Keys, zone: str) -> Ledger:
    """The accounts now; `zone` where no router has said which one counts."""
    now = now_ms(client)
    look = client.pipeline(transaction=True)
    look.hgetall(keys("limits"))
    look.hgetall(keys("calendar"))
    look.hgetall(keys("promised"))
    look.hgetall(keys("parked"))
    look.exists(keys("keys"))
    look.zrange(keys("seats"), 0, -1)
    look.smembers(keys("queues"))
    look.hgetall(keys("meters"))
    found: list[Any] = look.execute()
    limits, turns, promised, parked = map(_texts, found[:4])
    start, until = window(turns.get("month", ""), now)
    spent = _texts(client.hgetall(keys("spent", str(start))))
    meters = _texts(found[7])
    accounts = _people(limits, spent, promised, parked, until)
    accounts += _seats(client, keys, [name.decode() for name in found[5]], now)
    accounts += _shared(meters, now)
    accounts += _queues(client, keys, limits, [name.decode() for name in found[6]])
    in_force = None
    if "v" in limits:
        about = json.loads(limits.get("about") or "{}")
        source, at = str(about.get("source", "")), int(about.get("at", 0))
        in_force = InForce(source, at, limits["v"], limits.get("error", ""))
    return Ledger(turns.get("zone", zone), in_force, bool(found[4]), tuple(accounts))


def zone_of(client: Redis, keys: Keys, zone: str) -> str:
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


def exceeded(reply: Sequence[str], zone: str) -> QuotaExceeded:
    """The refusal that a script's reply stands for: `quota`, which limit, whose, used, held, the limit,
    needed, the window's end or '', the window.
    """
    what, name = reply[1], reply[2]
    used, held, limit, needed = map(int, reply[3:7])
    until = int(reply[7]) if reply[7] else None
    window = reply[8]
    kind, _, thing = what.partition("_")
    money = thing == "money"
    monthly = window == "month" and thing != "tokens"
    key = f"{kind}s.{name}." + (f"monthly_{'dollars' if money else 'jobs'}" if monthly else "budgets")

    def told(amount: int) -> str:
        return dollars(amount) if money else str(amount)

    alone = needed > limit
    retry_at = None if alone else text_time(until, zone)
    if alone:
        fix = f"raise {key} in the quotas file to {told(needed).removeprefix('$')} or more"
    elif used + needed <= limit:
        fix = "submit again when jobs that run have ended and given back what they hold"
    else:
        fix = f"raise {key} in the quotas file" + (f", or submit again after {retry_at}" if retry_at else "")
    reason = f"of {told(limit)} a {window} {told(used)} is used and {told(held)} held by jobs that run"
    if not money:
        reason = f"of {limit} {thing} a {window} {used} are used"
    this = "today" if window == "day" else f"this {window}"
    lacks = "too little money left for this job" if money else f"no {thing} left {this}"
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
            "held": held,
            "needed": needed,
            "window": window,
        },
    )


def _people(
    limits: dict[str, str],
    spent: dict[str, str],
    promised: dict[str, str],
    parked: dict[str, str],
    until: int | None,
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
        for what, limit in (("money", money), ("jobs", jobs)):
            found.append(
                Account(
                    kind="agent" if agent else "team",
                    name=name,
                    what=what,
                    limit=None if limit == "-" else int(limit),
                    spent=int(spent.get(f"{what} {who}", 0)),
                    held=int(promised.get(who, 0)) if what == "money" else 0,
                    until=until,
                    team=team,
                    parked=agent and name in parked,
                    money=what == "money",
                )
            )
    return found


def _queues(client: Redis, keys: Keys, limits: dict[str, str], used: list[str]) -> list[Account]:
    """The accounts of the queues that have a bound: of those under `q:*` the ones that are in use."""
    bounds = {name[2:]: limit.split()[0] for name, limit in limits.items() if name[:2] == "q:"}
    default = bounds.pop("*", "-")
    bounds = {queue: default for queue in used if queues.kind_of(queue) != "gridq"} | bounds
    bounded = sorted(queue for queue, most in bounds.items() if most != "-")
    look = client.pipeline(transaction=False)
    for queue in bounded:
        look.hvals(keys("cls", queue))
    return [
        Account("queue", queue, "pending", int(bounds[queue]), sum(map(int, counts)))
        for queue, counts in zip(bounded, look.execute() if bounded else (), strict=True)
    ]


_SEAT = [OWN, GRID, "rpm", "grpm"]


def _seats(client: Redis, keys: Keys, names: list[str], now: int) -> list[Account]:
    """The accounts of the live seats that have a limit: of both sheets, the machine's own and the grid's."""
    look = client.pipeline(transaction=True)
    for name in names:
        look.hmget(keys("seat", name), _SEAT)
        look.lrange(keys("rate", name), 0, -1)
    replies = look.execute()
    found = []
    for at, name in enumerate(names):
        (own, grid, rpm, grpm), times = replies[at * 2 : at * 2 + 2]
        for bearer, raw in ((OWN, own), (GRID, grid)):
            found += [_metered("seat", name, meter) for meter in sheet(raw, bearer, now)]
        rates = [int(rate) for rate in (rpm, grpm) if rate is not None]
        if rates:
            recent = sum(now - MINUTE_MS < int(when) <= now for when in times)
            found.append(Account("seat", name, "requests a minute", min(rates), recent))
    return found


def _shared(meters: dict[str, str], now: int) -> list[Account]:
    """The accounts of the whole grid, of owners and model families, and of agents and teams beside those of
    their month.
    """
    kinds = KINDS | {WHOLE: "grid"}
    return [
        _metered(kinds[bearer[0]], bearer[2:] or "all of it", meter)
        for bearer in sorted(meters, key=lambda name: (list(kinds).index(name[0]), name))
        for meter in sheet(meters[bearer], bearer, now)
    ]


def _metered(kind: str, name: str, meter: Meter) -> Account:
    """A meter's account. What the quotas file allows a seat, beside what its machine does, says `grid`."""
    by = "grid " if meter.bearer == GRID else ""
    what, money = by + meter.title, meter.thing == "money"
    return Account(kind, name, what, meter.limit, meter.used, meter.held, meter.turn, money=money)


def _texts(found: Any) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in found.items()}
