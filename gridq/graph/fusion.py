"""The compiler's last pass: fuse neighbouring pure steps, and list the steps of each Branch and Retry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gridq.graph.expressions import rewrite
from gridq.graph.plan import Arms, Expr, Op, Plan, Scope, Step
from gridq.protocol import queue_names
from gridq.protocol.models import Json


@dataclass(frozen=True, slots=True)
class DraftStep:
    """A step before fusion, with at most one op."""

    path: str
    queue: str
    ops: list[Op]
    value: Expr
    after: frozenset[int]
    refs: frozenset[int]
    reads_input: bool
    guard: tuple[int, bool] | None
    scope: int | None
    micro_dollars: int
    fallbacks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DraftScope:
    """A Retry whose steps are not known yet."""

    path: str
    parent: int | None
    max_attempts: int
    delay_ms: int


def build_plan(
    drafts: list[DraftStep],
    scopes: list[DraftScope],
    gates: set[int],
    answer: int,
    effects: tuple[Mapping[str, Json], ...],
) -> Plan:
    """Return the plan of `drafts`: fused, numbered without gaps in the same order, without empty Retries."""
    runs = _find_runs(drafts, gates)
    # A run takes the place of its last step, because only that one is read from outside.
    place = {member: number for number, members in enumerate(runs) for member in members}
    live = sorted({scope for draft in drafts for scope in _list_enclosing(draft.scope, scopes)})
    renamed = {old: new for new, old in enumerate(live)}
    steps = tuple(
        _fuse_run([drafts[member] for member in members], members, place, renamed) for members in runs
    )
    return Plan(
        steps=steps,
        answer=place[answer],
        arms=_collect_arms(steps, sorted(place[gate] for gate in gates)),
        scopes=_collect_scopes(steps, [scopes[old] for old in live], renamed),
        effects=effects,
    )


def _find_runs(drafts: list[DraftStep], gates: set[int]) -> list[list[int]]:
    """Return the runs of steps to fuse, ordered by the last step of each."""
    dependents = [0] * len(drafts)
    for draft in drafts:
        for step in draft.after:
            dependents[step] += 1
    run_of: dict[int, list[int]] = {}
    for v, draft in enumerate(drafts):
        run_of[v] = [v]
        if draft.queue != queue_names.PURE or len(draft.after) != 1:
            continue
        (u,) = draft.after
        before = drafts[u]
        if (
            before.queue == queue_names.PURE
            and before.ops
            and dependents[u] == 1
            and (before.guard, before.scope) == (draft.guard, draft.scope)
            and u not in gates
        ):
            run_of[v] = run_of.pop(u)
            run_of[v].append(v)
    return sorted(run_of.values(), key=lambda members: members[-1])


def _fuse_run(
    drafts: list[DraftStep], members: list[int], place: dict[int, int], renamed: dict[int, int]
) -> Step:
    ops: list[Op] = []
    value: Expr = []
    output: dict[int, Expr] = {}
    for member, draft in zip(members, drafts, strict=True):
        first = len(ops)

        def swap(tag: str, number: int, first: int = first) -> Expr:
            if tag == "op":
                return ["op", first + number]
            return output.get(number) or ["out", place[number]]

        ops.extend(replace(op, input=rewrite(op.input, swap)) for op in draft.ops)
        value = output[member] = rewrite(draft.value, swap)
    head = drafts[0]
    return Step(
        path=head.path,
        queue=head.queue,
        ops=tuple(ops),
        value=value,
        after=tuple(sorted({place[step] for step in head.after})),
        refs=tuple(sorted({place[step] for step in head.refs})),
        reads_input=any(draft.reads_input for draft in drafts),
        guard=None if head.guard is None else (place[head.guard[0]], head.guard[1]),
        scope=None if head.scope is None else renamed[head.scope],
        micro_dollars=sum(draft.micro_dollars for draft in drafts),
        fallbacks=head.fallbacks,
    )


def _collect_arms(steps: tuple[Step, ...], gates: list[int]) -> tuple[Arms, ...]:
    sides: dict[int, tuple[list[int], list[int]]] = {gate: ([], []) for gate in gates}
    for number, step in enumerate(steps):
        guard = step.guard
        while guard is not None:
            gate, arm = guard
            sides[gate][0 if arm else 1].append(number)
            guard = steps[gate].guard
    return tuple(Arms(gate, tuple(taken), tuple(other)) for gate, (taken, other) in sides.items())


def _list_enclosing(scope: int | None, scopes: list[DraftScope]) -> list[int]:
    """Return `scope` and the Retries around it, the innermost first."""
    found = []
    while scope is not None:
        found.append(scope)
        scope = scopes[scope].parent
    return found


def _collect_scopes(
    steps: tuple[Step, ...], used: list[DraftScope], renamed: dict[int, int]
) -> tuple[Scope, ...]:
    scopes = [
        replace(scope, parent=None if scope.parent is None else renamed[scope.parent]) for scope in used
    ]
    lists: list[list[tuple[int, int]]] = [[] for _ in scopes]
    for number, step in enumerate(steps):
        if step.scope is None:
            continue
        inside = dict.fromkeys(_list_enclosing(step.scope, scopes), 0)
        for earlier in step.after:
            for scope in _list_enclosing(steps[earlier].scope, scopes):
                if scope in inside:
                    inside[scope] += 1
        for scope, count in inside.items():
            lists[scope].append((number, count))
    return tuple(
        Scope(scope.path, scope.parent, scope.max_attempts, scope.delay_ms, tuple(inner))
        for scope, inner in zip(scopes, lists, strict=True)
    )
