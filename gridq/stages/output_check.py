"""Whether a stage's result is JSON and fits the limit, before anybody else sees it."""

from __future__ import annotations

import json
import math

from gridq.config.settings import settings
from gridq.errors import ValueNotJson
from gridq.protocol.models import Json
from gridq.stages.pure.bounds import make_too_large_error
from gridq.stages.pure.paths import Path, format_path

MAX_NESTING = 300
"""How deep a result may nest, well within what Python's own JSON reader and writer take."""


def check_size(value: Json) -> Json:
    """`value`, known to be JSON; OutputTooLarge where its text is over `settings().max_value` bytes."""
    limit = settings().max_value
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    if len(text) > limit or (
        not text.isascii() and len(text) * 4 > limit and len(text.encode("utf-8", "surrogatepass")) > limit
    ):
        raise make_too_large_error(limit)
    return value


def check_result(value: object) -> Json:
    """`value`, a user's result, as bounded JSON.

    ValueNotJson names the place of what is none: another type, a key that is no text, NaN, a value that
    contains itself.
    """
    limit = settings().max_value
    left = limit
    inside: set[int] = set()

    def go(part: object, path: Path) -> None:
        nonlocal left
        # Counted on the way: a small object can be large as JSON (one list many times over).
        left -= len(part) if isinstance(part, str) else 1
        if left < 0:
            raise make_too_large_error(limit)
        if part is None or isinstance(part, bool | str | int):
            return
        if isinstance(part, float):
            if not math.isfinite(part):
                raise _make_not_json_error(
                    f"{part} is not a JSON number", path, "return null or a text instead"
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
            said = (
                "the value contains itself"
                if id(part) in inside
                else f"it is nested over {MAX_NESTING} levels deep"
            )
            raise _make_not_json_error(said, path[:8], "return a flat copy")
        inside.add(id(part))
        if isinstance(part, dict):
            for name, child in part.items():
                if not isinstance(name, str):
                    raise _make_not_json_error(
                        f"the key {name!r:.80} is a {type(name).__name__}", path, "use texts as keys"
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
