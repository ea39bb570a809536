"""Conditions on a JSON value, written as data such as `{"path": "a.b", "gt": 3}`; no code is evaluated.

A record with an optional `path` and at least one of the operators below holds if all of them hold. Combine
conditions with `{"all": […]}`, `{"any": […]}` and `{"not": …}`. A path that does not exist counts as null;
only `exists` tells them apart.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from gridq.protocol.models import Json
from gridq.stages.pure.bounds import MAX_DEPTH, MAX_PARTS, Clock, describe_kind, make_input_error
from gridq.stages.pure.paths import Missing, find_first, parse_path
from gridq.stages.pure.patterns import compile_pattern, matches

OPERATORS = (
    "equals", "not_equals", "contains", "matches", "gt", "gte", "lt", "lte", "in", "is_empty", "exists",
)  # fmt: skip

Condition = Callable[[tuple[Json, ...]], bool]
Test = Callable[[Json | Missing], bool]


def are_equal(a: Json, b: Json) -> bool:
    """Return whether two JSON values are equal: 1 equals 1.0, but not true."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(are_equal(part, b[key]) for key, part in a.items())
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(are_equal, a, b))
    return bool(a == b)


def is_empty(value: Json) -> bool:
    """Return whether `value` is null or an empty text, list or record; numbers and booleans never are."""
    return value is None or (isinstance(value, str | list | dict) and not value)


def contains(value: Json, item: Json) -> bool:
    """Return whether a text contains the text `item`, a list an equal element, or a record the key `item`."""
    if isinstance(value, list):
        return any(are_equal(part, item) for part in value)
    return isinstance(value, str | dict) and isinstance(item, str) and item in value


def _compile_comparison(name: str, wanted: Json) -> Test:
    if isinstance(wanted, bool) or not isinstance(wanted, int | float | str):
        raise make_input_error(f"{name!r} cannot compare with {describe_kind(wanted)}", "a number or text")
    comparable: Any = str if isinstance(wanted, str) else (int, float)
    compare = {"gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le}[name]

    def test(value: Json | Missing) -> bool:
        return isinstance(value, comparable) and not isinstance(value, bool) and bool(compare(value, wanted))

    return test


def _compile_test(name: str, wanted: Json, clock: Clock) -> Test:
    def plain(value: Json | Missing) -> Json:
        return None if isinstance(value, Missing) else value

    if name in ("equals", "not_equals"):
        return lambda value: are_equal(plain(value), wanted) is (name == "equals")
    if name == "contains":
        return lambda value: contains(plain(value), wanted)
    if name == "matches":
        regex = compile_pattern(wanted)
        return lambda value: isinstance(value, str) and matches(regex, value, clock)
    if name == "in":
        if not isinstance(wanted, list) or len(wanted) > MAX_PARTS:
            raise make_input_error("'in' must be a list", f"a list of at most {MAX_PARTS} values")
        return lambda value: contains(wanted, plain(value))
    if name in ("is_empty", "exists"):
        if not isinstance(wanted, bool):
            raise make_input_error(f"{name!r} is {describe_kind(wanted)}", "true or false")
        if name == "exists":
            return lambda value: isinstance(value, Missing) is not wanted
        return lambda value: is_empty(plain(value)) is wanted
    return _compile_comparison(name, wanted)


def compile_condition(where: Json, clock: Clock) -> Condition:
    """Return `where` as a function of the roots that its paths start from.

    Raises StageError if it is invalid.
    """
    left = MAX_PARTS

    def go(part: Json, depth: int) -> Condition:
        nonlocal left
        left -= 1
        if depth > MAX_DEPTH or left < 0:
            raise make_input_error(
                "The condition is too large", f"at most {MAX_PARTS} parts, nested at most {MAX_DEPTH} deep"
            )
        if not isinstance(part, dict) or not part:
            raise make_input_error(
                f"A condition is {describe_kind(part)}", 'a record such as {"path": "a.b", "gt": 3}'
            )
        if len(part) == 1 and (name := next(iter(part))) in ("all", "any", "not"):
            return combined(name, part[name], depth)
        return simple(part)

    def combined(name: str, inner: Json, depth: int) -> Condition:
        if name == "not":
            negated = go(inner, depth + 1)
            return lambda roots: not negated(roots)
        if not isinstance(inner, list):
            raise make_input_error(f"{name!r} is {describe_kind(inner)}", "a list of conditions")
        conditions = [go(condition, depth + 1) for condition in inner]
        every = all if name == "all" else any
        return lambda roots: every(condition(roots) for condition in conditions)

    def simple(part: dict[str, Json]) -> Condition:
        path = parse_path(part["path"]) if "path" in part else ()
        unknown = [name for name in part if name != "path" and name not in OPERATORS]
        if unknown or len(part) == ("path" in part):
            fault = f"no operator {unknown[0]!r}" if unknown else "no operator"
            raise make_input_error(
                f"The condition has {fault}", "one or more of " + ", ".join((*OPERATORS, "all", "any", "not"))
            )
        tests = [_compile_test(name, wanted, clock) for name, wanted in part.items() if name != "path"]

        def holds(roots: tuple[Json, ...]) -> bool:
            clock.tick()
            value = find_first(roots, path)
            return all(test(value) for test in tests)

        return holds

    return go(where, 0)
