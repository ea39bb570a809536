"""Generate graphs from a seed, each with its expected outcome.

A graph is built from the top, with the value that enters each node known, so the generator can compute its
answer, or the stages of which one must fail it. It follows the documented rules of graphs and uses neither
the engine nor its plans.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gridq.graph.nodes import child_path
from gridq.protocol.models import Json
from tests.chaos.endpoints.calls import MAX_TOKENS, MODEL, make_answer, make_system_text
from tests.chaos.profile import CENTS, SEATED
from tests.chaos.witness import ORDERS, answer

Node = dict[str, Any]
LONG = 70_000
"""Characters of an answer that is stored under its own key."""
ALWAYS = 1_000_000
JOB = "JOB-ID"
"""The placeholder in a graph for the id of its job, which is not known yet."""
LAYER_WIDTH = 50
"""Stages side by side in a huge graph of layers."""


@dataclass(frozen=True, slots=True)
class ExpectedOutcome:
    """A node's answer, or the error codes that fail it, by the paths of their stages."""

    value: Any = None
    errors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GeneratedGraph:
    """A graph with its input and expected outcome. `stages`: the witnessed stages, id → path. `asked`: the
    same for those that call a model.
    """

    graph: dict[str, Json]
    input: Json
    outcome: ExpectedOutcome
    stages: dict[str, str]
    asked: dict[str, str] = field(default_factory=dict)


class GraphGenerator:
    """Generates graphs from one random source. A stage's id is unique in its graph. `tight`: no stage is
    recorded twice, because a job's reservation covers each stage once.
    """

    tight = False
    asking = 0.0
    """The probability that a stage calls a model, in graphs that are not tight: the tokens of calls are
    numbers.
    """

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self._stages: dict[str, str] = {}
        self._asked: dict[str, str] = {}
        self._brief = False
        self._spends = False
        self._failing = 0.0

    def generate(
        self, *, failing: float = 0.0, paid: bool = False, slow: bool = False, streamed: bool = False
    ) -> GeneratedGraph:
        """Return a graph of any shape. `failing`: the probability that a stage fails for good. `paid`: its
        stages cost money. `slow`: it takes seconds. `streamed`: its stages emit pieces, so that a lost one is
        not repeated.
        """
        self._stages, self._spends, self._failing, self._slow = {}, paid, failing, slow
        self._streamed, self._brief, self._asked = streamed, False, {}
        value: Json = self.chance.choice([None, 7, "text", [1, 2], {"a": 1, "b": [True]}])
        shape = self.chance.choices(
            [self.chain, self.wide, self.fan, self.mixture, self.deep, self.single], [4, 3, 3, 6, 1, 3]
        )[0]
        root, outcome = shape(value, "root")
        return GeneratedGraph(
            {"description": "chaos", "version": "0.1.0", "root": root},
            value,
            outcome,
            self._stages,
            self._asked,
        )

    def generate_huge(self, stages: int, *, layered: bool, failing: float = 0.0) -> GeneratedGraph:
        """Return a graph of about `stages` brief stages: a wide fan-out, or if `layered` one layer after
        another, each of whose stages gets all answers of the layer before.
        """
        self._stages, self._asked, self._failing = {}, {}, failing
        self._spends = self._slow = self._streamed = False
        self._brief = True
        value: Json = {"huge": stages}
        if layered:
            nodes, outcome = [], ExpectedOutcome(value)
            for layer in range(max(stages // LAYER_WIDTH, 1)):
                path = child_path("root", "stages", layer)
                node, after = self.parallel(outcome.value, path, min(stages, LAYER_WIDTH), 0)
                nodes.append(node)
                outcome = outcome if outcome.errors else after
            root: Node = {"op": "Sequential", "stages": nodes}
        else:
            root, outcome = self.fanout(value, "root", stages, 0)
        graph: dict[str, Json] = {"description": "huge", "version": "0.1.0", "root": root}
        return GeneratedGraph(graph, value, outcome, self._stages, self._asked)

    # -- shapes

    def single(self, value: Any, path: str) -> tuple[Node, ExpectedOutcome]:
        return self.stage(value, path)

    def chain(self, value: Any, path: str, longest: int = 12) -> tuple[Node, ExpectedOutcome]:
        return self.sequence(value, path, self.chance.randint(2, longest), 0)

    def wide(self, value: Any, path: str) -> tuple[Node, ExpectedOutcome]:
        return self.parallel(value, path, self.chance.randint(4, 24), 0)

    def fan(self, value: Any, path: str) -> tuple[Node, ExpectedOutcome]:
        return self.fanout(value, path, self.chance.randint(4, 32), 0)

    def mixture(self, value: Any, path: str) -> tuple[Node, ExpectedOutcome]:
        return self.node(value, path, 3)

    def deep(self, value: Any, path: str) -> tuple[Node, ExpectedOutcome]:
        """Return a small node below many operators."""
        return self.node(value, path, self.chance.randint(5, 7), narrow=True)

    def node(self, value: Any, path: str, depth: int, narrow: bool = False) -> tuple[Node, ExpectedOutcome]:
        if depth <= 0:
            return self.leaf(value, path)
        width = 1 if narrow else self.chance.randint(2, 3)
        kinds = [self.sequence, self.parallel, self.fanout, self.merge, self.let]
        kind = self.chance.randrange(len(kinds) + 2)
        if kind < len(kinds):
            return kinds[kind](value, path, width, depth - 1)
        return (self.branch if kind == len(kinds) else self.retry)(value, path, depth - 1)

    # -- operators

    def sequence(self, value: Any, path: str, width: int, depth: int) -> tuple[Node, ExpectedOutcome]:
        nodes, outcome = [], ExpectedOutcome(value)
        for i in range(width):
            node, after = self.node(outcome.value, child_path(path, "stages", i), depth, width == 1)
            nodes.append(node)
            outcome = outcome if outcome.errors else after
        return {"op": "Sequential", "stages": nodes}, outcome

    def parallel(self, value: Any, path: str, width: int, depth: int) -> tuple[Node, ExpectedOutcome]:
        branches, parts = {}, {}
        for name in (f"b{i}" for i in range(width)):
            given = value[name] if isinstance(value, dict) and name in value else value
            branches[name], parts[name] = self.node(
                given, child_path(path, "branches", name), depth, width == 1
            )
        return {"op": "Parallel", "branches": branches}, _together(parts)

    def fanout(self, value: Any, path: str, width: int, depth: int) -> tuple[Node, ExpectedOutcome]:
        source, given = self.leaf(value, child_path(path, "source"))
        targets, parts = [], {}
        for i in range(width):
            node, parts[str(i)] = self.node(given.value, child_path(path, "targets", i), depth, width == 1)
            targets.append(node)
        both = _together(parts)
        outcome = (
            given if given.errors else both if both.errors else ExpectedOutcome(list(both.value.values()))
        )
        return {"op": "Fanout", "source": source, "targets": targets}, outcome

    def merge(self, value: Any, path: str, width: int, depth: int) -> tuple[Node, ExpectedOutcome]:
        sources, parts = [], {}
        for i in range(width):
            given = value.get(f"source_{i}") if isinstance(value, dict) else value
            node, parts[f"source_{i}"] = self.node(given, child_path(path, "sources", i), depth, width == 1)
            sources.append(node)
        both = _together(parts)
        target, after = self.leaf(both.value, child_path(path, "target"))
        return {"op": "Merge", "sources": sources, "target": target}, both if both.errors else after

    def let(self, value: Any, path: str, width: int, depth: int) -> tuple[Node, ExpectedOutcome]:
        bindings, parts = {}, {}
        for name in (f"v{i}" for i in range(width)):
            bindings[name], parts[name] = self.node(
                value, child_path(path, "bindings", name), depth, width == 1
            )
        bound = _together(parts)
        outer = value if isinstance(value, dict) else {}
        given = None if bound.errors else {**outer, **bound.value}
        body, after = self.leaf(given, child_path(path, "body"))
        return {"op": "Let", "bindings": bindings, "body": body}, bound if bound.errors else after

    def branch(self, value: Any, path: str, depth: int) -> tuple[Node, ExpectedOutcome]:
        say = self.chance.random() < 0.5
        predicate, test = self.stage(value, child_path(path, "predicate"), say=say)
        yes, if_true = self.node(value, child_path(path, "if_true"), depth, True)
        no, if_false = self.node(value, child_path(path, "if_false"), depth, True)
        node = {"op": "Branch", "predicate": predicate, "if_true": yes, "if_false": no}
        return node, test if test.errors else if_true if test.value is True else if_false

    def retry(self, value: Any, path: str, depth: int) -> tuple[Node, ExpectedOutcome]:
        """Return a Retry of some stages and one that fails at first, with enough tries."""
        if self.tight:
            return self.sequence(value, path, 2, depth)
        times = 0 if self._streamed else self.chance.randint(0, 2)
        inner = child_path(path, "stage")
        first, outcome = self.node(value, child_path(inner, "stages", 0), depth, True)
        last, after = self.stage(outcome.value, child_path(inner, "stages", 1), flaky=times)
        node: Node = {
            "op": "Retry",
            "stage": {"op": "Sequential", "stages": [first, last]},
            "max_attempts": times + 1,
        }
        if self.chance.random() < 0.5:
            node["delay_ms"] = self.chance.choice([1, 50, 400])
        return node, outcome if outcome.errors else after

    # -- leaves

    def leaf(self, value: Any, path: str) -> tuple[Node, ExpectedOutcome]:
        what = self.chance.random()
        if what < 0.06:
            constant = self.chance.choice([None, 3, "c", {"b0": 1, "source_1": [2]}])
            return {"op": "Const", "value": constant}, ExpectedOutcome(constant)
        if what < 0.16:  # pure: a router runs it, and no witness sees it
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            return {"op": "Stage", "id": "format_json"}, ExpectedOutcome(text)
        return self.stage(value, path)

    def ask(self, value: Any, path: str) -> tuple[Node, ExpectedOutcome]:
        """Return a stage that calls a model with its input as the prompt."""
        name = f"a{len(self._asked)}"
        self._asked[name] = child_path(path, "stages", 1)
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        config = {"model": MODEL, "system": make_system_text(JOB, name), "max_tokens": MAX_TOKENS}
        stages = [
            {"op": "Stage", "id": "format_json"},
            {"op": "Stage", "id": "llm_complete", "config": config},
        ]
        return {"op": "Sequential", "stages": stages}, ExpectedOutcome(make_answer(name, text))

    def stage(self, value: Any, path: str, **orders: Json) -> tuple[Node, ExpectedOutcome]:
        chance = self.chance
        if not orders and not self.tight and chance.random() < self.asking:
            return self.ask(value, path)
        name = f"s{len(self._stages)}"
        self._stages[name] = path
        ms = chance.choices([0, chance.randint(5, 60), chance.randint(100, 800), 2000], [4, 6, 6, 2])[0]
        if self._brief:
            ms = chance.randint(0, 2)
        orders = {"id": name, "ms": ms * (3 if self._slow else 1), **orders}
        kind = (
            "chaos_seat"
            if self._spends or chance.random() < (0.3 if self._brief else 0.55)
            else "chaos_local"
        )
        if kind == "chaos_seat":
            kind = chance.choices([kind, "chaos_rare"], [3, 1])[0]
            orders["spend"] = 0 if self._brief else chance.choice([0, 100, round(CENTS * 10_000)])
        if self._brief:
            pass
        elif self._streamed:
            orders["emit"] = chance.randint(1, 3)
        elif chance.random() < 0.05:
            orders["seat"] = chance.randint(1, 2)
        elif chance.random() < 0.02:
            orders["die"] = 1
        if "say" not in orders and not self._brief and chance.random() < 0.03:
            orders["size"] = LONG
        errors = {}
        if chance.random() < self._failing:
            how = chance.choices(["stage.failed", "stage.timeout", "stage.quarantined"], [6, 2, 1])[0]
            errors = {path: how}
            if how == "stage.failed":
                orders["fail"] = True
            elif how == "stage.quarantined":
                orders["die"] = ALWAYS
            else:
                kind = "chaos_slow"
                orders["ms"] = 5000
                orders.pop("spend", None)
        given = value if isinstance(value, dict) else {"items": value}
        node = {"op": "Stage", "id": kind, "config": {ORDERS: orders}}
        return node, ExpectedOutcome(errors=errors) if errors else ExpectedOutcome(
            answer({**given, ORDERS: orders})
        )


def spends(node: Json) -> Iterator[int]:
    """Yield the micro-dollars that each stage of a graph that seats run will report."""
    if isinstance(node, dict) and node.get("op") == "Stage" and node["id"] in SEATED:
        yield node["config"][ORDERS]["spend"]
    elif isinstance(node, (dict, list)):
        for inner in node.values() if isinstance(node, dict) else node:
            yield from spends(inner)


def _together(parts: dict[str, ExpectedOutcome]) -> ExpectedOutcome:
    """Return the outcome of nodes that run side by side: their errors, else the record of their values."""
    errors = {path: code for part in parts.values() for path, code in part.errors.items()}
    return (
        ExpectedOutcome(errors=errors)
        if errors
        else ExpectedOutcome({name: part.value for name, part in parts.items()})
    )
