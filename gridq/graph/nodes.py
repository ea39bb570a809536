"""The ten operators, and the reading of a graph file.

Each operator is a frozen dataclass. Keys that the format does not know are kept in `extra`, so that
`to_json` gives back what was read. A node does not hold its own path: whoever walks the tree builds it
(`root.stages[2].branches.weather`).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from gridq.errors import GraphError, GraphTooLarge, InvalidField, MissingField, UnknownOperator
from gridq.graph.fields import MAX_VALUE_NESTING, PINNINGS, make_field_error, parse_leaf_fields
from gridq.graph.source import join_path, load_graph
from gridq.graph.types import Type
from gridq.graph.walk import Walk, run
from gridq.protocol.models import Json

VERSION = "0.1.0"

MAX_DEPTH = 400
"""Operators one within the other, where the caller gives no limit."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Node:
    """The base of the operators. `extra` holds the keys that the format does not know."""

    op: ClassVar[str]
    extra: Mapping[str, Json] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<{self.op} node>"

    def children(self) -> Iterator[tuple[tuple[str | int, ...], Node]]:
        """The nodes below this one, each with its path from here: `("stages", 2)`."""
        return iter(())


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Stage(Node):
    """Run the catalogued stage that `id` refers to. `config` None: the input passes as it is."""

    op: ClassVar[str] = "Stage"
    id: str
    pinning: str = "signature"
    config: Mapping[str, Json] | None = None


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class RemoteStage(Node):
    """POST the input to `url` and read the answer's `data.output`."""

    op: ClassVar[str] = "RemoteStage"
    url: str
    input: Type
    output: Type


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Const(Node):
    """A value, whatever the input."""

    op: ClassVar[str] = "Const"
    value: Json


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Sequential(Node):
    """A pipe of at least one stage."""

    op: ClassVar[str] = "Sequential"
    stages: tuple[Node, ...]

    def children(self) -> Iterator[tuple[tuple[str | int, ...], Node]]:
        yield from ((("stages", i), node) for i, node in enumerate(self.stages))


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Parallel(Node):
    """Branches on the input's fields of their names, giving the record of their outputs."""

    op: ClassVar[str] = "Parallel"
    branches: Mapping[str, Node]

    def children(self) -> Iterator[tuple[tuple[str | int, ...], Node]]:
        yield from ((("branches", name), node) for name, node in self.branches.items())


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Branch(Node):
    """One of two arms, by whether the predicate gives JSON `true`."""

    op: ClassVar[str] = "Branch"
    predicate: Node
    if_true: Node
    if_false: Node

    def children(self) -> Iterator[tuple[tuple[str | int, ...], Node]]:
        yield ("predicate",), self.predicate
        yield ("if_true",), self.if_true
        yield ("if_false",), self.if_false


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Fanout(Node):
    """One source's output to every target, giving the array of their outputs."""

    op: ClassVar[str] = "Fanout"
    source: Node
    targets: tuple[Node, ...]

    def children(self) -> Iterator[tuple[tuple[str | int, ...], Node]]:
        yield ("source",), self.source
        yield from ((("targets", i), node) for i, node in enumerate(self.targets))


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Merge(Node):
    """Sources on the input's fields `source_0`, …; the target gets the record of their outputs."""

    op: ClassVar[str] = "Merge"
    sources: tuple[Node, ...]
    target: Node

    def children(self) -> Iterator[tuple[tuple[str | int, ...], Node]]:
        yield from ((("sources", i), node) for i, node in enumerate(self.sources))
        yield ("target",), self.target


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Retry(Node):
    """Run the inner node at most `max_attempts` times, `delay_ms` milliseconds between the tries."""

    op: ClassVar[str] = "Retry"
    stage: Node
    max_attempts: int
    delay_ms: int | None = None

    def children(self) -> Iterator[tuple[tuple[str | int, ...], Node]]:
        yield ("stage",), self.stage


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Let(Node):
    """The body gets the outer record with the bindings' outputs laid over it."""

    op: ClassVar[str] = "Let"
    bindings: Mapping[str, Node]
    body: Node

    def children(self) -> Iterator[tuple[tuple[str | int, ...], Node]]:
        yield from ((("bindings", name), node) for name, node in self.bindings.items())
        yield ("body",), self.body


OPERATORS: dict[str, type[Node]] = {
    cls.op: cls
    for cls in (Stage, RemoteStage, Const, Sequential, Parallel, Branch, Fanout, Merge, Retry, Let)
}


@dataclass(frozen=True, slots=True)
class Graph:
    """One graph file. `extra` holds its unknown keys."""

    root: Node
    description: str = ""
    version: str = VERSION
    extra: Mapping[str, Json] = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        """The file as it was read, unknown keys included."""
        head = {"description": self.description, "version": self.version, "root": to_json(self.root)}
        return {**self.extra, **head}


def walk_nodes(root: Node, path: str = "root") -> Iterator[tuple[str, Node]]:
    """Every node with its path, a parent before its children, in the file's order."""
    stack = [(path, root)]
    while stack:
        path, node = stack.pop()
        yield path, node
        stack.extend(reversed([(child_path(path, *keys), child) for keys, child in node.children()]))


def child_path(path: str, *keys: str | int) -> str:
    """The path of a child: `below("root", "stages", 2)` is `root.stages[2]`."""
    for key in keys:
        path = join_path(path, key)
    return path


def to_json(node: Node, *, extra: bool = True) -> dict[str, Json]:
    """The node's JSON; without `extra` only what the format knows, defaults and nulls left out."""

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
"""Where each operator holds nodes: one, a list or a record of them."""

_REQUIRED = {
    "Stage": ("id",),
    "RemoteStage": ("url", "input", "output"),
    "Const": ("value",),
    "Retry": ("max_attempts",),
}
_OPTIONAL = {"Stage": ("pinning", "config"), "Retry": ("delay_ms",)}


def parse(graph: str | bytes | dict[str, Any], *, max_depth: int = MAX_DEPTH) -> Graph:
    """Read a graph file: its text, or the same as Python objects.

    `description` and `version` may be left out. Raises a GraphError that names the JSON path: InvalidJson,
    UnknownOperator, MissingField, InvalidField, GraphCycle, or GraphTooLarge where operators stand deeper
    than `max_depth`.
    """
    data = load_graph(graph, 2 * max_depth + MAX_VALUE_NESTING + 2)
    if not isinstance(data, dict):
        raise make_field_error("The graph", "", data, '{"description": …, "version": "0.1.0", "root": {…}}')
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
                "expected": "the node where the graph begins",
                "fix": f"rename {near[0]!r} to 'root'" if near else 'add "root": {"op": …}',
            },
        )
    for name in ("description", "version"):
        if not isinstance(data.get(name, ""), str):
            raise make_field_error(f"The graph's {name}", name, data[name], "text")
    return Graph(
        root=run(_parse_node(data["root"], "root", max_depth)),
        description=data.get("description", ""),
        version=data.get("version", VERSION),
        extra={k: v for k, v in data.items() if k not in ("root", "description", "version")},
    )


def _parse_node(data: Json, path: str, room: int) -> Walk[Node]:
    """Read one node; `room` is how many levels of operators may still follow, this one included."""
    if room <= 0:
        raise GraphTooLarge(
            "The graph is nested too deeply",
            {"path": path, "expected": "a graph within GRIDQ_MAX_DEPTH", "fix": "flatten nested Sequentials"},
        )
    if not isinstance(data, dict):
        raise make_field_error("This node", path, data, 'a node: {"op": …}')
    cls = _get_operator(data, path)
    name = cls.op
    slots = _CHILDREN.get(name, {})
    for required in (*_REQUIRED.get(name, ()), *slots):
        if required not in data:
            raise _make_missing_error(name, required, data, path)
    known = {"op", *_REQUIRED.get(name, ()), *_OPTIONAL.get(name, ()), *slots}
    values: dict[str, Any] = {"extra": {k: v for k, v in data.items() if k not in known}}
    values |= parse_leaf_fields(name, data, path)
    for slot, kind in slots.items():
        where = child_path(path, slot)
        part = data[slot]
        if kind is Node:
            values[slot] = yield _parse_node(part, where, room - 1)
            continue
        if not isinstance(part, kind):
            raise make_field_error(
                f"{name}'s {slot}", where, part, "an array of nodes" if kind is list else "an object of nodes"
            )
        if not part and name != "Let":
            raise InvalidField(
                f"{name}'s {slot} are empty",
                {"path": where, "expected": "at least one node", "fix": f"add one or drop {name}"},
            )
        if isinstance(part, list):
            nodes = []
            for i, item in enumerate(part):
                nodes.append((yield _parse_node(item, child_path(where, i), room - 1)))
            values[slot] = tuple(nodes)
        elif isinstance(part, dict):
            named = {}
            for key, item in part.items():
                named[key] = yield _parse_node(item, child_path(where, key), room - 1)
            values[slot] = named
    return cls(**values)


def _get_operator(data: dict[str, Json], path: str) -> type[Node]:
    if "$ref" in data and "op" not in data:
        raise InvalidField(
            f"A graph is one file: {str(data['$ref'])[:80]!r} is not looked up",
            {
                "path": child_path(path, "$ref"),
                "expected": "the node itself",
                "fix": "put the node that it means here; one result for several readers is a Let binding",
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
        lower = {name.lower(): name for name in OPERATORS}
        near = difflib.get_close_matches(op.lower(), lower, 1, 0.0) if isinstance(op, str) else []
        raise UnknownOperator(
            f"There is no operator {op!r}",
            {
                "path": child_path(path, "op"),
                "expected": "one of " + ", ".join(OPERATORS),
                "fix": f"use {lower[near[0]]!r}" if near else "write the operator's name as text",
            },
        )
    return cls


def _make_missing_error(op: str, name: str, data: dict[str, Json], path: str) -> GraphError:
    near = difflib.get_close_matches(name, [k for k in data if k != "op"], 1)
    return MissingField(
        f"{op} lacks {name!r}",
        {
            "path": child_path(path, name),
            "expected": f"{op} with " + ", ".join((*_REQUIRED.get(op, ()), *_CHILDREN.get(op, {}))),
            "fix": f"rename {near[0]!r} to {name!r}" if near else f"add {name!r}",
        },
    )
