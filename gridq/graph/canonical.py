"""Canonical JSON (RFC 8785), and the ids computed from it.

There is one extension, because RFC 8785 knows only doubles: an integer beyond 2^53 is written exactly instead
of being rejected, so that two graphs that differ in such a number have different ids. A lone surrogate is
encoded as it is.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gridq.errors import ValueNotJson
from gridq.graph.nodes import Branch, Fanout, Graph, Let, Merge, Node, Parallel, Retry, Sequential, to_json
from gridq.graph.walk import Walk, run
from gridq.protocol.models import Json

_PLAIN_FROM, _PLAIN_TO = -6, 21
"""ECMAScript writes a number without an exponent if its decimal point is after digit -6 and up to 21."""


def format_number(value: float) -> str:
    """Return a double as ECMAScript's Number.prototype.toString writes it (RFC 8785, 3.2.2.3).

    >>> format_number(1e21), format_number(1e-7), format_number(100.0), format_number(-0.0)
    ('1e+21', '1e-7', '100', '0')
    """
    if not math.isfinite(value):
        raise ValueNotJson(f"{value} is not JSON", {"expected": "a finite number"})
    if value == 0:
        return "0"
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    # The decimal point is after the first `point` digits.
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    count = len(digits)
    if count <= point <= _PLAIN_TO:
        text = digits + "0" * (point - count)
    elif 0 < point <= _PLAIN_TO:
        text = f"{digits[:point]}.{digits[point:]}"
    elif _PLAIN_FROM < point <= 0:
        text = "0." + "0" * -point + digits
    else:
        text = digits[0] + ("." + digits[1:] if count > 1 else "") + f"e{point - 1:+d}"
    return "-" + text if value < 0 else text


def _format_text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _encode_utf16(key: str) -> bytes:
    return key.encode("utf-16-be", "surrogatepass")


def canonical_json(value: Json) -> bytes:
    """Return `value` as canonical JSON.

    Raises ValueNotJson for NaN, an infinity, a key that is not text, or a value of another type.
    """
    out: list[str] = []
    stack: list[Iterator[Any]] = [iter([value])]
    closers = [""]
    separators = [""]
    while stack:
        item = next(stack[-1], stack)
        if item is stack:
            stack.pop()
            separators.pop()
            out.append(closers.pop())
            continue
        out.append(separators[-1])
        if stack[1:]:
            separators[-1] = ","
        if isinstance(item, _Pair):
            out.append(_format_text(item.key) + ":")
            item = item.value
        if isinstance(item, Mapping):
            if not all(isinstance(key, str) for key in item):
                raise ValueNotJson("A key is not text", {"expected": "text as every object's key"})
            out.append("{")
            stack.append(iter([_Pair(key, item[key]) for key in sorted(item, key=_encode_utf16)]))
            closers.append("}")
            separators.append("")
        elif isinstance(item, list | tuple):
            out.append("[")
            stack.append(iter(item))
            closers.append("]")
            separators.append("")
        else:
            out.append(_format_scalar(item))
    return "".join(out).encode("utf-8", "surrogatepass")


class _Pair(NamedTuple):
    key: str
    value: Any


def _format_scalar(item: Any) -> str:
    if item is None:
        return "null"
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, str):
        return _format_text(item)
    if isinstance(item, int):
        return str(int(item))
    if isinstance(item, float):
        return format_number(item)
    raise ValueNotJson(f"A {type(item).__name__} is not JSON", {"expected": "a JSON value"})


def hash_json(value: Json) -> str:
    """Return the SHA-256 of the canonical JSON of `value`, in hex."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def canonicalize(root: Node) -> Node:
    """Return `root` after the format's rewrites.

    They are for ids only; a plan is compiled from the graph as written.
    """

    def many(nodes: tuple[Node, ...]) -> Walk[tuple[Node, ...]]:
        done: dict[int, Node] = {}
        for i, node in enumerate(nodes):
            done[i] = yield one(node)
        return tuple(done.values())

    def named(nodes: Mapping[str, Node]) -> Walk[dict[str, Node]]:
        done = {}
        for name, node in nodes.items():
            done[name] = yield one(node)
        return done

    def one(node: Node) -> Walk[Node]:
        match node:
            case Sequential():
                flat: list[Node] = []
                stages: tuple[Node, ...] = yield many(node.stages)
                for stage in stages:
                    flat.extend(stage.stages if isinstance(stage, Sequential) else (stage,))
                return flat[0] if len(flat) == 1 else Sequential(stages=tuple(flat))
            case Parallel():
                return Parallel(branches=(yield named(node.branches)))
            case Branch():
                predicate, if_true, if_false = yield many((node.predicate, node.if_true, node.if_false))
                return Branch(predicate=predicate, if_true=if_true, if_false=if_false)
            case Fanout():
                source, *targets = yield many((node.source, *node.targets))
                return Fanout(source=source, targets=tuple(targets))
            case Merge():
                *sources, target = yield many((*node.sources, node.target))
                return Merge(sources=tuple(sources), target=target)
            case Retry():
                inner: Node = yield one(node.stage)
                attempts = node.max_attempts
                if attempts <= 1:
                    return inner
                if isinstance(inner, Retry) and inner.delay_ms == node.delay_ms:
                    attempts *= inner.max_attempts
                    inner = inner.stage
                return Retry(stage=inner, max_attempts=attempts, delay_ms=node.delay_ms)
            case Let():
                body: Node = yield one(node.body)
                return Let(bindings=(yield named(node.bindings)), body=body) if node.bindings else body
        return node

    return run(one(root))


def compute_composition_id(graph: Graph | Node) -> str:
    """Return the id of a graph.

    It depends on what the graph does, and not on its description, version, unknown keys and grouping. A
    missing `delay_ms` or `config` equals null, and missing pinning equals `signature`.
    """
    root = graph.root if isinstance(graph, Graph) else graph
    return hash_json(to_json(canonicalize(root), extra=False))
