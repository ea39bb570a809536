"""Paths into a JSON value: `a.b[0].c`, `$.a.b[0].c`, `["a.b"]` for a key with a dot, `$` or `.` for all."""

from __future__ import annotations

import difflib
import json
import re
from functools import lru_cache
from typing import Final

from gridq.protocol.models import Json
from gridq.stages.pure.bounds import MAX_PATH_CHARACTERS, describe_kind, make_input_error

Path = tuple[str | int, ...]


class Missing:
    """The result of `follow` if the path does not exist; it is not a JSON value."""


MISSING: Final = Missing()

_NAME = re.compile(r"[^.\[\]]+")
_INDEX = re.compile(r"\[\s*(-?[0-9]{1,9})\s*\]")
_QUOTED = re.compile(r"""\["([^"]*)"\]|\['([^']*)'\]""")


@lru_cache(maxsize=1024)
def _parse(text: str) -> Path:
    at = 1 if text.startswith("$") else 0
    if text[at:] in ("", ".") and text:
        return ()
    parts: list[str | int] = []
    while at < len(text):
        if text[at] == "[":
            if found := _INDEX.match(text, at):
                parts.append(int(found[1]))
            elif found := _QUOTED.match(text, at):
                parts.append(found[1] if found[1] is not None else found[2])
            else:
                raise _make_path_error(text, at)
        else:
            # A name comes first, or after a dot.
            if text[at] == ".":
                at += 1
            elif at:
                raise _make_path_error(text, at)
            found = _NAME.match(text, at)
            if found is None:
                raise _make_path_error(text, at)
            parts.append(found[0])
        at = found.end()
    if not parts:
        raise _make_path_error(text, 0)
    return tuple(parts)


def _make_path_error(text: str, at: int) -> Exception:
    return make_input_error(
        f"The path {text!r} is invalid at character {at}",
        'a path such as a.b[0].c, $.a, or a["b.c"]',
        "use the stage `map` for the elements of a list" if "*" in text else "",
    )


def parse_path(text: Json) -> Path:
    """Return the parts of the path `text`; raise StageError if it is invalid."""
    if not isinstance(text, str):
        raise make_input_error(f"A path must be text, not {describe_kind(text)}", "a path such as a.b[0].c")
    if len(text) > MAX_PATH_CHARACTERS:
        raise make_input_error(
            f"The path has {len(text)} characters", f"at most {MAX_PATH_CHARACTERS} characters"
        )
    return _parse(text)


def follow(value: Json, path: Path) -> Json | Missing:
    """Return the value at `path` in `value`, or MISSING."""
    for part in path:
        if isinstance(part, str):
            if not isinstance(value, dict) or part not in value:
                return MISSING
            value = value[part]
        else:
            if not isinstance(value, list) or not -len(value) <= part < len(value):
                return MISSING
            value = value[part]
    return value


def find_first(roots: tuple[Json, ...], path: Path) -> Json | Missing:
    """Return the value at `path` in the first of `roots` that has it; for an empty path, the last root."""
    if not path:
        return roots[-1]
    for root in roots:
        value = follow(root, path)
        if not isinstance(value, Missing):
            return value
    return MISSING


def describe_missing(value: Json, path: Path) -> tuple[str, str]:
    """Return in words where `path` ends in `value`, and a fix (empty if nothing is similar)."""
    for at, part in enumerate(path):
        here = "the input" if at == 0 else repr(format_path(path[:at]))
        step = follow(value, (part,))
        if isinstance(step, Missing):
            if isinstance(part, str) and isinstance(value, dict):
                near = difflib.get_close_matches(part, list(value)[:200], 3)
                return f"{here} has no key {part!r}", f"use {near[0]!r}" if near else ""
            if isinstance(part, int) and isinstance(value, list):
                return f"{here} has {len(value)} elements, no [{part}]", ""
            part_kind = "key" if isinstance(part, str) else "element"
            return f"{here} is {describe_kind(value)}, which has no {part_kind} {part!r}", ""
        value = step
    return "", ""


def format_path(path: Path) -> str:
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _NAME.fullmatch(part) and not part.startswith("$"):
            text += f".{part}" if text else part
        else:
            text += f"[{json.dumps(part, ensure_ascii=False)}]"
    return text
