"""Define the meaning of graphs with a simple recursive interpreter, which shares no code with plans or
engine.

    outcome = Reference(catalogue, call).outcome(parse(graph).root, value)
    outcome.value      # the answer, if outcome.errors is empty
    outcome.errors     # the paths of the stages whose failure may end the job

With concurrency, more than one error is possible: if two branches fail, either may be reported. `errors` is
the set of all possible ones, also below a Retry (a stage that always fails exhausts every try).
`call(implementation, value, path)` runs one stage and may raise StageFailed. Its input includes the config.
If the result of a stage depends on earlier calls, the outcome is exact only for graphs without concurrency.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gridq.graph.catalogue import Catalogue
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

Call = Callable[[str, Any, str], Any]
"""`call(implementation, value, path)`."""


class StageFailed(Exception):
    """A stage failed; `path` is its place in the graph."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


@dataclass(frozen=True)
class Outcome:
    """The answer, or the paths of the stages whose failure may end the job."""

    value: Any = None
    errors: frozenset[str] = frozenset()

    @property
    def failed(self) -> bool:
        return bool(self.errors)


class Reference:
    """Interprets graphs over one catalogue. `calls` lists the stages run as (path, input), in order."""

    def __init__(self, catalogue: Catalogue, call: Call) -> None:
        self.catalogue = catalogue
        self.call = call
        self.calls: list[tuple[str, Any]] = []

    def run(self, root: Node, value: Any) -> Any:
        """Return the answer. Raises StageFailed with the first of the possible errors."""
        outcome = self.outcome(root, value)
        if outcome.failed:
            raise StageFailed(min(outcome.errors))
        return outcome.value

    def outcome(self, node: Node, value: Any, path: str = "root") -> Outcome:
        match node:
            case Stage():
                spec = self.catalogue.resolve(node.id, node.pinning, path)
                if node.config is not None or spec.config:
                    value = with_config(value, {**(spec.config or {}), **(node.config or {})})
                return self.stage(spec.implementation, value, path)
            case RemoteStage():
                return self.stage("builtin:remote_stage", {"url": node.url, "input": value}, path)
            case Const():
                return Outcome(node.value)
            case Sequential():
                outcome = Outcome(value)
                for i, stage in enumerate(node.stages):
                    outcome = self.outcome(stage, outcome.value, child_path(path, "stages", i))
                    if outcome.failed:
                        break
                return outcome
            case Parallel():
                parts = {
                    name: self.outcome(branch, picked(value, name), child_path(path, "branches", name))
                    for name, branch in node.branches.items()
                }
                return together(parts)
            case Branch():
                test = self.outcome(node.predicate, value, child_path(path, "predicate"))
                if test.failed:
                    return test
                if test.value is True:
                    return self.outcome(node.if_true, value, child_path(path, "if_true"))
                return self.outcome(node.if_false, value, child_path(path, "if_false"))
            case Fanout():
                source = self.outcome(node.source, value, child_path(path, "source"))
                if source.failed:
                    return source
                both = together(
                    {
                        str(i): self.outcome(target, source.value, child_path(path, "targets", i))
                        for i, target in enumerate(node.targets)
                    }
                )
                return both if both.failed else Outcome(list(both.value.values()))
            case Merge():
                both = together(
                    {
                        f"source_{i}": self.outcome(
                            source,
                            value.get(f"source_{i}") if isinstance(value, dict) else value,
                            child_path(path, "sources", i),
                        )
                        for i, source in enumerate(node.sources)
                    }
                )
                return (
                    both if both.failed else self.outcome(node.target, both.value, child_path(path, "target"))
                )
            case Retry():
                for _ in range(node.max_attempts):
                    outcome = self.outcome(node.stage, value, child_path(path, "stage"))
                    if not outcome.failed:
                        break
                return outcome
            case Let():
                bound = together(
                    {
                        name: self.outcome(binding, value, child_path(path, "bindings", name))
                        for name, binding in node.bindings.items()
                    }
                )
                if bound.failed:
                    return bound
                outer = value if isinstance(value, dict) else {}
                return self.outcome(node.body, {**outer, **bound.value}, child_path(path, "body"))
        raise AssertionError(node)

    def stage(self, implementation: str, value: Any, path: str) -> Outcome:
        self.calls.append((path, value))
        try:
            return Outcome(self.call(implementation, value, path))
        except StageFailed:
            return Outcome(errors=frozenset((path,)))


def together(parts: Mapping[str, Outcome]) -> Outcome:
    """Return the outcome of parallel nodes: all their errors, or the record of their values."""
    errors = frozenset().union(*(part.errors for part in parts.values()))
    return Outcome(errors=errors) if errors else Outcome({name: part.value for name, part in parts.items()})


def picked(value: Any, name: str) -> Any:
    """Return the input of a Parallel's branch."""
    return value[name] if isinstance(value, dict) and name in value else value


def with_config(value: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stage's input record: the config's keys override the input's.

    An input that is not a record gets a free name.
    """
    if not isinstance(value, dict):
        names = ["items", "text", "data", "input", "records", "train", "document", "html", "csv", "json_str"]
        free = [name for name in names if name not in config]
        value = {free[0] if free else "items": value}
    return {**value, **config}
