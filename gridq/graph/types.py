"""The structural types of stages, and whether an output fits an input.

The rules are those of the graph format. Any and Var fit everything, both ways. A Record may have more fields
than required. A nullable field may be absent. A union fits if each of its members does.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gridq.errors import InvalidField, MissingField, quote
from gridq.graph.source import join_path
from gridq.protocol.models import Json

SIMPLE_KINDS = ("Any", "Bool", "Bytes", "Null", "Number", "Text", "VNode")
KINDS = (*SIMPLE_KINDS, "List", "Map", "Record", "RecordWith", "Refined", "Stream", "Union", "Var")

SYNONYMS = {
    "string": "Text", "str": "Text", "int": "Number", "integer": "Number", "float": "Number",
    "boolean": "Bool", "none": "Null", "array": "List", "object": "Record", "dict": "Record",
}  # fmt: skip
"""What other languages call a type."""

MAX_NESTING = 64
"""The deepest nesting of types. A deeper declared type is an error; a deeper inferred type becomes Any."""


@dataclass(frozen=True, slots=True, repr=False)
class Type:
    """One type.

    `fields`: those of Record and RecordWith, and `key` and `value` of Map. `items`: the members of Union, the
    element type of List and Stream, the base of Refined. `detail`: the name of Var, the rest of RecordWith,
    the refinement of Refined.
    """

    kind: str
    fields: Mapping[str, Type] = field(default_factory=dict)
    items: tuple[Type, ...] = ()
    detail: Json = None
    depth: int = field(default=1, compare=False)

    def to_json(self) -> Json:
        """Return the type as the graph format writes it."""
        if self.kind in SIMPLE_KINDS:
            return {"kind": self.kind}
        value: Json
        if self.kind in ("Record", "Map"):
            value = {name: part.to_json() for name, part in self.fields.items()}
        elif self.kind == "RecordWith":
            value = {
                "fields": {name: part.to_json() for name, part in self.fields.items()},
                "rest": self.detail,
            }
        elif self.kind == "Refined":
            value = {"base": self.items[0].to_json(), "refinement": self.detail}
        elif self.kind == "Union":
            value = [part.to_json() for part in self.items]
        elif self.kind == "Var":
            value = self.detail
        else:
            value = self.items[0].to_json()
        return {"kind": self.kind, "value": value}

    def __str__(self) -> str:
        if self.kind in SIMPLE_KINDS:
            return self.kind
        if self.kind in ("Record", "RecordWith"):
            parts = [f"{name}: {part}" for name, part in self.fields.items()]
            return "{" + ", ".join(parts + ["…"] * (self.kind == "RecordWith")) + "}"
        if self.kind == "Map":
            return f"Map<{self.fields['key']}, {self.fields['value']}>"
        if self.kind == "Union":
            return " | ".join(map(str, self.items)) or "Union<>"
        if self.kind == "Var":
            return str(self.detail)
        if self.kind == "Refined":
            return f"{self.items[0]} where {json.dumps(self.detail)}"
        return f"{self.kind}<{self.items[0]}>"

    __repr__ = __str__


ANY, NULL, TEXT, NUMBER, BOOL = Type("Any"), Type("Null"), Type("Text"), Type("Number"), Type("Bool")


def _nesting_of(parts: Iterable[Type]) -> int:
    return 1 + max((part.depth for part in parts), default=0)


def make_record(fields: Mapping[str, Type], *, open: bool = False) -> Type:
    """Return a Record; with `open`, one that may have more fields that are not known."""
    limited = {name: part if part.depth < MAX_NESTING // 2 else ANY for name, part in fields.items()}
    return Type(
        "RecordWith" if open else "Record",
        limited,
        (),
        "rest" if open else None,
        _nesting_of(limited.values()),
    )


def make_list(item: Type) -> Type:
    limited = item if item.depth < MAX_NESTING // 2 else ANY
    return Type("List", {}, (limited,), None, limited.depth + 1)


def make_union(parts: Iterable[Type]) -> Type:
    """Return the union of `parts`, flat and without duplicates; more than 16 members become Any."""
    flat: list[Type] = []
    for part in parts:
        for member in part.items if part.kind == "Union" else (part,):
            if member.kind == "Any" or member.depth >= MAX_NESTING // 2:
                return ANY
            if not any(member is known or member == known for known in flat):
                flat.append(member)
            if len(flat) > 16:
                return ANY
    return flat[0] if len(flat) == 1 else Type("Union", {}, tuple(flat), None, _nesting_of(flat))


def infer_type(value: Json, levels: int = 8) -> Type:
    """Return the type of a JSON value.

    Values deeper than `levels` are Any; of an array, the first 100 elements count.
    """
    if value is None:
        return NULL
    if isinstance(value, bool):
        return BOOL
    if isinstance(value, int | float):
        return NUMBER
    if isinstance(value, str):
        return TEXT
    if levels <= 0:
        return ANY
    if isinstance(value, dict):
        return make_record({name: infer_type(part, levels - 1) for name, part in value.items()})
    if not value:
        return make_list(ANY)
    return make_list(make_union(infer_type(part, levels - 1) for part in value[:100]))


def parse_type(data: Json, path: str, levels_left: int = MAX_NESTING) -> Type:
    """Return the type that `data` describes; raise MissingField or InvalidField with the path at fault."""
    if not isinstance(data, dict):
        raise InvalidField(
            "A type must be an object", {"path": path, "expected": '{"kind": …}', "fix": _suggest_type(data)}
        )
    if levels_left <= 0:
        raise InvalidField(
            "The type is nested too deeply", {"path": path, "expected": f"at most {MAX_NESTING} levels"}
        )
    if "kind" not in data:
        raise MissingField(
            "The type has no kind", {"path": join_path(path, "kind"), "expected": ", ".join(KINDS)}
        )
    kind = data["kind"]
    if kind not in KINDS:
        raise InvalidField(
            f"Unknown type {quote(kind)}",
            {"path": join_path(path, "kind"), "expected": ", ".join(KINDS), "fix": _suggest_kind(kind)},
        )
    if kind in SIMPLE_KINDS:
        return Type(kind)
    if "value" not in data:
        details = {"path": join_path(path, "value"), "expected": _SHAPES[kind]}
        if kind in _EXAMPLES:
            details["fix"] = f"write {_EXAMPLES[kind]}"
        raise MissingField(f"{kind} has no value", details)
    return _parse_value(kind, data["value"], join_path(path, "value"), levels_left - 1)


_EXAMPLES = {
    "List": '{"kind": "List", "value": {"kind": "Any"}}',
    "Map": '{"kind": "Map", "value": {"key": {"kind": "Text"}, "value": {"kind": "Any"}}}',
    "Record": '{"kind": "Record", "value": {}}, which any record fits',
    "Union": '{"kind": "Union", "value": [{"kind": "Text"}, {"kind": "Null"}]}',
}
_SHAPES = {
    "List": "a type",
    "Stream": "a type",
    "Map": '{"key": type, "value": type}',
    "Record": "an object of types",
    "RecordWith": '{"fields": an object of types, "rest": a name}',
    "Refined": '{"base": type, "refinement": …}',
    "Union": "an array of types",
    "Var": "a name",
}


def _suggest_kind(kind: Json) -> str:
    lower = {name.lower(): name for name in KINDS} | SYNONYMS
    near = difflib.get_close_matches(kind.lower(), lower, 1) if isinstance(kind, str) else []
    return f"use {lower[near[0]]!r}" if near else "use one of these"


def _suggest_type(data: Json) -> str:
    return (
        f'write {{"kind": "{data}"}}'
        if isinstance(data, str) and data in SIMPLE_KINDS
        else 'write {"kind": "Any"}'
    )


def _parse_value(kind: str, value: Json, path: str, levels_left: int) -> Type:
    shape_ok = isinstance(value, {"Union": list, "Var": str}.get(kind, dict))
    needed = {
        "Map": ("key", "value"),
        "RecordWith": ("fields", "rest"),
        "Refined": ("base", "refinement"),
    }.get(kind, ())
    if not shape_ok or any(name not in value for name in needed):
        raise InvalidField(
            f"The value of {kind} has the wrong form", {"path": path, "expected": _SHAPES[kind]}
        )
    if kind == "Var":
        return Type(kind, detail=value)
    if kind == "Union":
        members = tuple(parse_type(part, join_path(path, i), levels_left) for i, part in enumerate(value))
        return Type(kind, {}, members, None, _nesting_of(members))
    if kind == "Refined":
        base = parse_type(value["base"], join_path(path, "base"), levels_left)
        return Type(kind, {}, (base,), value["refinement"], base.depth + 1)
    if kind in ("List", "Stream"):
        item = parse_type(value, path, levels_left)
        return Type(kind, {}, (item,), None, item.depth + 1)
    source = value["fields"] if kind == "RecordWith" else value
    where = join_path(path, "fields") if kind == "RecordWith" else path
    if not isinstance(source, dict):
        raise InvalidField(
            f"The fields of {kind} must be an object", {"path": where, "expected": "an object of types"}
        )
    names = needed if kind == "Map" else tuple(source)
    fields = {name: parse_type(source[name], join_path(where, name), levels_left) for name in names}
    return Type(
        kind, fields, (), value["rest"] if kind == "RecordWith" else None, _nesting_of(fields.values())
    )


def _is_nullable(kind: Type) -> bool:
    return kind.kind in ("Any", "Null", "Var") or (
        kind.kind == "Union" and any(map(_is_nullable, kind.items))
    )


def fits(output: Type, wanted: Type) -> bool:
    """Return whether every value of type `output` may be used as a `wanted`, as far as the types say."""
    if output is wanted or output.kind in ("Any", "Var") or wanted.kind in ("Any", "Var"):
        return True
    if output.kind == "Union":
        return all(fits(part, wanted) for part in output.items)
    if wanted.kind == "Union":
        return any(fits(output, part) for part in wanted.items)
    if output.kind == "Refined":
        return fits(output.items[0], wanted)
    if wanted.kind == "Refined":
        # The refinement itself can only be checked at run time.
        return fits(output, wanted.items[0])
    if wanted.kind in ("Record", "RecordWith"):
        return _fits_record(output, wanted)
    if output.kind in ("Record", "RecordWith") and wanted.kind == "Map":
        value = wanted.fields["value"]
        return fits(TEXT, wanted.fields["key"]) and all(fits(part, value) for part in output.fields.values())
    if output.kind != wanted.kind:
        return False
    if output.kind == "Map":
        return all(fits(output.fields[name], wanted.fields[name]) for name in ("key", "value"))
    return all(fits(mine, theirs) for mine, theirs in zip(output.items, wanted.items, strict=True))


def _fits_record(output: Type, wanted: Type) -> bool:
    if output.kind == "Map":
        return all(fits(output.fields["value"], part) for part in wanted.fields.values())
    if output.kind not in ("Record", "RecordWith"):
        return False
    for name, part in wanted.fields.items():
        have = output.fields.get(name)
        if have is None:
            if output.kind == "Record" and not _is_nullable(part):
                return False
        elif not fits(have, part):
            return False
    return True


_JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "Bool": bool, "Null": type(None), "Number": (int, float), "Text": str, "List": list,
    "Map": dict, "Record": dict, "RecordWith": dict,
}  # fmt: skip


def find_mismatch(value: Json, wanted: Type, path: str = "") -> tuple[str, Type, Type | None] | None:
    """Return the first place in `value` that is not of type `wanted`, with the type that it should have and
    the one that it has (None: a field is missing).

    None if there is no such place. Refinements are not checked, nor are Bytes, VNode and Stream, which JSON
    does not have. `path` is where `value` stands.
    """
    if wanted.kind == "Refined":
        return find_mismatch(value, wanted.items[0], path)
    if wanted.kind == "Union":
        fitting = any(find_mismatch(value, part, path) is None for part in wanted.items)
        return None if fitting else (path, wanted, infer_type(value, 1))
    expected = _JSON_TYPES.get(wanted.kind)
    if expected is None:
        return None
    if not isinstance(value, expected) or (isinstance(value, bool) and wanted.kind != "Bool"):
        return path, wanted, infer_type(value, 1)
    whole: Any = value
    parts: Iterable[tuple[str | int, Json, Type]] = ()
    if wanted.kind == "List":
        parts = ((i, part, wanted.items[0]) for i, part in enumerate(whole))
    elif wanted.kind == "Map":
        parts = ((name, part, wanted.fields["value"]) for name, part in whole.items())
    elif wanted.kind in ("Record", "RecordWith"):
        for name, kind in wanted.fields.items():
            if name not in whole and not _is_nullable(kind):
                return join_path(path, name), kind, None
        parts = ((name, whole[name], kind) for name, kind in wanted.fields.items() if name in whole)
    for at, part, kind in parts:
        if kind.kind == "Any":  # a list may have millions of items
            continue
        found = find_mismatch(part, kind, join_path(path, at))
        if found is not None:
            return found
    return None
