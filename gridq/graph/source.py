"""Load text or Python objects as JSON that is safe to walk: no NaN, duplicate key, cycle or deep nesting."""

from __future__ import annotations

import json
import math
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import Any, TypeVar

from gridq.errors import GraphCycle, GraphTooLarge, InvalidField, InvalidJson, quote
from gridq.protocol.models import Json

T = TypeVar("T")

MAX_VALUES = 4_000_000
"""JSON values in one graph. The limit stops Python dicts whose shared parts would expand without end."""

MAX_KEY_CHARS = 100
"""Characters of a key that an error repeats."""

_PLAIN = re.compile(r"[\w-]+")


def join_path(path: str, key: str | int) -> str:
    """Return `path` with one more key or index.

    >>> join_path(join_path("root.stages", 2), "a b")
    'root.stages[2]["a b"]'
    """
    if isinstance(key, int):
        return f"{path}[{key}]"
    if not _PLAIN.fullmatch(key):
        return f"{path}[{json.dumps(key)}]"
    return f"{path}.{key}" if path else key


def load_graph(graph: str | bytes | dict[str, Any], max_nesting: int) -> Json:
    """Return a fresh copy of `graph` as JSON.

    Raises InvalidJson if the text is not JSON, holds NaN or Infinity, or has a duplicate key; InvalidField if
    a Python value is not JSON; GraphCycle if a Python object contains itself; GraphTooLarge if it is nested
    deeper than `max_nesting` or has too many values.
    """
    if isinstance(graph, str | bytes | bytearray):
        value, doubled = _load_text(graph)
        _check_value(value, max_nesting)
        if doubled:
            raise make_duplicate_error(*_locate_duplicate(value))
        return value
    _check_value(graph, max_nesting)
    return json.loads(_call_with_stack(lambda: json.dumps(graph)))


class _ObjectWithDuplicate(dict[str, Any]):
    """An object whose text has `key` twice."""

    key: str


def find_duplicate(text: str | bytes | bytearray) -> tuple[str, str] | None:
    """Return a key that stands twice in one object of a JSON text, as its path and itself; None if there is
    none. Raises the errors of `load_graph` for text that is not JSON.
    """
    value, doubled = _load_text(text)
    return _locate_duplicate(value) if doubled else None


def _load_text(text: str | bytes | bytearray) -> tuple[Json, bool]:
    doubled = False

    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal doubled
        record = dict(pairs)
        if len(record) == len(pairs):
            return record
        marked = _ObjectWithDuplicate(record)
        marked.key = Counter(key for key, _ in pairs).most_common(1)[0][0]
        doubled = True
        return marked

    def refuse(word: str) -> Json:
        raise InvalidJson(
            f"The graph has {word}, which is not JSON",
            {"path": "", "expected": "finite numbers", "fix": f"replace {word} with a number or null"},
        )

    try:
        decoded = text if isinstance(text, str) else bytes(text).decode("utf-8-sig")
        value = _call_with_stack(
            lambda: json.loads(
                decoded, object_pairs_hook=build, parse_constant=refuse, parse_float=_parse_float
            )
        )
    except UnicodeDecodeError as exc:
        raise InvalidJson("The graph is not UTF-8 text", {"path": "", "reason": str(exc)}) from None
    except json.JSONDecodeError as exc:
        raise InvalidJson(
            f"The graph is not JSON: {exc.msg}",
            {
                "path": f"line {exc.lineno}, column {exc.colno}",
                "expected": '{"description": …, "version": "0.1.0", "root": {…}}',
                "fix": "pass the graph itself, not the name of its file: json.load(open(…))"
                if "{" not in decoded
                else "correct the text there",
            },
        ) from None
    except RecursionError:
        raise _make_nesting_error("") from None
    except ValueError as exc:
        raise InvalidJson(
            "The graph has a number that cannot be read", {"path": "", "reason": str(exc)}
        ) from None
    return value, doubled


def _parse_float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise InvalidJson(
            f"The graph has {text}, which is too large for a double",
            {"path": "", "expected": "a number below 1.8e308", "fix": "write it as text"},
        )
    return number


def make_duplicate_error(path: str, key: str) -> InvalidJson:
    """Return the error for a key that stands twice in one object."""
    return InvalidJson(
        f"The key {quote(key)} appears twice in one object",
        {"path": path, "expected": "each key once", "fix": "rename or remove one of the two"},
    )


def _locate_duplicate(value: Json) -> tuple[str, str]:
    path, part = next((path, part) for path, part in _walk(value) if isinstance(part, _ObjectWithDuplicate))
    return join_path(path, part.key[:MAX_KEY_CHARS]), part.key


def _walk(value: Json) -> Iterator[tuple[str, Json]]:
    stack: list[tuple[str, Json]] = [("", value)]
    while stack:
        path, part = stack.pop()
        yield path, part
        if isinstance(part, dict):
            stack.extend((join_path(path, key), child) for key, child in part.items())
        elif isinstance(part, list):
            stack.extend((join_path(path, i), child) for i, child in enumerate(part))


def _call_with_stack(act: Callable[[], T]) -> T:
    """Call `act`; if the recursion of json needs more stack than is left, call it again on a new thread."""
    try:
        return act()
    except RecursionError:
        pass
    outcome: list[Any] = []

    def attempt() -> None:
        try:
            outcome.append((act(), None))
        except Exception as exc:
            outcome.append((None, exc))

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    value, error = outcome[0]
    if error is not None:
        raise error
    result: T = value
    return result


def _make_nesting_error(path: str) -> GraphTooLarge:
    return GraphTooLarge(
        "The graph's JSON is nested too deeply",
        {
            "path": path,
            "expected": "a graph within GRIDQ_MAX_DEPTH",
            "fix": "flatten nested Sequentials and values",
        },
    )


def _check_value(value: Any, max_nesting: int) -> None:
    """Raise if `value` is not JSON, contains itself, is nested too deeply or is too large."""
    above: dict[int, None] = {}
    keys: list[str | int] = []
    stack: list[Iterator[tuple[str | int, Any]]] = [iter([("", value)])]
    owners: list[int] = [0]
    count = 0

    def here(key: str | int) -> str:
        path = ""
        for part in [*keys, key][1:]:
            path = join_path(path, part)
        return path

    while stack:
        entry = next(stack[-1], None)
        if entry is None:
            stack.pop()
            above.pop(owners.pop(), None)
            if keys:
                keys.pop()
            continue
        key, part = entry
        count += 1
        if count > MAX_VALUES:
            raise GraphTooLarge(
                "The graph has too many values",
                {"path": here(key), "expected": f"at most {MAX_VALUES} JSON values"},
            )
        if part is None or isinstance(part, str | bool | int):
            continue
        if isinstance(part, float):
            if not math.isfinite(part):
                raise InvalidField(
                    f"{part} is not JSON",
                    {"path": here(key), "expected": "a finite number", "fix": "use null or text"},
                )
            continue
        if not isinstance(part, dict | list | tuple):
            raise InvalidField(
                f"A Python object of type {type(part).__name__!r} is not JSON",
                {
                    "path": here(key),
                    "expected": "an object, array, text, number, boolean or null",
                    "fix": "pass its text: path.read_text()"
                    if isinstance(part, PurePath)
                    else "use one of these instead",
                },
            )
        if id(part) in above:
            raise GraphCycle(
                "The graph contains itself",
                {
                    "path": here(key),
                    "expected": "a tree",
                    "fix": "copy the node that you refer to, or remove the loop",
                },
            )
        if len(stack) > max_nesting:
            raise _make_nesting_error(here(key))
        if isinstance(part, dict):
            wrong = next((k for k in part if not isinstance(k, str)), None)
            if wrong is not None:
                raise InvalidField(
                    f"The key {quote(wrong)} is not text",
                    {"path": here(key), "expected": "text as every object's key"},
                )
            children: Iterator[tuple[str | int, Any]] = iter(list(part.items()))
        else:
            children = enumerate(part)
        above[id(part)] = None
        owners.append(id(part))
        keys.append(key)
        stack.append(children)


def measure_nesting(value: Json) -> int:
    """Return how deeply arrays and objects are nested in `value`."""
    deepest = 0
    stack = [(value, 1)]
    while stack:
        part, level = stack.pop()
        if isinstance(part, dict | list):
            deepest = max(deepest, level)
            stack.extend((child, level + 1) for child in (part.values() if isinstance(part, dict) else part))
    return deepest
