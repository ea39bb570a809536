"""The ten operators, and the parser of graph files.

Each operator is a frozen dataclass. Unknown keys are kept in `extra`, so that `to_json` returns what was
parsed. A node does not know its own path; code that walks the tree builds it
(`root.stages[2].branches.weather`).
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from gridq.errors import GraphError, GraphTooLarge, InvalidField, MissingField, UnknownOperator, quote
from gridq.graph.source import join_path, load_graph, measure_nesting
from gridq.graph.types import Type, parse_type
from gridq.graph.walk import Walk, run
from gridq.protocol.models import Json

VERSION = "0.1.0"

MAX_DEPTH = 400
"""The default limit of nested operators."""

MAX_VALUE_NESTING = 200
"""The deepest nesting of arrays and objects in a Const's value or a Stage's config."""

NEAR = 0.8
"""How alike a misspelt field is to the one that was meant, as difflib measures it."""

COMMENTS = ("ui", "name", "description")
"""Unknown keys of nodes that authors write on purpose."""

PINNINGS = ("signature", "both")


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Node:
    """The base of the operators; `op` is the class's name, `extra` holds unknown keys."""

    op: ClassVar[str]
    extra: Mapping[str, Json] = field(default_factory=dict)

    def __init_subclass__(cls) -> None:
        cls.op = cls.__name__

    def __repr__(self) -> str:
        return f"<{self.op} node>"

    def children(self) -> Iterator[tuple[tuple[str | int, ...], Node]]:
        """Yield the child nodes, each with its path from this node: `("stages", 2)`."""
        for name, kind in _CHILDREN.get(self.op, {}).items():
            value = getattr(self, name)
            if kind is Node:
                yield (name,), value
            else:
                listed = value.items() if kind is dict else enumerate(value)
                yield from (((name, key), node) for key, node in listed)


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Stage(Node):
    """Run the stage that `id` refers to; without `config` it gets the input unchanged."""

    id: str
    pinning: str = "signature"
    config: Mapping[str, Json] | None = None


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class RemoteStage(Node):
    """POST the input to `url` and return the answer's `data.output`."""

    url: str
    input: Type
    output: Type


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Const(Node):
    """Return a fixed value, whatever the input."""

    value: Json


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Sequential(Node):
    """Run at least one node, each on the output of the one before."""

    stages: tuple[Node, ...]


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Parallel(Node):
    """Run each branch on the input's field of the same name, and return the record of their outputs."""

    branches: Mapping[str, Node]


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Branch(Node):
    """Run one of two arms, depending on whether the predicate returns JSON `true`."""

    predicate: Node
    if_true: Node
    if_false: Node


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Fanout(Node):
    """Run every target on the source's output, and return the array of their outputs."""

    source: Node
    targets: tuple[Node, ...]


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Merge(Node):
    """Run the sources on the input's fields `source_0`, …, and the target on the record of their outputs."""

    sources: tuple[Node, ...]
    target: Node


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Retry(Node):
    """Run the inner node at most `max_attempts` times, with `delay_ms` milliseconds between attempts."""

    stage: Node
    max_attempts: int
    delay_ms: int | None = None


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Let(Node):
    """Run the body on the input record, with the bindings' outputs added to it."""

    bindings: Mapping[str, Node]
    body: Node


SYNONYMS = {
    "if": "Branch", "condition": "Branch", "switch": "Branch",
    "sequence": "Sequential", "pipe": "Sequential", "pipeline": "Sequential", "chain": "Sequential",
    "concurrent": "Parallel", "task": "Stage", "step": "Stage", "call": "Stage", "http": "RemoteStage",
    "value": "Const", "literal": "Const", "join": "Merge", "loop": "Retry", "bind": "Let",
}  # fmt: skip
"""What other languages call an operator."""

OPERATORS: dict[str, type[Node]] = {
    cls.op: cls
    for cls in (Stage, RemoteStage, Const, Sequential, Parallel, Branch, Fanout, Merge, Retry, Let)
}


@dataclass(frozen=True, slots=True)
class Graph:
    """One graph file; `extra` holds its unknown keys."""

    root: Node
    description: str = ""
    version: str = VERSION
    extra: Mapping[str, Json] = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        """Return the file as it was parsed, unknown keys included."""
        head = {"description": self.description, "version": self.version, "root": to_json(self.root)}
        return {**self.extra, **head}


def list_ignored(graph: Graph) -> list[str]:
    """Return the paths of the keys that have no meaning, except comments: those that begin with `_`, `ui`,
    `name` and `description`.
    """
    found: list[str] = []
    pending: list[tuple[str, Node]] = [("root", graph.root)]
    while pending:
        path, node = pending.pop()
        found += [
            join_path(path, key) for key in node.extra if key not in COMMENTS and not key.startswith("_")
        ]
        pending += [(child_path(path, *keys), child) for keys, child in node.children()]
    return sorted(found)


def child_path(path: str, *keys: str | int) -> str:
    """Return the path of a child: `child_path("root", "stages", 2)` is `root.stages[2]`."""
    for key in keys:
        path = join_path(path, key)
    return path


def to_json(node: Node, *, extra: bool = True) -> dict[str, Json]:
    """Return the node as JSON; without `extra`, only known keys, and neither defaults nor nulls."""

    def one(node: Node) -> Walk[dict[str, Json]]:
        record: dict[str, Json] = {"op": node.op}
        match node:
            case Stage():
                record["id"] = node.id
                if node.pinning != PINNINGS[0]:
                    record["pinning"] = node.pinning
                if node.config is not None:
                    record["config"] = dict(node.config)
            case RemoteStage():
                record |= {"url": node.url, "input": node.input.to_json(), "output": node.output.to_json()}
            case Const():
                record["value"] = node.value
            case Retry():
                record["max_attempts"] = node.max_attempts
                if node.delay_ms is not None:
                    record["delay_ms"] = node.delay_ms
        for name, kind in _CHILDREN.get(node.op, {}).items():
            record[name] = [] if kind is list else {}
        for keys, child in node.children():
            below_here = yield one(child)
            if len(keys) == 1:
                record[str(keys[0])] = below_here
            elif isinstance(keys[1], int):
                record[str(keys[0])].append(below_here)
            else:
                record[str(keys[0])][keys[1]] = below_here
        return {**record, **node.extra} if extra else record

    return run(one(node))


_CHILDREN: dict[str, dict[str, type]] = {
    "Sequential": {"stages": list},
    "Parallel": {"branches": dict},
    "Branch": {"predicate": Node, "if_true": Node, "if_false": Node},
    "Fanout": {"source": Node, "targets": list},
    "Merge": {"sources": list, "target": Node},
    "Retry": {"stage": Node},
    "Let": {"bindings": dict, "body": Node},
}
"""The fields of each operator that hold nodes: one node, a list or a record of them."""

_REQUIRED = {
    "Stage": ("id",),
    "RemoteStage": ("url", "input", "output"),
    "Const": ("value",),
    "Retry": ("max_attempts",),
}
_OPTIONAL = {"Stage": ("pinning", "config"), "Retry": ("delay_ms",)}


def parse(graph: str | bytes | dict[str, Any], *, max_depth: int = MAX_DEPTH) -> Graph:
    """Parse a graph file, given as text or as Python objects.

    `description` and `version` are optional. Raises a GraphError that names the JSON path: InvalidJson,
    UnknownOperator, MissingField, InvalidField, GraphCycle, or GraphTooLarge if operators are nested deeper
    than `max_depth`.
    """
    data = load_graph(graph, 2 * max_depth + MAX_VALUE_NESTING + 2)
    if not isinstance(data, dict):
        raise _make_field_error("The graph", "", data, '{"description": …, "version": "0.1.0", "root": {…}}')
    if "root" not in data:
        if "op" in data:
            raise MissingField(
                "This is a node, not a graph file",
                {
                    "path": "root",
                    "expected": "a graph file with a root",
                    "fix": 'wrap it: {"description": "…", "version": "0.1.0", "root": <this node>}',
                },
            )
        near = difflib.get_close_matches("root", list(data), 1)
        raise MissingField(
            "The graph has no root",
            {
                "path": "root",
                "expected": "the node that the graph starts with",
                "fix": f"rename {near[0]!r} to 'root'" if near else 'add "root": {"op": …}',
            },
        )
    _check_misspelt("The graph", data, ("root", "description", "version"), "")
    for name in ("description", "version"):
        if not isinstance(data.get(name, ""), str):
            raise _make_field_error(f"The graph's {name}", name, data[name], "text")
    return Graph(
        root=run(_parse_node(data["root"], "root", max_depth)),
        description=data.get("description", ""),
        version=data.get("version", VERSION),
        extra={k: v for k, v in data.items() if k not in ("root", "description", "version")},
    )


def _parse_node(data: Json, path: str, levels_left: int) -> Walk[Node]:
    """Parse one node; `levels_left` is how many levels of operators may follow, this one included."""
    if levels_left <= 0:
        raise GraphTooLarge(
            "The graph is nested too deeply",
            {"path": path, "expected": "a graph within GRIDQ_MAX_DEPTH", "fix": "flatten nested Sequentials"},
        )
    if not isinstance(data, dict):
        raise _make_field_error("This node", path, data, 'a node: {"op": …}')
    cls = _get_operator(data, path)
    name = cls.op
    slots = _CHILDREN.get(name, {})
    for required in (*_REQUIRED.get(name, ()), *slots):
        if required not in data:
            raise _make_missing_error(name, required, data, path)
    known = ("op", *_REQUIRED.get(name, ()), *_OPTIONAL.get(name, ()), *slots)
    _check_misspelt(name, data, known, path)
    values: dict[str, Any] = {"extra": {k: v for k, v in data.items() if k not in known}}
    values |= _parse_leaf_fields(name, data, path)
    for slot, kind in slots.items():
        where = child_path(path, slot)
        part = data[slot]
        if kind is Node:
            values[slot] = yield _parse_node(part, where, levels_left - 1)
            continue
        if not isinstance(part, kind):
            expected, fix = (
                ("an array of nodes", "write [node, …]")
                if kind is list
                else ("an object of nodes", 'write {"name": node, …}')
            )
            raise _make_field_error(f"{name}'s {slot}", where, part, expected, fix)
        if not part and name != "Let":
            raise InvalidField(
                f"{name} has no {slot}",
                {"path": where, "expected": "at least one node", "fix": f"add one, or remove the {name}"},
            )
        if isinstance(part, list):
            nodes = []
            for i, item in enumerate(part):
                nodes.append((yield _parse_node(item, child_path(where, i), levels_left - 1)))
            values[slot] = tuple(nodes)
        elif isinstance(part, dict):
            named = {}
            for key, item in part.items():
                named[key] = yield _parse_node(item, child_path(where, key), levels_left - 1)
            values[slot] = named
    return cls(**values)


def _get_operator(data: dict[str, Json], path: str) -> type[Node]:
    if "$ref" in data and "op" not in data:
        raise InvalidField(
            f"$ref is not supported: {quote(data['$ref'])} is not resolved",
            {
                "path": child_path(path, "$ref"),
                "expected": "the node itself",
                "fix": "put the node here; to use one result several times, bind it with Let",
            },
        )
    if "op" not in data:
        raise MissingField(
            "This node has no op",
            {
                "path": child_path(path, "op"),
                "expected": "one of " + ", ".join(OPERATORS),
                "fix": 'add "op": "Stage"',
            },
        )
    op = data["op"]
    cls = OPERATORS.get(op) if isinstance(op, str) else None
    if cls is None:
        lower = {name.lower(): name for name in OPERATORS} | SYNONYMS
        near = difflib.get_close_matches(op.lower(), lower, 1) if isinstance(op, str) else []
        raise UnknownOperator(
            f"Unknown operator {quote(op)}",
            {
                "path": child_path(path, "op"),
                "expected": "one of " + ", ".join(OPERATORS),
                "fix": f"use {lower[near[0]]!r}" if near else "use one of these",
            },
        )
    return cls


def _make_missing_error(op: str, name: str, data: dict[str, Json], path: str) -> GraphError:
    near = difflib.get_close_matches(name, [k for k in data if k != "op"], 1)
    if name == "id":
        near = near or [key for key in ("name", "stage", "ref") if isinstance(data.get(key), str)]
    return MissingField(
        f"{op} has no {name!r}",
        {
            "path": child_path(path, name),
            "expected": f"{op} with " + ", ".join((*_REQUIRED.get(op, ()), *_CHILDREN.get(op, {}))),
            "fix": f"rename {near[0]!r} to {name!r}" if near else f"add {name!r}",
        },
    )


def _check_misspelt(what: str, data: dict[str, Json], known: Collection[str], path: str) -> None:
    """Raise InvalidField if a key is no known field but looks like one that is absent."""
    absent = [name for name in known if name not in data]
    for key in data:
        near = () if key in known else difflib.get_close_matches(key.lower(), absent, 1, NEAR)
        if near and not key.startswith("_"):
            raise InvalidField(
                f"{what} has no field {quote(key)}",
                {
                    "path": join_path(path, key),
                    "expected": ", ".join(known),
                    "fix": f"rename it to {near[0]!r}, or begin it with _ if it is a comment",
                },
            )


def _describe_kind(value: Json) -> str:
    names = {
        dict: "an object",
        list: "an array",
        str: "text",
        bool: "a boolean",
        int: "a number",
        float: "a number",
    }
    return names.get(type(value), "null")


def _make_field_error(what: str, path: str, value: Json, expected: str, fix: str = "") -> InvalidField:
    """Return the error for a field, `what`, whose value has the wrong type."""
    details = {"path": path, "expected": expected, **({"fix": fix} if fix else {})}
    return InvalidField(f"{what} is {_describe_kind(value)}", details)


def _parse_leaf_fields(op: str, data: dict[str, Json], path: str) -> dict[str, Any]:
    """Return the checked fields of a node that are not nodes themselves; raise GraphError if one is wrong."""
    if op == "Stage":
        return _parse_stage_fields(data, path)
    if op == "Retry":
        attempts = _parse_count(data["max_attempts"], join_path(path, "max_attempts"), 1, 2**32 - 1)
        delay = data.get("delay_ms")
        if delay is not None:
            delay = _parse_count(delay, join_path(path, "delay_ms"), 0, 2**53)
        return {"max_attempts": attempts, "delay_ms": delay}
    if op == "Const":
        _check_nesting(data["value"], join_path(path, "value"))
        return {"value": data["value"]}
    if op == "RemoteStage":
        url = data["url"]
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise InvalidField(
                "RemoteStage's url is not an HTTP address",
                {"path": join_path(path, "url"), "expected": "http://… or https://…"},
            )
        return {"url": url} | {
            name: parse_type(data[name], join_path(path, name)) for name in ("input", "output")
        }
    return {}


def _parse_stage_fields(data: dict[str, Json], path: str) -> dict[str, Any]:
    ref = data["id"]
    if not isinstance(ref, str) or not ref:
        raise InvalidField(
            "The stage's id is empty" if ref == "" else f"The stage's id is {_describe_kind(ref)}",
            {
                "path": join_path(path, "id"),
                "expected": "a stage's id, the first 8 or more digits of it, or its name",
            },
        )
    pinning = data.get("pinning")
    if pinning is not None and pinning not in PINNINGS:
        raise InvalidField(
            f"Unknown pinning {quote(pinning)}",
            {"path": join_path(path, "pinning"), "expected": "'signature' or 'both'"},
        )
    config = data.get("config")
    if config is not None:
        if not isinstance(config, dict):
            raise _make_field_error("The stage's config", join_path(path, "config"), config, "an object")
        _check_nesting(config, join_path(path, "config"))
    return {"id": ref, "pinning": pinning or PINNINGS[0], "config": config}


def _parse_count(value: Json, path: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidField(
            f"{quote(value)} is not a number that is allowed here",
            {
                "path": path,
                "expected": f"a whole number from {low} to {high}",
                "fix": f"write {low} or more, without quotes",
            },
        )
    return value


def _check_nesting(value: Json, path: str) -> None:
    if measure_nesting(value) > MAX_VALUE_NESTING:
        raise GraphTooLarge(
            "A value is nested too deeply", {"path": path, "expected": f"at most {MAX_VALUE_NESTING} levels"}
        )
