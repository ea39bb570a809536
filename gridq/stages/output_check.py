"""Check that a stage's result is JSON and within the size limit."""

from __future__ import annotations

import json
import math

from gridq.config.settings import settings
from gridq.errors import ValueNotJson
from gridq.protocol.models import Json
from gridq.stages.pure.bounds import make_too_large_error
from gridq.stages.pure.paths import Path, format_path

MAX_NESTING = 300
"""The deepest nesting of a result, well within the limits of Python's JSON parser."""


def check_size(value: Json) -> Json:
    """Return `value`, which must be JSON; raise OutputTooLarge if its text exceeds GRIDQ_MAX_VALUE bytes."""
    limit = settings().max_value
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    if len(text) > limit or (
        not text.isascii() and len(text) * 4 > limit and len(text.encode("utf-8", "surrogatepass")) > limit
    ):
        raise make_too_large_error(limit)
    return value


def check_result(value: object) -> Json:
    """Return `value`, the result of a user's stage, if it is JSON of bounded size.

    Raises ValueNotJson, with the place at fault, for another type, a key that is not text, NaN or a value
    that contains itself, and OutputTooLarge.
    """
    limit = settings().max_value
    left = limit
    inside: set[int] = set()

    def go(part: object, path: Path) -> None:
        nonlocal left
        # Count while walking: a small object can be large as JSON if it contains one list many times.
        left -= len(part) if isinstance(part, str) else 1
        if left < 0:
            raise make_too_large_error(limit)
        if part is None or isinstance(part, bool | str | int):
            return
        if isinstance(part, float):
            if not math.isfinite(part):
                raise _make_not_json_error(
                    f"{part} is not a JSON number", path, "return null or text instead"
                )
            return
        if not isinstance(part, dict | list):
            fix = (
                "return a list"
                if isinstance(part, tuple | set | frozenset)
                else "return plain dicts, lists, texts, numbers"
            )
            raise _make_not_json_error(f"a {type(part).__name__} is not JSON", path, fix)
        if id(part) in inside or len(path) > MAX_NESTING:
            reason = (
                "the value contains itself"
                if id(part) in inside
                else f"it is nested more than {MAX_NESTING} levels deep"
            )
            raise _make_not_json_error(reason, path[:8], "return a flat copy")
        inside.add(id(part))
        if isinstance(part, dict):
            for name, child in part.items():
                if not isinstance(name, str):
                    raise _make_not_json_error(
                        f"the key {name!r:.80} is a {type(name).__name__}", path, "use text as keys"
                    )
                left -= len(name)
                go(child, (*path, name))
        else:
            for index, child in enumerate(part):
                go(child, (*path, index))
        inside.discard(id(part))

    go(value, ())
    try:
        return check_size(value)
    except (TypeError, ValueError, RecursionError) as exc:
        raise _make_not_json_error(f"{exc}", (), "return plain dicts, lists, texts, numbers") from None


def _make_not_json_error(reason: str, path: Path, fix: str) -> ValueNotJson:
    where = f" at {format_path(path)!r}" if path else ""
    return ValueNotJson(
        f"The stage's result is not JSON: {reason}{where}",
        {"expected": "a JSON value", "reason": reason, "fix": fix},
    )
