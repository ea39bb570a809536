"""Graph nodes in one line each, over the catalogue of `tests.generators`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gridq.graph import nodes

Node = dict[str, Any]


def stage(name: str = "slow_echo", **config: Any) -> Node:
    return {"op": "Stage", "id": name} | ({"config": config} if config else {})


def const(value: Any) -> Node:
    return {"op": "Const", "value": value}


def seq(*stages: Node) -> Node:
    return {"op": "Sequential", "stages": list(stages)}


def branch(predicate: Node, if_true: Node, if_false: Node) -> Node:
    return {"op": "Branch", "predicate": predicate, "if_true": if_true, "if_false": if_false}


def retry(node: Node, attempts: int = 2, **fields: Any) -> Node:
    return {"op": "Retry", "stage": node, "max_attempts": attempts, **fields}


def let(body: Node, **bindings: Node) -> Node:
    return {"op": "Let", "bindings": bindings, "body": body}


def parallel(**branches: Node) -> Node:
    return {"op": "Parallel", "branches": branches}


def fanout(source: Node, *targets: Node) -> Node:
    return {"op": "Fanout", "source": source, "targets": list(targets)}


def walk_nodes(root: nodes.Node, path: str = "root") -> Iterator[tuple[str, nodes.Node]]:
    """Yield every node with its path, parents before children, in the order of the file."""
    stack = [(path, root)]
    while stack:
        path, node = stack.pop()
        yield path, node
        stack.extend(reversed([(nodes.child_path(path, *keys), child) for keys, child in node.children()]))
