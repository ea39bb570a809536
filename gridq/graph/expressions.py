"""Expressions during compilation, each with its weight, its depth and the steps it reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gridq.graph.plan import Expr
from gridq.protocol.models import Json

MAX_SHARED_WEIGHT = 32
"""The most nodes of an expression that several steps evaluate; a larger one gets a step of its own."""

MAX_EXPRESSION_DEPTH = 24
"""The depth at which an expression gets a step of its own, because evaluation is recursive."""

_NONE: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Term:
    """An expression, with the number of its nodes (`weight`) and levels (`depth`), the steps whose outputs it
    reads (`refs`), and whether it reads the job's input.
    """

    expr: Expr
    weight: int = 1
    depth: int = 1
    refs: frozenset[int] = _NONE
    reads_input: bool = False

    @property
    def step(self) -> int | None:
        """The step, if the term is exactly a step's output; else None."""
        return self.expr[1] if self.expr[0] == "out" else None


INPUT = Term(["in"], reads_input=True)


def make_output(step: int) -> Term:
    return Term(["out", step], refs=frozenset((step,)))


def make_operation(source: Term) -> Term:
    """Return the term for the output of a step's operation, whose input is `source`."""
    return Term(["op", 0], refs=source.refs, reads_input=source.reads_input)


def make_const(value: Json) -> Term:
    return Term(["const", value], weight=_measure_size(value))


def combine(expr: Expr, parts: Sequence[Term]) -> Term:
    """Return the term for `expr`, which contains `parts` and one node of its own."""
    return Term(
        expr,
        1 + sum(part.weight for part in parts),
        1 + max((part.depth for part in parts), default=0),
        _union_refs(parts),
        any(part.reads_input for part in parts),
    )


def _union_refs(parts: Sequence[Term]) -> frozenset[int]:
    sets = [part.refs for part in parts if part.refs]
    # A chain of operators on one wide value shares one set.
    return sets[0] if len(sets) == 1 else frozenset().union(*sets)


def _measure_size(value: Json) -> int:
    """Return the number of nodes in `value`, which stops counting when it is too large to share."""
    limit = MAX_SHARED_WEIGHT + 1
    count = 0
    stack = [value]
    while stack and count < limit:
        part = stack.pop()
        count += 1
        if isinstance(part, str):
            count += len(part) // 64
        elif isinstance(part, list):
            stack.extend(part[:limit])
        elif isinstance(part, dict):
            count += sum(len(key) // 64 for key in list(part)[:limit])
            stack.extend(list(part.values())[:limit])
    return min(count, limit)


def rewrite(expr: Expr, swap: Callable[[str, int], Expr]) -> Expr:
    """Return `expr` with every `["out", s]` and `["op", k]` replaced by `swap(tag, s or k)`."""

    def go(e: Expr) -> Expr:
        tag = e[0]
        if tag in ("out", "op"):
            return swap(tag, e[1])
        if tag == "rec":
            return [tag, {name: go(part) for name, part in e[1].items()}]
        if tag == "arr":
            return [tag, [go(part) for part in e[1]]]
        if tag in ("pick", "src", "cfg"):
            return [tag, go(e[1]), e[2]]
        if tag == "let":
            return [tag, go(e[1]), {name: go(part) for name, part in e[2].items()}]
        if tag == "phi":
            return [tag, go(e[1]), go(e[2]), go(e[3])]
        return e

    return go(expr)


def get_expressions(terms: Mapping[str, Term]) -> dict[str, Expr]:
    return {name: term.expr for name, term in terms.items()}
