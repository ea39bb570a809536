"""Say in gridq's own words what is wrong with a value that a pydantic model refuses.

pydantic names Python's types ("a valid tuple") and, in the path, the members of a union
(`graph.dict[str,any]`). Whoever reads an error writes JSON, TOML or environment variables.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

NEAR = 0.7
"""How alike a misspelt field is to the one that was meant, as difflib measures it."""

MAX_CHARS = 200
"""Characters of a path or a name that an error repeats."""

KINDS = {
    "string": "text",
    "int": "a whole number",
    "float": "a number",
    "decimal": "a number",
    "finite_number": "a finite number",
    "bool": "true or false",
    "dict": "an object",
    "mapping": "an object",
    "model": "an object",
    "model_attributes": "an object",
    "dataclass": "an object",
    "list": "a list",
    "tuple": "a list",
    "set": "a list",
    "frozen_set": "a list",
    "iterable": "a list",
    "none_required": "null",
    "path": "a path",
    "url": "a URL",
}
"""The beginning of a fault's type → what is expected instead."""

COMPARISONS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
    "multiple_of": ("multiple_of", "a multiple of"),
}
"""A fault's type → the name of its number in pydantic's context, and what that means."""

_WANTED = "it must be "
_LITERALS = {"True": "true", "False": "false", "None": "null"}
_MEMBER = re.compile(
    r".*\[.*|(constrained-)?(str|int|float|bool|none|bytes|decimal|any)|literal.*|is-instance.*"
)
"""Parts of a path that name the member of a union, not a field."""


def first_fault(exc: ValidationError) -> tuple[str, str]:
    """Return the field (`a.0.b`, empty for the whole value) and the reason of the first fault in `exc`."""
    return describe_fault(exc.errors())


def describe_fault(faults: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Return the field and the reason of the first of pydantic's faults.

    For a value that may be one of several kinds pydantic has a fault for each; the reason names all of them.
    The value itself is not repeated.
    """
    path = _format_path(faults[0])
    reasons = [_explain(fault) for fault in faults if _format_path(fault) == path]
    wanted = [reason for reason in dict.fromkeys(reasons) if reason.startswith(_WANTED)]
    if len(wanted) > 1 and wanted[0] == reasons[0]:
        return path, _WANTED + " or ".join(reason.removeprefix(_WANTED) for reason in wanted)
    return path, reasons[0]


def suggest_fix(exc: ValidationError, model: type[BaseModel]) -> dict[str, str]:
    """Return `{"fix": …}` for the first fault of a table that `model` refuses: the field that was meant, if
    one of the model or of a model in it is alike. Empty if nothing is known.
    """
    fault = exc.errors()[0]
    name = str(fault["loc"][-1]) if fault["loc"] else ""
    if fault["type"] == "missing":
        return {"fix": f"add {name!r}"}
    if fault["type"] != "extra_forbidden":
        return {}
    schema = model.model_json_schema()
    models = [schema, *schema.get("$defs", {}).values()]
    known = [field for each in models for field in each.get("properties", {})]
    near = difflib.get_close_matches(name.lower(), known, 1, NEAR)
    return {"fix": f"use {near[0]!r}" if near else "remove it"}


def _format_path(fault: Mapping[str, Any]) -> str:
    parts = [str(part) for part in fault["loc"]]
    return ".".join(part for part in parts if not _MEMBER.fullmatch(part))[:MAX_CHARS]


def _explain(fault: Mapping[str, Any]) -> str:
    kind, context = str(fault["type"]), fault.get("ctx", {})
    if kind == "value_error":  # a validator of our own
        return str(fault["msg"]).removeprefix("Value error, ")
    if kind == "missing":
        return "it is missing"
    if kind == "extra_forbidden":
        return "there is no such field"
    if kind in ("literal_error", "enum"):
        return _WANTED + re.sub(
            r"\b(True|False|None)\b", lambda word: _LITERALS[word[0]], context["expected"]
        )
    if kind in COMPARISONS:
        name, words = COMPARISONS[kind]
        return f"{_WANTED}{words} {_format_number(context[name])}"
    if kind == "string_pattern_mismatch":
        return f"{_WANTED}text that matches {context['pattern']}"
    if kind == "string_too_short":
        return f"it must have at least {context['min_length']} characters"
    if kind == "string_too_long":
        return f"it must have at most {context['max_length']} characters"
    if kind == "too_short":
        return f"it must have at least {context['min_length']} elements"
    if kind == "too_long":
        return f"it must have at most {context['max_length']} elements"
    if kind in KINDS:
        return _WANTED + KINDS[kind]
    if kind == "int_from_float":
        return _WANTED + KINDS["int"]
    if kind.startswith("json"):
        return "it is not JSON"
    start = next((name for name in KINDS if kind.startswith(f"{name}_")), "")
    return _WANTED + KINDS[start] if start else "it is not valid"


def _format_number(number: Any) -> str:
    return f"{number:g}" if isinstance(number, float) else str(number)
