"""Compile a graph to its flat plan.

For each node, the walk passes down the term of its input, the steps after which it may start (`done`), and
its place (the innermost Branch arm and Retry). It returns the term of the output, and the steps after which
the node is finished. Invariant: every step that a term reads is in `done`, or comes before a step in `done`.
So when a step starts, everything it reads is finished, and a Retry that starts again never waits for a step
outside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gridq.errors import GraphTooLarge
from gridq.graph import effects as effect_rules
from gridq.graph.catalogue import Catalogue, StageSpec, make_stage_spec
from gridq.graph.expressions import (
    INPUT,
    MAX_EXPRESSION_DEPTH,
    MAX_SHARED_WEIGHT,
    Term,
    combine,
    get_expressions,
    make_const,
    make_operation,
    make_output,
)
from gridq.graph.fusion import DraftScope, DraftStep, build_plan
from gridq.graph.nodes import (
    Branch,
    Const,
    Fanout,
    Graph,
    Let,
    Merge,
    Node,
    Parallel,
    RemoteStage,
    Retry,
    Sequential,
    Stage,
    child_path,
)
from gridq.graph.plan import Op, Plan
from gridq.graph.walk import Walk, run
from gridq.protocol import queue_names
from gridq.protocol.models import Effect, Json

MAX_SHARED_STEPS = 8
"""The most steps that several other steps wait for; a larger set is joined by a step of its own."""

MAX_STEPS = 20_000
"""The default limit of steps in a plan."""

REMOTE_STAGE = make_stage_spec(
    "remote_stage",
    "builtin:remote_stage",
    effects=effect_rules.REMOTE,
    description="POST the `input` of {url, input} to its url and return data.output of the answer.",
)
"""The stage that a RemoteStage node runs; its input is the record {url, input}."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The queue of a stage, its fallbacks in order, and its declared cost in micro-dollars."""

    queue: str
    micro_dollars: int = 0
    fallbacks: tuple[str, ...] = ()


PlaceStage = Callable[[StageSpec, list[Effect], str], Placement]
"""`place(spec, effects, path)` returns the placement; called once for each stage with the same effects."""


class Flow(NamedTuple):
    """The input or output of a node: a value, and the steps after which it exists."""

    term: Term
    done: frozenset[int]


class Position(NamedTuple):
    """The place of a node: its innermost Branch arm and its innermost Retry."""

    guard: tuple[int, bool] | None
    scope: int | None


Child = tuple[Node, str, tuple[str, str] | None]
"""A node, its path, and its part of the input: ("pick" or "src", name), or None for the whole input."""


def compile_plan(
    graph: Graph, catalogue: Catalogue, place: PlaceStage, *, max_steps: int = MAX_STEPS
) -> Plan:
    """Return the plan of `graph`.

    Raises UnknownStage or AmbiguousStage if `catalogue` cannot resolve a reference, GraphTooLarge if there
    are more than `max_steps` steps before fusion, and whatever `place` raises.
    """
    compiler = _Compiler(catalogue, place, max_steps)
    top = Position(None, None)
    flow = run(compiler.compile_node(graph.root, "root", Flow(INPUT, frozenset()), top))
    answer = flow.term.step
    if answer is None:
        answer = compiler.add_value_step("root", flow, top)
    # A term that is just a step's output comes from the node's last step; a Branch returns a phi.
    assert compiler.drafts[answer].guard is None
    found = effect_rules.remove_duplicates(
        effect for used in compiler.used_effects.values() for effect in used
    )
    effects = tuple(effect_rules.to_json(effect) for effect in found)
    return build_plan(compiler.drafts, compiler.scopes, compiler.gates, answer, effects)


class _Compiler:
    def __init__(self, catalogue: Catalogue, place: PlaceStage, max_steps: int) -> None:
        self.catalogue = catalogue
        self.place = place
        self.max_steps = max_steps
        self.drafts: list[DraftStep] = []
        self.scopes: list[DraftScope] = []
        self.gates: set[int] = set()
        self.used_effects: dict[object, tuple[Effect, ...]] = {}
        self._placements: dict[object, tuple[Placement, tuple[dict[str, Json], ...]]] = {}

    def compile_node(self, node: Node, path: str, flow: Flow, at: Position) -> Walk[Flow]:
        """Compile one node and return its output."""
        if not isinstance(node, Const):
            flow = self.limit_depth(path, flow, at)
        match node:
            case Stage():
                spec = self.catalogue.resolve(node.id, node.pinning, path)
                config = spec.merge_config(node.config)
                if config is not None:
                    flow = flow._replace(term=combine(["cfg", flow.term.expr, config], [flow.term]))
                return self.add_stage(path, spec, spec.resolve_effects(node.config), flow, at)
            case RemoteStage():
                url = make_const(node.url)
                both = combine(["rec", {"url": url.expr, "input": flow.term.expr}], [url, flow.term])
                return self.add_stage(path, REMOTE_STAGE, REMOTE_STAGE.effects, Flow(both, flow.done), at)
            case Const():
                return Flow(make_const(node.value), flow.done)
            case Sequential():
                for i, stage in enumerate(node.stages):
                    flow = yield self.compile_node(stage, child_path(path, "stages", i), flow, at)
            case Parallel():
                flow = yield self.compile_parallel(node, path, flow, at)
            case Branch():
                flow = yield self.compile_branch(node, path, flow, at)
            case Fanout():
                flow = yield self.compile_fanout(node, path, flow, at)
            case Merge():
                flow = yield self.compile_merge(node, path, flow, at)
            case Retry():
                flow = yield self.compile_retry(node, path, flow, at)
            case Let():
                flow = yield self.compile_let(node, path, flow, at)
        return flow

    def compile_parallel(self, node: Parallel, path: str, flow: Flow, at: Position) -> Walk[Flow]:
        children: list[Child] = [
            (b, child_path(path, "branches", name), ("pick", name)) for name, b in node.branches.items()
        ]
        outputs, done = yield self.compile_concurrently(children, path, flow, at)
        fields = dict(zip(node.branches, outputs, strict=True))
        return self.limit_depth(path, Flow(combine(["rec", get_expressions(fields)], outputs), done), at)

    def compile_fanout(self, node: Fanout, path: str, flow: Flow, at: Position) -> Walk[Flow]:
        flow = yield self.compile_node(node.source, child_path(path, "source"), flow, at)
        children: list[Child] = [
            (target, child_path(path, "targets", i), None) for i, target in enumerate(node.targets)
        ]
        outputs, done = yield self.compile_concurrently(children, path, flow, at)
        return self.limit_depth(
            path, Flow(combine(["arr", [term.expr for term in outputs]], outputs), done), at
        )

    def compile_merge(self, node: Merge, path: str, flow: Flow, at: Position) -> Walk[Flow]:
        names = [f"source_{i}" for i in range(len(node.sources))]
        children: list[Child] = [
            (source, child_path(path, "sources", i), ("src", names[i]))
            for i, source in enumerate(node.sources)
        ]
        outputs, done = yield self.compile_concurrently(children, path, flow, at)
        fields = dict(zip(names, outputs, strict=True))
        both = Flow(combine(["rec", get_expressions(fields)], outputs), done)
        flow = yield self.compile_node(node.target, child_path(path, "target"), both, at)
        return flow

    def compile_let(self, node: Let, path: str, flow: Flow, at: Position) -> Walk[Flow]:
        if node.bindings:
            flow = self.make_shareable(path, flow, at)
        children: list[Child] = [
            (b, child_path(path, "bindings", name), None) for name, b in node.bindings.items()
        ]
        outputs, done = yield self.compile_concurrently(children, path, flow, at)
        fields = dict(zip(node.bindings, outputs, strict=True))
        inner = combine(["let", flow.term.expr, get_expressions(fields)], [flow.term, *outputs])
        flow = yield self.compile_node(node.body, child_path(path, "body"), Flow(inner, done), at)
        return flow

    def compile_branch(self, node: Branch, path: str, flow: Flow, at: Position) -> Walk[Flow]:
        flow = self.make_shareable(path, flow, at)
        test: Flow = yield self.compile_node(node.predicate, child_path(path, "predicate"), flow, at)
        gate = test.term.step
        # The last step of the predicate is the gate, unless a Retry may run it again.
        if gate is None or (self.drafts[gate].guard, self.drafts[gate].scope) != at:
            gate = self.add_value_step(child_path(path, "predicate"), test, at)
        assert gate not in self.gates
        self.gates.add(gate)
        arms: list[Term] = []
        ends: frozenset[int] = frozenset()
        for arm, name, child in ((True, "if_true", node.if_true), (False, "if_false", node.if_false)):
            # An arm without steps returns {gate}, so that what follows waits for the gate.
            start = Flow(flow.term, frozenset((gate,)))
            end: Flow = yield self.compile_node(
                child, child_path(path, name), start, Position((gate, arm), at.scope)
            )
            arms.append(end.term)
            ends |= end.done
        decided = make_output(gate)
        phi = combine(["phi", decided.expr, arms[0].expr, arms[1].expr], [decided, *arms])
        return self.limit_depth(path, Flow(phi, ends), at)

    def compile_retry(self, node: Retry, path: str, flow: Flow, at: Position) -> Walk[Flow]:
        first = len(self.drafts)
        inner = Position(at.guard, len(self.scopes))
        self.scopes.append(DraftScope(path, at.scope, node.max_attempts, node.delay_ms or 0))
        end: Flow = yield self.compile_node(node.stage, child_path(path, "stage"), flow, inner)
        inside = [step for step in end.term.refs | end.done if step >= first]
        # What follows waits only for the last step of the Retry: nothing that it saw as finished runs again.
        return self.materialize(path, end, inner) if len(inside) > 1 else end

    def compile_concurrently(
        self, children: Sequence[Child], path: str, flow: Flow, at: Position
    ) -> Walk[tuple[list[Term], frozenset[int]]]:
        """Compile nodes that run concurrently on one input.

        Returns their outputs, and the steps after which all of them are finished.
        """
        if len(children) > 1:
            flow = self.make_shareable(path, flow, at)
        outputs: list[Term] = []
        ends: set[int] = set()
        for child, where, field in children:
            given = flow
            if field is not None:
                given = flow._replace(term=combine([field[0], flow.term.expr, field[1]], [flow.term]))
            before = len(self.drafts)
            end: Flow = yield self.compile_node(child, where, given, at)
            outputs.append(end.term)
            if len(self.drafts) > before:
                ends |= end.done
        return outputs, frozenset(ends) if ends else flow.done

    def add_stage(
        self, path: str, spec: StageSpec, effects: tuple[Effect, ...], flow: Flow, at: Position
    ) -> Flow:
        key: object = (spec.id, repr(effects)) if spec.has_parameters else spec.id
        known = self._placements.get(key)
        if known is None:
            described = tuple(effect_rules.to_json(effect) for effect in effects)
            known = self._placements[key] = self.place(spec, list(effects), path), described
            self.used_effects[key] = effects
        placement, described = known
        op = Op(path, spec.id, spec.name, spec.implementation, flow.term.expr, described, spec.timeout)
        step = self.add_step(path, placement, [op], Flow(make_operation(flow.term), flow.done), at)
        return Flow(make_output(step), frozenset((step,)))

    def make_shareable(self, path: str, flow: Flow, at: Position) -> Flow:
        """Return `flow` in a form that several steps can read: a small term, and few steps to wait for."""
        if flow.term.weight > MAX_SHARED_WEIGHT or len(flow.done) > MAX_SHARED_STEPS:
            return self.materialize(path, flow, at)
        return flow

    def limit_depth(self, path: str, flow: Flow, at: Position) -> Flow:
        """Return `flow` with a term that is not too deep to be part of a larger expression."""
        return self.materialize(path, flow, at) if flow.term.depth >= MAX_EXPRESSION_DEPTH else flow

    def materialize(self, path: str, flow: Flow, at: Position) -> Flow:
        """Return `flow` as the output of one step."""
        step = self.add_value_step(path, flow, at)
        return Flow(make_output(step), frozenset((step,)))

    def add_value_step(self, path: str, flow: Flow, at: Position) -> int:
        """Add a step that only evaluates the term of `flow`, and return its number."""
        return self.add_step(path, Placement(queue_names.PURE), [], flow, at)

    def add_step(self, path: str, placement: Placement, ops: list[Op], flow: Flow, at: Position) -> int:
        if len(self.drafts) >= self.max_steps:
            raise GraphTooLarge(
                f"The graph needs more than {self.max_steps} steps",
                {
                    "path": path,
                    "expected": f"at most {self.max_steps} steps",
                    "fix": "split the graph, or raise GRIDQ_MAX_STEPS",
                },
            )
        term = flow.term
        draft = DraftStep(
            path=path,
            queue=placement.queue,
            ops=ops,
            value=term.expr,
            after=term.refs | flow.done,
            refs=term.refs,
            reads_input=term.reads_input,
            guard=at.guard,
            scope=at.scope,
            micro_dollars=placement.micro_dollars,
            fallbacks=placement.fallbacks,
        )
        self.drafts.append(draft)
        return len(self.drafts) - 1
