"""Budgets as people write them, in a machine's seats file and in the grid's quotas file:

    budgets = [{dollars = 5, per = "day"}, {requests = 45, per = "5h"}, {tokens = 2_000_000, per = "week"}]

Each is the most that may be used of one resource in one window; all of them apply.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, Literal

from gridq.errors import quote
from gridq.protocol.models import Limit, Resource

Unit = Literal["dollars", "cents", "tokens", "requests", "jobs", "gpu_seconds"]

UNITS: dict[Unit, tuple[Resource, int]] = {
    "dollars": ("money", 1_000_000),
    "cents": ("money", 10_000),
    "tokens": ("tokens", 1),
    "requests": ("requests", 1),
    "jobs": ("jobs", 1),
    "gpu_seconds": ("gpu_seconds", 1000),
}
"""By unit: the resource, and how many of it one unit is."""

SEAT_UNITS: tuple[Unit, ...] = ("dollars", "cents", "tokens", "requests", "gpu_seconds")
"""The units in budgets of a seat, an owner, a model family and the whole grid."""

AGENT_UNITS: tuple[Unit, ...] = ("dollars", "cents", "tokens", "jobs", "gpu_seconds")
"""The units in budgets of an agent and a team."""

CALENDAR = ("month", "week", "day")
MAX_DOLLARS = 1_000_000_000
MAX_AMOUNT = 10**15
MINUTE = "1m"
NO_WINDOW = "-"
MAX_WINDOW_LENGTH = {"m": 44_640, "h": 744, "d": 31}
"""The longest window that begins with its first use: 31 days, in each unit."""

_FIRST_USE_WINDOW = re.compile(r"([1-9]\d{0,5})([mhd])")


class BudgetError(ValueError):
    """An invalid budget; `key` is the key at fault in its table, '' the table itself."""

    def __init__(self, key: str, message: str, expected: str) -> None:
        super().__init__(f"{message}; expected {expected}")
        self.key = key
        self.message = message
        self.expected = expected


def parse_limit(table: Any, units: Sequence[Unit], *, first_use: bool = True) -> Limit:
    """Read one budget, such as `{"dollars": 5, "per": "day"}`; raise BudgetError if it is invalid.

    `first_use`: whether its window may be a length that begins with the first use, such as `5h`.
    """
    example = f'a table such as {{{units[0]} = 5, per = "day"}}'
    if not isinstance(table, dict):
        raise BudgetError("", "A budget must be a table", example)
    for key in table:
        if key not in (*units, "per"):
            raise BudgetError(
                key, f"A budget has no key {quote(key)}", "one of " + ", ".join((*units, "per"))
            )
    given = [unit for unit in units if unit in table]
    if len(given) != 1:
        fault = "has no amount" if not given else f"has both {given[0]} and {given[1]}"
        raise BudgetError(given[1] if given else "", f"A budget {fault}", "one of " + ", ".join(units))
    resource, _ = UNITS[given[0]]
    amount = parse_amount(table[given[0]], given[0])
    if "per" not in table:
        raise BudgetError("", "A budget has no window", f"per = {_describe_windows(first_use)}")
    return Limit(resource=resource, window=parse_window(table["per"], first_use=first_use), amount=amount)


def parse_amount(value: Any, unit: Unit, key: str = "") -> int:
    """Return an amount in micro-dollars, tokens, requests, jobs or, of GPU seconds, in ms; raise BudgetError
    if it is invalid.

    `key` is the name to show in errors if it is not the unit.
    """
    resource, scale = UNITS[unit]
    key = key or unit
    if resource != "money":
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_AMOUNT // scale:
            raise BudgetError(
                key, f"{key} is not a valid count", f"a whole number from 0 to {MAX_AMOUNT // scale}"
            )
        return value * scale
    is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    # A float counts as it was written. An int is used as it is: it may be too long to be converted to text.
    money = Decimal(str(value) if isinstance(value, float) else value) if is_number else Decimal("NaN")
    # The range is checked before the multiplication, which would overflow for a number such as 1e999999.
    if not (money.is_finite() and 0 <= money <= MAX_DOLLARS * 1_000_000 // scale):
        raise BudgetError(key, f"{key} is not a valid amount", f"a number from 0 to {MAX_DOLLARS} dollars")
    micro = money * scale
    if micro != micro.to_integral_value():
        raise BudgetError(key, f"{key} is finer than a micro-dollar", "at most six decimals of a dollar")
    return int(micro)


def parse_window(value: Any, *, first_use: bool = True) -> str:
    """Return the window that a `per` names; raise BudgetError if there is no such window."""
    if isinstance(value, str):
        if value in CALENDAR:
            return value
        match = _FIRST_USE_WINDOW.fullmatch(value)
        if first_use and match is not None and int(match[1]) <= MAX_WINDOW_LENGTH[match[2]]:
            return value
    if not isinstance(value, str):
        raise BudgetError("per", "per is not a window", _describe_windows(first_use))
    close = difflib.get_close_matches(value, CALENDAR, 1)
    expected = repr(close[0]) if close else _describe_windows(first_use)
    raise BudgetError("per", f"{quote(value)} is not a window", expected)


def check_distinct(limits: Iterable[Limit]) -> tuple[Limit, ...]:
    """Return `limits`; raise BudgetError if two of them have the same resource and window."""
    found: dict[tuple[str, str], Limit] = {}
    for limit in limits:
        if (limit.resource, limit.window) in found:
            raise BudgetError("", f"Two budgets limit {limit.resource} per {limit.window}", "one of them")
        found[limit.resource, limit.window] = limit
    return tuple(found.values())


def _describe_windows(first_use: bool) -> str:
    calendar = ", ".join(CALENDAR)
    if not first_use:
        return f"one of {calendar}"
    return f"{calendar}, or a length from 1m to 31d such as 5h, which begins with the first use"
