"""Run a graph in memory: a simple interpreter, which says what each operator means.

    outcome = Interpreter(catalogue, call).run(parse(graph).root, value)
    outcome.value       # the answer, if outcome.failures is empty
    outcome.failures    # path → error, of each stage whose failure may end the job

It knows neither plans nor the engine, which are tested against it; `gridq.testing` runs graphs with it. What
runs side by side on a grid runs here in the order of the graph, all of it: if two branches fail, either may
be reported. Below a Retry `failures` is that of the last try. Its delays are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gridq.errors import GridError
from gridq.graph import walk
from gridq.graph.catalogue import Catalogue, StageSpec
from gridq.graph.compile import REMOTE_STAGE
from gridq.graph.nodes import (
    Branch,
    Const,
    Fanout,
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
from gridq.graph.plan import wrap_input
from gridq.graph.walk import Walk
from gridq.protocol.models import Json

Call = Callable[[StageSpec, Json, str], Json]
"""`call(spec, value, path)` runs one stage on its input, its config included; GridError: it failed."""


@dataclass(frozen=True)
class Outcome:
    """The answer, or the errors of which one ends the job, by the paths of their stages."""

    value: Json = None
    failures: Mapping[str, GridError] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        return bool(self.failures)


class Interpreter:
    """Runs graphs over one catalogue. `calls` lists the stages that ran as (path, input), in order."""

    def __init__(self, catalogue: Catalogue, call: Call) -> None:
        self.catalogue = catalogue
        self.call = call
        self.calls: list[tuple[str, Json]] = []

    def run(self, root: Node, value: Json) -> Outcome:
        """Run a graph on its input. Raises UnknownStage or AmbiguousStage for a reference in it."""
        return walk.run(self._run_node(root, value, "root"))

    def _run_node(self, node: Node, value: Json, path: str) -> Walk[Outcome]:
        outcome: Outcome
        match node:
            case Stage():
                spec = self.catalogue.resolve(node.id, node.pinning, path)
                config = spec.merge_config(node.config)
                return self._run_stage(spec, value if config is None else wrap_input(value, config), path)
            case RemoteStage():
                return self._run_stage(REMOTE_STAGE, {"url": node.url, "input": value}, path)
            case Const():
                return Outcome(node.value)
            case Sequential():
                outcome = Outcome(value)
                for i, stage in enumerate(node.stages):
                    outcome = yield self._run_node(stage, outcome.value, child_path(path, "stages", i))
                    if outcome.failed:
                        break
                return outcome
            case Parallel():
                parts = {}
                for name, branch in node.branches.items():
                    given = value[name] if isinstance(value, dict) and name in value else value
                    parts[name] = yield self._run_node(branch, given, child_path(path, "branches", name))
                return _join(parts)
            case Branch():
                outcome = yield self._run_node(node.predicate, value, child_path(path, "predicate"))
                if outcome.failed:
                    return outcome
                name = "if_true" if outcome.value is True else "if_false"
                outcome = yield self._run_node(getattr(node, name), value, child_path(path, name))
                return outcome
            case Fanout():
                source: Outcome = yield self._run_node(node.source, value, child_path(path, "source"))
                if source.failed:
                    return source
                parts = {}
                for i, target in enumerate(node.targets):
                    parts[str(i)] = yield self._run_node(target, source.value, child_path(path, "targets", i))
                outcome = _join(parts)
                return outcome if outcome.failed else Outcome(list(outcome.value.values()))
            case Merge():
                parts = {}
                for i, each in enumerate(node.sources):
                    given = value.get(f"source_{i}") if isinstance(value, dict) else value
                    parts[f"source_{i}"] = yield self._run_node(each, given, child_path(path, "sources", i))
                outcome = _join(parts)
                if not outcome.failed:
                    outcome = yield self._run_node(node.target, outcome.value, child_path(path, "target"))
                return outcome
            case Retry():
                for _ in range(node.max_attempts):
                    outcome = yield self._run_node(node.stage, value, child_path(path, "stage"))
                    if not outcome.failed:
                        break
                return outcome
            case Let():
                parts = {}
                for name, binding in node.bindings.items():
                    parts[name] = yield self._run_node(binding, value, child_path(path, "bindings", name))
                outcome = _join(parts)
                if not outcome.failed:
                    inner = {**(value if isinstance(value, dict) else {}), **outcome.value}
                    outcome = yield self._run_node(node.body, inner, child_path(path, "body"))
                return outcome
        raise AssertionError(f"no such node: {node!r}")

    def _run_stage(self, spec: StageSpec, value: Json, path: str) -> Outcome:
        self.calls.append((path, value))
        try:
            return Outcome(self.call(spec, value, path))
        except GridError as exc:
            return Outcome(failures={path: exc})


def _join(parts: Mapping[str, Outcome]) -> Outcome:
    """Return the outcome of nodes that run side by side: all their errors, or the record of their values."""
    failures = {path: error for part in parts.values() for path, error in part.failures.items()}
    return Outcome(failures=failures) if failures else Outcome({n: part.value for n, part in parts.items()})
