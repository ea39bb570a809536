"""A grid with limits in force, whose windows a test turns by hand."""

from __future__ import annotations

import re
from typing import Any

from redis.client import Pipeline

from gridq.limits.accounts import Account, read_accounts
from gridq.limits.quotas_file import parse
from gridq.limits.quotas_loader import put_in_force
from gridq.store.replies import AdmitReply
from tests.unit.store.plans import ANY, HOUR, Grid, one

DAY = 24 * HOUR


def limit(grid: Grid, text: str) -> None:
    """Put a quotas file (TOML) in force."""
    put_in_force(grid.scripts, parse(text, "q.toml"), "a test")


def turn_at(grid: Grid, *after_ms: int, period: str = "month") -> None:
    """A calendar whose windows turn so many ms from now; the one before began a day ago."""
    now = grid.now()
    instants = [now - DAY, *(now + ms for ms in after_ms)]
    grid.client.hset(grid.keys("calendar"), mapping={"zone": "UTC", period: " ".join(map(str, instants))})


def turn(grid: Grid, period: str = "month") -> None:
    """The window turns now: what was in force ended a moment ago, the next ends in a day."""
    now = grid.now()
    grid.client.hset(grid.keys("calendar"), period, f"{now - DAY} {now} {now + DAY}")
    expire_meters(grid, period)


def expire_meters(grid: Grid, window: str) -> None:
    """Every meter knows when its window ends; that instant has come for those of one kind."""
    now, ends = grid.now(), re.compile(rf"(/{window}/\d+/\d+/\d+/)\d*")
    seats = [seat.decode() for seat in grid.client.zrange(grid.keys("seats"), 0, -1)]
    sheets = [(grid.keys("seat", seat), which) for seat in seats for which in ("own", "grid")]
    sheets += [(grid.keys("meters"), name.decode()) for name in grid.client.hkeys(grid.keys("meters"))]
    for key, field in sheets:

        def set_back(pipe: Pipeline, key: str = key, field: str = field) -> None:
            text: Any = pipe.hget(key, field)
            pipe.multi()
            if text:
                pipe.hset(key, field, ends.sub(rf"\g<1>{now}", text.decode()))

        grid.client.transaction(set_back, key)  # the grid may be at work


def account(grid: Grid, name: str, what: str = "money") -> Account:
    """One account as `gridq quota` would show it."""
    accounts = read_accounts(grid.client, grid.keys, "UTC").accounts
    return next(found for found in accounts if (found.name, found.what) == (name, what))


def ask(grid: Grid, cost: int = 0, agent: str = "ann", **options: Any) -> AdmitReply:
    """Admit one stage of some cost; the script's reply."""
    return grid.admit(one(cost=cost), agent=agent, **options)


def read_parked_agents(grid: Grid) -> set[str]:
    """The agents whose pending stages stand aside."""
    return {agent.decode() for agent in grid.client.hkeys(grid.keys("parked_agents"))}


__all__ = [
    "ANY",
    "DAY",
    "HOUR",
    "account",
    "ask",
    "expire_meters",
    "limit",
    "read_parked_agents",
    "turn",
    "turn_at",
]
