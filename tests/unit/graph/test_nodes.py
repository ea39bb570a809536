"""Parsing graph files: round trips, and an error with its place for each fault."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridq.errors import (
    GraphCycle,
    GraphError,
    GraphTooLarge,
    InvalidField,
    InvalidJson,
    MissingField,
    UnknownOperator,
)
from gridq.graph.nodes import MAX_DEPTH, Const, Sequential, Stage, parse
from gridq.graph.source import join_path
from tests.builders import walk_nodes
from tests.generators import graphs

STAGE = {"op": "Stage", "id": "a"}
ANY = {"kind": "Any"}


def graph(root: Any, **more: Any) -> dict[str, Any]:
    return {"description": "d", "version": "0.1.0", "root": root, **more}


def fault(data: Any, kind: type[GraphError]) -> GraphError:
    with pytest.raises(kind) as caught:
        parse(data)
    assert type(caught.value) is kind
    return caught.value


EVERY_OPERATOR = graph(
    {
        "op": "Sequential",
        "_comment": "kept",
        "stages": [
            {"op": "Stage", "id": "a", "pinning": "both", "config": {"x": None}, "ui": {"at": [1, 2]}},
            {
                "op": "RemoteStage",
                "url": "https://h/x",
                "input": ANY,
                "output": {"kind": "List", "value": ANY},
            },
            {"op": "Const", "value": None},
            {"op": "Parallel", "branches": {"a.b": STAGE, "": STAGE}},
            {"op": "Branch", "predicate": STAGE, "if_true": STAGE, "if_false": STAGE},
            {"op": "Fanout", "source": STAGE, "targets": [STAGE]},
            {"op": "Merge", "sources": [STAGE], "target": STAGE},
            {"op": "Retry", "stage": STAGE, "max_attempts": 2, "delay_ms": 0},
            {"op": "Let", "bindings": {}, "body": STAGE},
        ],
    },
    _note="kept too",
)


def test_every_operator_round_trips_with_its_unknown_keys() -> None:
    assert parse(EVERY_OPERATOR).to_json() == EVERY_OPERATOR
    assert parse(json.dumps(EVERY_OPERATOR)).to_json() == EVERY_OPERATOR
    assert parse(json.dumps(EVERY_OPERATOR).encode("utf-8")).to_json() == EVERY_OPERATOR


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(graphs())
def test_random_graphs_round_trip(data: dict[str, Any]) -> None:
    once = parse(json.dumps(data)).to_json()
    assert parse(once).to_json() == once
    assert next(iter(walk_nodes(parse(data).root)))[0] == "root"


def test_nodes_are_frozen_values() -> None:
    root = parse(graph({"op": "Sequential", "stages": [STAGE]})).root
    assert root == Sequential(stages=(Stage(id="a"),))
    with pytest.raises(AttributeError):
        root.stages = ()  # type: ignore[attr-defined]
    assert "Sequential" in repr(root)


def test_the_graph_is_a_copy() -> None:
    data = graph({"op": "Const", "value": [1]})
    root = parse(data).root
    data["root"]["value"].append(2)
    assert isinstance(root, Const)
    assert root.value == [1]


def test_description_and_version_may_be_left_out() -> None:
    assert parse({"root": STAGE}).version == "0.1.0"
    assert fault({"root": STAGE, "version": 1}, InvalidField).path == "version"


def test_a_bare_node_suggests_wrapping_it_in_a_graph() -> None:
    exc = fault(STAGE, MissingField)
    assert exc.path == "root"
    assert "wrap it" in str(exc.fix)


def test_a_misspelt_root_is_named() -> None:
    assert "'rooot'" in str(fault({"rooot": STAGE}, MissingField).fix)


@pytest.mark.parametrize("data", [[], None, 3, "[]", "null", '"text"'])
def test_a_graph_must_be_an_object(data: Any) -> None:
    assert fault(data, InvalidField).path == ""


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("{", "line 1, column 2"),
        ('{"root":\n  {"op" "Stage"}}', "line 2, column 9"),
        ("", "line 1, column 1"),
        (b"\xff\xfe\x00", ""),
        ('{"root": {"op": "Const", "value": NaN}}', ""),
        ('{"root": {"op": "Const", "value": -Infinity}}', ""),
        ('{"root": {"op": "Const", "value": 1e999}}', ""),
        ('{"root": {"op": "Let", "bindings": {"a": 1, "a": 2}, "body": 3}}', "root.bindings.a"),
        ('{"root": {"op": "Const", "value": [0, {"x y": 1, "x y": 1}]}}', 'root.value[1]["x y"]'),
        ('{"root": {"op": "Const", "value": ' + "9" * 5000 + "}}", ""),
    ],
)
def test_text_that_is_not_json_is_refused_with_its_place(text: str | bytes, path: str) -> None:
    exc = fault(text, InvalidJson)
    assert exc.path == path
    assert exc.code == "graph.not_json"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, object(), {1: 2}, b"bytes"])
def test_python_values_that_are_not_json_are_refused_with_their_path(value: Any) -> None:
    root = {"op": "Sequential", "stages": [STAGE, {"op": "Const", "value": {"x": [value]}}]}
    assert fault(graph(root), InvalidField).path == "root.stages[1].value.x[0]"


def test_tuples_are_arrays() -> None:
    assert parse(graph({"op": "Sequential", "stages": (STAGE,)})).root == Sequential(stages=(Stage(id="a"),))


@pytest.mark.parametrize(
    ("op", "near"),
    [
        ("stage", "Stage"),
        ("Sequental", "Sequential"),
        ("PARALLEL", "Parallel"),
        ("FanOut", "Fanout"),
        ("If", None),
    ],
)
def test_an_unknown_operator_names_the_nearest(op: str, near: str | None) -> None:
    root = {
        "op": "Sequential",
        "stages": [STAGE, STAGE, {"op": "Parallel", "branches": {"weather": {"op": op}}}],
    }
    exc = fault(graph(root), UnknownOperator)
    assert exc.path == "root.stages[2].branches.weather.op"
    if near is not None:
        assert exc.fix == f"use {near!r}"


@pytest.mark.parametrize("op", [None, 1, [], {"x": 1}])
def test_an_operator_must_be_text(op: Any) -> None:
    assert fault(graph({"op": op}), UnknownOperator).path == "root.op"


NODES: list[dict[str, Any]] = EVERY_OPERATOR["root"]["stages"] + [{"op": "Sequential", "stages": [STAGE]}]
OPTIONAL = {"op", "pinning", "config", "delay_ms", "ui"}


@pytest.mark.parametrize(
    ("node", "key"), [(node, key) for node in NODES for key in node if key not in OPTIONAL]
)
def test_a_missing_field_is_named(node: dict[str, Any], key: str) -> None:
    broken = {name: value for name, value in node.items() if name != key}
    exc = fault(graph({"op": "Let", "bindings": {"x": broken}, "body": STAGE}), MissingField)
    assert exc.path == f"root.bindings.x.{key}"
    misspelt = fault(graph({**broken, key + "s": node[key]}), MissingField)
    assert misspelt.fix == f"rename {key + 's'!r} to {key!r}"


def test_a_node_without_operator_is_refused() -> None:
    assert fault(graph({"id": "a"}), MissingField).path == "root.op"


@pytest.mark.parametrize(
    ("node", "path"),
    [
        ("text", ""),
        (None, ""),
        ([STAGE], ""),
        ({"op": "Stage", "id": ""}, ".id"),
        ({"op": "Stage", "id": 7}, ".id"),
        ({"op": "Stage", "id": "a", "pinning": "none"}, ".pinning"),
        ({"op": "Stage", "id": "a", "pinning": []}, ".pinning"),
        ({"op": "Stage", "id": "a", "config": [1]}, ".config"),
        ({"op": "RemoteStage", "url": "ftp://h", "input": ANY, "output": ANY}, ".url"),
        ({"op": "RemoteStage", "url": "http://h", "input": "Text", "output": ANY}, ".input"),
        ({"op": "RemoteStage", "url": "http://h", "input": ANY, "output": {"kind": "Tekst"}}, ".output.kind"),
        ({"op": "Sequential", "stages": []}, ".stages"),
        ({"op": "Sequential", "stages": {}}, ".stages"),
        ({"op": "Parallel", "branches": {}}, ".branches"),
        ({"op": "Parallel", "branches": [STAGE]}, ".branches"),
        ({"op": "Fanout", "source": STAGE, "targets": []}, ".targets"),
        ({"op": "Fanout", "source": [], "targets": [STAGE]}, ".source"),
        ({"op": "Merge", "sources": [], "target": STAGE}, ".sources"),
        ({"op": "Let", "bindings": [], "body": STAGE}, ".bindings"),
        ({"op": "Retry", "stage": STAGE, "max_attempts": 0}, ".max_attempts"),
        ({"op": "Retry", "stage": STAGE, "max_attempts": 1.5}, ".max_attempts"),
        ({"op": "Retry", "stage": STAGE, "max_attempts": True}, ".max_attempts"),
        ({"op": "Retry", "stage": STAGE, "max_attempts": 2, "delay_ms": -1}, ".delay_ms"),
        ({"op": "Sequential", "stages": [STAGE, {"op": "Sequential", "stages": []}]}, ".stages[1].stages"),
        (
            {"op": "Parallel", "branches": {"a.b": {"op": "Sequential", "stages": []}}},
            '.branches["a.b"].stages',
        ),
    ],
)
def test_a_wrong_field_is_named(node: Any, path: str) -> None:
    exc = fault(graph(node), InvalidField)
    assert exc.path == "root" + path
    assert exc.expected


def test_null_means_that_an_optional_field_is_absent() -> None:
    node = {
        "op": "Retry",
        "stage": {**STAGE, "pinning": None, "config": None},
        "max_attempts": 1,
        "delay_ms": None,
    }
    assert parse(graph(node)).root == parse(graph({"op": "Retry", "stage": STAGE, "max_attempts": 1})).root


def test_a_cycle_is_named() -> None:
    inner: dict[str, Any] = {"op": "Sequential", "stages": [STAGE]}
    outer = {"op": "Retry", "stage": inner, "max_attempts": 2}
    inner["stages"].append(outer)
    exc = fault(graph(outer), GraphCycle)
    assert exc.path == "root.stage.stages[1]"


def test_a_node_used_twice_is_not_a_cycle() -> None:
    assert parse(graph({"op": "Fanout", "source": STAGE, "targets": [STAGE, STAGE]}))


def nested(depth: int) -> dict[str, Any]:
    node: dict[str, Any] = STAGE
    for _ in range(depth - 1):
        node = {"op": "Sequential", "stages": [node]}
    return graph(node)


def as_text(depth: int) -> str:
    return (
        '{"root": '
        + '{"op": "Sequential", "stages": [' * (depth - 1)
        + json.dumps(STAGE)
        + "]}" * (depth - 1)
        + "}"
    )


def test_a_graph_nested_too_deeply_is_refused() -> None:
    assert len(list(walk_nodes(parse(nested(MAX_DEPTH)).root))) == MAX_DEPTH
    assert len(list(walk_nodes(parse(as_text(MAX_DEPTH)).root))) == MAX_DEPTH
    exc = fault(as_text(MAX_DEPTH + 1), GraphTooLarge)
    assert exc.path == "root" + ".stages[0]" * MAX_DEPTH
    assert len(list(walk_nodes(parse(nested(20), max_depth=20).root))) == 20
    with pytest.raises(GraphTooLarge):
        parse(nested(21), max_depth=20)


def test_the_callers_own_depth_does_not_count() -> None:
    def below(frames: int) -> int:
        if frames:
            return below(frames - 1)
        return len(list(walk_nodes(parse(as_text(MAX_DEPTH)).root)))

    assert below(600) == MAX_DEPTH


@pytest.mark.parametrize("depth", [2_000, 200_000])
def test_no_depth_ends_in_a_recursion_error(depth: int) -> None:
    fault(as_text(depth), GraphTooLarge)
    fault(nested(depth), GraphTooLarge)
    deep: Any = []
    for _ in range(depth):
        deep = [deep]
    fault(graph({"op": "Const", "value": deep}), GraphTooLarge)
    fault('{"root": ' + "[" * depth, GraphTooLarge)


def test_a_values_own_depth_is_limited() -> None:
    value: Any = 1
    for _ in range(200):
        value = [value]
    assert parse(graph({"op": "Const", "value": value}))
    assert fault(graph({"op": "Const", "value": [value]}), GraphTooLarge).path == "root.value"
    assert fault(graph({**STAGE, "config": {"x": value}}), GraphTooLarge).path == "root.config"


def test_shared_parts_that_unfold_without_end_are_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gridq.graph.source.MAX_VALUES", 50_000)
    node: dict[str, Any] = STAGE
    for _ in range(60):
        node = {"op": "Fanout", "source": node, "targets": [node]}
    fault(graph(node), GraphTooLarge)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.text(max_size=5), st.integers(0, 9))
def test_paths_are_unambiguous(key: str, index: int) -> None:
    path = join_path("root", key)
    assert path.startswith("root.") == (path == f"root.{key}")
    assert join_path("root", index) == f"root[{index}]"
