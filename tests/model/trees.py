"""Generate plans of every operator, drawn as trees and built like the compiler does."""

from __future__ import annotations

import dataclasses

from hypothesis import strategies as st

from gridq.graph.plan import Arms, Plan, Scope, Step
from gridq.protocol.queue_names import PURE
from tests.unit.store.plans import HOUR, step

ONE, TWO = "bench:one", "bench:two"

NONE = "bench:none"
"""A queue that no seat serves."""

Tree = tuple[object, ...]

_leaf = st.tuples(
    st.just("stage"),
    st.sampled_from([ONE, ONE, TWO, PURE, f"{ONE}|{TWO}", f"{NONE}|{TWO}|{ONE}"]),
    st.sampled_from([0, 0, 900, 7_000]),
)
"""A stage with one queue, or with several: the preferred one and its fallbacks."""


def _trees(children: st.SearchStrategy[tuple[object, ...]]) -> st.SearchStrategy[tuple[object, ...]]:
    some = st.lists(children, min_size=1, max_size=3)
    return st.one_of(
        st.tuples(st.just("seq"), some),
        st.tuples(st.just("par"), some),
        st.tuples(st.just("if"), st.none() | children, st.none() | children),
        st.tuples(st.just("retry"), st.integers(1, 3), st.sampled_from([0, HOUR]), children),
    )


_retried = st.tuples(
    st.just("retry"),
    st.integers(2, 3),
    st.sampled_from([0, HOUR]),
    _trees(st.recursive(_leaf, _trees, max_leaves=4)),
)
trees = st.one_of(_retried, st.recursive(_leaf, _trees, max_leaves=6))


class Builder:
    """Builds a plan with the guarantees of the compiler; see `gridq.graph.compile`."""

    def __init__(self, tree: tuple[object, ...]) -> None:
        self.steps: list[Step] = []
        self.scopes: list[tuple[int | None, int, int]] = []
        end = self.node(tree, frozenset(), None, None)
        self.add(end, None, None, PURE, 0)

    def add(
        self, done: frozenset[int], guard: tuple[int, bool] | None, scope: int | None, queue: str, cost: int
    ) -> int:
        best, *fallbacks = queue.split("|")
        made = step(*sorted(done), queue=best, cost=cost, scope=scope, fallbacks=fallbacks)
        self.steps.append(dataclasses.replace(made, guard=guard))
        return len(self.steps) - 1

    def node(
        self,
        tree: tuple[object, ...],
        done: frozenset[int],
        guard: tuple[int, bool] | None,
        scope: int | None,
    ) -> frozenset[int]:
        match tree:
            case ("stage", str(queue), int(cost)):
                return frozenset((self.add(done, guard, scope, queue, cost),))
            case ("seq", list(parts)):
                for part in parts:
                    done = self.node(part, done, guard, scope)
                return done
            case ("par", list(parts)):
                return frozenset().union(*(self.node(part, done, guard, scope) for part in parts))
            case ("if", yes, no):
                gate = self.add(done, guard, scope, ONE, 0)
                start = frozenset((gate,))
                ends = [
                    self.node(arm, start, (gate, taken), scope) if isinstance(arm, tuple) else start
                    for taken, arm in ((True, yes), (False, no))
                ]
                return ends[0] | ends[1]
            case ("retry", int(most), int(delay), tuple(child)):
                number = len(self.scopes)
                self.scopes.append((scope, most, delay))
                end = self.node(child, done, guard, number)
                return end if len(end) == 1 else frozenset((self.add(end, guard, number, PURE, 0),))
        raise AssertionError(tree)

    def plan(self) -> Plan:
        arms = []
        for gate in sorted({made.guard[0] for made in self.steps if made.guard}):
            inside = {
                taken: tuple(n for n in range(len(self.steps)) if self._in_arm(n, gate, taken))
                for taken in (True, False)
            }
            arms.append(Arms(gate, inside[True], inside[False]))
        scopes = []
        for number, (parent, most, delay) in enumerate(self.scopes):
            members = [n for n, made in enumerate(self.steps) if self._in_scope(made.scope, number)]
            counted = tuple((n, sum(before in members for before in self.steps[n].after)) for n in members)
            scopes.append(Scope("root", parent, most, delay, counted))
        return Plan(tuple(self.steps), len(self.steps) - 1, tuple(arms), tuple(scopes))

    def _in_arm(self, number: int, gate: int, taken: bool) -> bool:
        guard = self.steps[number].guard
        while guard is not None:
            if guard == (gate, taken):
                return True
            guard = self.steps[guard[0]].guard
        return False

    def _in_scope(self, scope: int | None, wanted: int) -> bool:
        while scope is not None:
            if scope == wanted:
                return True
            scope = self.scopes[scope][0]
        return False
