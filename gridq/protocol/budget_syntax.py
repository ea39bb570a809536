"""Budgets as people write them, in a machine's seats file and in the grid's quotas file:

    budgets = [{dollars = 5, per = "day"}, {requests = 45, per = "5h"}, {tokens = 2_000_000, per = "week"}]

Each is at most so much of one thing in one window, and all of them bind.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, Literal

from gridq.protocol.models import Limit, Resource

Unit = Literal["dollars", "cents", "tokens", "requests", "jobs"]

UNITS: dict[Unit, tuple[Resource, int]] = {
    "dollars": ("money", 1_000_000),
    "cents": ("money", 10_000),
    "tokens": ("tokens", 1),
    "requests": ("requests", 1),
    "jobs": ("jobs", 1),
}
"""What an amount is called → the thing, and how many of it the unit is."""

SEAT_UNITS: tuple[Unit, ...] = ("dollars", "cents", "tokens", "requests")
"""What a seat, an owner, a model family and the whole grid may be allowed."""

AGENT_UNITS: tuple[Unit, ...] = ("dollars", "cents", "tokens", "jobs")
"""What an agent and a team may be allowed."""

CALENDAR = ("month", "week", "day")
MAX_DOLLARS = 1_000_000_000
MAX_AMOUNT = 10**15
MINUTE = "1m"
NO_WINDOW = "-"
MAX_WINDOW_LENGTH = {"m": 44_640, "h": 744, "d": 31}
"""The longest windows that begin with their first use: 31 days."""

_FIRST_USE_WINDOW = re.compile(r"([1-9]\d{0,5})([mhd])")


class BudgetError(ValueError):
    """A budget that is wrong: `key` is the one at fault within its table, '' the table itself."""

    def __init__(self, key: str, message: str, expected: str) -> None:
        super().__init__(f"{message}; expected {expected}")
        self.key = key
        self.message = message
        self.expected = expected


def parse_limit(table: Any, units: Sequence[Unit], *, spans: bool = True) -> Limit:
    """The limit that one budget states, such as `{"dollars": 5, "per": "day"}`. BudgetError.

    `spans`: whether its window may begin with its first use, such as `5h`.
    """
    example = f'a table such as {{{units[0]} = 5, per = "day"}}'
    if not isinstance(table, dict):
        raise BudgetError("", "A budget is no table", example)
    for key in table:
        if key not in (*units, "per"):
            raise BudgetError(key, f"A budget has no key {key!r}", "one of " + ", ".join((*units, "per")))
    given = [unit for unit in units if unit in table]
    if len(given) != 1:
        what = "states nothing" if not given else f"states both {given[0]} and {given[1]}"
        raise BudgetError(given[1] if given else "", f"A budget {what}", "one of " + ", ".join(units))
    resource, _ = UNITS[given[0]]
    most = parse_amount(table[given[0]], given[0])
    if "per" not in table:
        raise BudgetError("", "A budget does not say for how long it is", f"per = {_describe_windows(spans)}")
    return Limit(resource=resource, window=parse_window(table["per"], spans=spans), amount=most)


def parse_amount(value: Any, unit: Unit, key: str = "") -> int:
    """An amount in micro-dollars, tokens, requests or jobs; `key`: where it stands, if not under its unit.
    BudgetError.
    """
    _, scale = UNITS[unit]
    key = key or unit
    if scale == 1:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_AMOUNT:
            raise BudgetError(key, f"{key} is no count", f"a whole number from 0 to {MAX_AMOUNT}")
        return value
    number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    # Of a float what was written; of a whole number, which may be too long to be text, itself.
    money = Decimal(str(value) if isinstance(value, float) else value) if number else Decimal("NaN")
    # Compared before it is multiplied, which of 1e999999 would be an error of its own.
    if not (money.is_finite() and 0 <= money <= MAX_DOLLARS * 1_000_000 // scale):
        raise BudgetError(key, f"{key} is no amount", f"a number from 0 to {MAX_DOLLARS} dollars")
    micro = money * scale
    if micro != micro.to_integral_value():
        raise BudgetError(key, f"{key} is finer than a micro-dollar", "at most six decimals of a dollar")
    return int(micro)


def parse_window(value: Any, *, spans: bool = True) -> str:
    """The window that a `per` names. BudgetError."""
    if isinstance(value, str):
        if value in CALENDAR:
            return value
        match = _FIRST_USE_WINDOW.fullmatch(value)
        if spans and match is not None and int(match[1]) <= MAX_WINDOW_LENGTH[match[2]]:
            return value
    if not isinstance(value, str):
        raise BudgetError("per", "per is no window", _describe_windows(spans))
    close = difflib.get_close_matches(value, CALENDAR, 1)
    raise BudgetError(
        "per", f"{value!r} is no window", f"{close[0]!r}?" if close else _describe_windows(spans)
    )


def check_distinct(limits: Iterable[Limit]) -> tuple[Limit, ...]:
    """The limits, of which no two may be of one thing and one window. BudgetError."""
    found: dict[tuple[str, str], Limit] = {}
    for limit in limits:
        if (limit.resource, limit.window) in found:
            raise BudgetError("", f"Two budgets are of {limit.resource} per {limit.window}", "one of them")
        found[limit.resource, limit.window] = limit
    return tuple(found.values())


def _describe_windows(spans: bool) -> str:
    plain = ", ".join(CALENDAR)
    if not spans:
        return f"one of {plain}"
    return f"{plain}, or 1m to 31d such as 5h, from its first use on"
