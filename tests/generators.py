"""Generate random graphs of all ten operators over a small catalogue of deterministic stages.

    @given(graphs(), values())
    def test(graph, value): ...        # graph is JSON: {"description", "version", "root"}

`CATALOGUE` has the stages, `place` assigns their queues, and `Calls()` runs and counts them, RemoteStage
included. `graphs(concurrent=False)` generates graphs without parallel stages. Only these contain `flaky`
stages, which fail as often as their config says and then succeed, so that the tries of a Retry can be
counted.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from hypothesis import strategies as st

from gridq.errors import StageError
from gridq.graph.catalogue import Catalogue, StageSpec, make_stage_spec
from gridq.graph.compile import Placement
from gridq.protocol import queue_names
from gridq.protocol.models import Effect

PURE = Effect(effect="Pure")
BENCH = Effect(effect="Bench", slug="any")

_PURE_STAGES = ("echo", "wrap", "is_true", "first", "fail")
_SEAT_STAGES = ("slow_echo", "slow_true", "size", "fail_on_null", "slow_fail")


def _spec(name: str, *effects: Effect, **fields: Any) -> StageSpec:
    return make_stage_spec(name, f"test:{name}", effects=effects, **fields)


CATALOGUE = Catalogue(
    [
        *(_spec(name, PURE) for name in _PURE_STAGES),
        *(_spec(name, BENCH) for name in _SEAT_STAGES),
        _spec("labelled", PURE, config={"label": "x"}),
        _spec("flaky", BENCH),
    ]
)


def place(spec: StageSpec, effects: list[Effect], path: str) -> Placement:
    """Place pure stages on `gridq:pure`, RemoteStages on `gridq:local`, all others on `bench:any`."""
    if any(effect.effect == "Bench" for effect in effects):
        return Placement("bench:any", 7)
    return Placement(queue_names.PURE if effects == [PURE] else queue_names.LOCAL)


class Calls:
    """Runs the catalogue's stages. `counts` has the number of calls of each path."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def call(self, spec: StageSpec, value: Any, path: str) -> Any:
        """Do the same for an interpreter."""
        return self(spec.implementation, value, path)

    def __call__(self, implementation: str, value: Any, path: str) -> Any:
        """Return the output of one stage. Raises StageError."""
        self.counts[path] += 1
        name = implementation.partition(":")[2].removeprefix("slow_")
        if name in ("echo", "labelled"):
            return value
        if name == "wrap":
            return {"a": value, "source_1": [value]}
        if name in ("is_true", "true"):
            return value is True or (isinstance(value, dict) and value.get("a") is True)
        if name == "first":
            parts = list(value.values()) if isinstance(value, dict) else value
            return parts[0] if isinstance(parts, list) and parts else None
        if name == "size":
            return len(json.dumps(value))
        if name == "remote_stage":
            if "fail" in value["url"]:
                raise StageError("it failed", {"path": path})
            return {"from": value["url"], "got": value["input"]}
        if name == "flaky" and self.counts[path] > value["fails"]:
            return value
        if name == "fail_on_null" and value is not None:
            return value
        raise StageError("it failed", {"path": path})


KEYS = ("a", "b", "source_0", "source_1", "items", "text", "ü ñ.", "label")
"""Names of fields, branches and bindings. They are few, so that they coincide often."""

_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from((2**53 + 1, -(10**30), 1.5, 1e300, "", "true", "中文 \U0001f600\u2028", "\ud800")),
)


def values() -> st.SearchStrategy[Any]:
    """Generate small JSON values: records over KEYS, arrays, text beyond ASCII, big integers."""
    return st.recursive(
        _SCALARS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
        max_leaves=8,
    )


def _configs() -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(KEYS), values(), max_size=2)


def _stage(name: str, config: dict[str, Any] | None) -> dict[str, Any]:
    return {"op": "Stage", "id": name} | ({} if config is None else {"config": config})


def _leaves(concurrent: bool) -> st.SearchStrategy[dict[str, Any]]:
    # Failing stages are rare: a graph that fails at once shows little.
    names = ("echo", "wrap", "is_true", "first", "slow_echo", "slow_true", "size", "labelled") * 2
    stages = st.builds(
        _stage, st.sampled_from((*names, "fail", "slow_fail", "fail_on_null")), st.none() | _configs()
    )
    remote = st.sampled_from(("https://a.example/x", "https://b.example/fail")).map(
        lambda url: {
            "op": "RemoteStage",
            "url": url,
            "input": {"kind": "Any"},
            "output": {"kind": "Any"},
        }
    )
    constants = values().map(lambda value: {"op": "Const", "value": value})
    flaky = st.integers(0, 3).map(lambda fails: _stage("flaky", {"fails": fails}))
    return st.one_of(stages, stages, stages, constants, remote, *(() if concurrent else (flaky, flaky)))


def nodes(*, concurrent: bool = True, leaves: int = 14) -> st.SearchStrategy[dict[str, Any]]:
    """Generate random nodes with about `leaves` leaves at most."""

    def extend(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
        width = 3 if concurrent else 1
        several = st.lists(inner, min_size=1, max_size=width)
        named = st.dictionaries(st.sampled_from(KEYS), inner, min_size=1, max_size=width)
        truth = st.sampled_from(("is_true", "slow_true")).map(lambda name: _stage(name, None))
        return st.one_of(
            st.lists(inner, min_size=1, max_size=3).map(
                lambda stages: {"op": "Sequential", "stages": stages}
            ),
            named.map(lambda branches: {"op": "Parallel", "branches": branches}),
            st.builds(
                lambda p, a, b: {"op": "Branch", "predicate": p, "if_true": a, "if_false": b},
                truth | inner | st.booleans().map(lambda b: {"op": "Const", "value": b}),
                inner,
                inner,
            ),
            st.builds(lambda s, t: {"op": "Fanout", "source": s, "targets": t}, inner, several),
            st.builds(lambda s, t: {"op": "Merge", "sources": s, "target": t}, several, inner),
            st.builds(
                lambda s, n, d: {"op": "Retry", "stage": s, "max_attempts": n} | d,
                inner,
                st.integers(1, 3),
                st.sampled_from(({}, {"delay_ms": None}, {"delay_ms": 2})),
            ),
            st.builds(
                lambda b, body: {"op": "Let", "bindings": b, "body": body},
                named | st.just({}),
                inner,
            ),
        )

    return st.recursive(_leaves(concurrent), extend, max_leaves=leaves)


@st.composite
def deep_nodes(draw: st.DrawFn) -> dict[str, Any]:
    """Generate a small node below 30 to 60 operators, so that expressions get deep and heavy."""
    node = draw(nodes(leaves=4))
    for kind in draw(st.lists(st.integers(0, 7), min_size=30, max_size=60)):
        const = {"op": "Const", "value": kind % 2 == 0}
        node = (
            {"op": "Sequential", "stages": [node]},
            {"op": "Parallel", "branches": {"a": node, "b": const}},
            {"op": "Branch", "predicate": const, "if_true": node, "if_false": _stage("echo", None)},
            {"op": "Fanout", "source": _stage("echo", {"b": kind}), "targets": [node, const]},
            {"op": "Merge", "sources": [const, node], "target": _stage("wrap", None)},
            {"op": "Retry", "stage": node, "max_attempts": 2},
            {"op": "Let", "bindings": {"b": const}, "body": node},
            {"op": "Let", "bindings": {"a": node}, "body": _stage("slow_echo", None)},
        )[kind]
    return node


@st.composite
def wide_nodes(draw: st.DrawFn) -> dict[str, Any]:
    """Generate two wide operators in a row, in which many steps wait for many others."""
    part = draw(nodes(leaves=3))
    width = draw(st.integers(9, 20))
    names = [f"b{i}" for i in range(width)]
    first = draw(
        st.sampled_from(
            (
                {"op": "Parallel", "branches": dict.fromkeys(names, part)},
                {"op": "Fanout", "source": _stage("slow_echo", None), "targets": [part] * width},
            )
        )
    )
    second = draw(
        st.sampled_from(
            (
                {"op": "Fanout", "source": {"op": "Const", "value": [1]}, "targets": [part] * width},
                {"op": "Merge", "sources": [part] * width, "target": _stage("size", None)},
                {"op": "Let", "bindings": dict.fromkeys(names, part), "body": part},
                {"op": "Branch", "predicate": part, "if_true": part, "if_false": _stage("echo", None)},
            )
        )
    )
    pair = {"op": "Sequential", "stages": [first, second]}
    return {"op": "Retry", "stage": pair, "max_attempts": 2} if draw(st.booleans()) else pair


def graphs(*, concurrent: bool = True) -> st.SearchStrategy[dict[str, Any]]:
    """Generate graph files. Without `concurrent`, no two stages of a graph can run in parallel."""
    kinds = st.one_of(nodes(), nodes(), deep_nodes(), wide_nodes()) if concurrent else nodes(concurrent=False)
    return kinds.map(lambda root: {"description": "random", "version": "0.1.0", "root": root})
