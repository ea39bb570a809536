"""Effects: their two forms, parameters from config, and the effects of a whole graph."""

from __future__ import annotations

from typing import Any

import pytest

from gridq.errors import InvalidField
from gridq.graph.catalogue import Catalogue, StageSpec, make_stage_spec
from gridq.graph.compile import Placement, compile_plan
from gridq.graph.effects import (
    UNKNOWN,
    fill_parameters,
    parse_effect,
    parse_effects,
    remove_duplicates,
    to_json,
)
from gridq.graph.nodes import parse
from gridq.protocol import queue_names
from gridq.protocol.models import Effect

MODEL = Effect(effect="Llm", model={"$config": "model", "default": "any"})


def test_an_effect_is_a_name_or_an_object() -> None:
    assert parse_effect("Network", "") == parse_effect({"effect": "Network"}, "") == Effect(effect="Network")
    assert parse_effect("Llm", "").fields == {}


@pytest.mark.parametrize(
    "data",
    [
        {"effect": "Llm", "model": "claude-opus-4-6"},
        {"effect": "Cost", "cents": 3},
        {"effect": "FsRead", "path": "/data"},
        {"effect": "Gpu", "backend": "cuda", "memory_mb": 18000, "compute_cap": "8.0"},
        {"effect": "Quantum", "qubits": [1, {"x": None}]},
    ],
)
def test_no_field_of_an_effect_is_dropped(data: dict[str, Any]) -> None:
    assert to_json(parse_effect(data, "")) == data
    assert [to_json(effect) for effect in parse_effects([data], "")] == [data]


@pytest.mark.parametrize("data", [None, "", 1, [], {}, {"effect": 1}, {"Llm": "x"}])
def test_invalid_effects_are_refused(data: Any) -> None:
    with pytest.raises(InvalidField) as caught:
        parse_effects(["Pure", data], "effects")
    assert caught.value.path == "effects[1]"


def test_a_parameter_must_name_a_config_key() -> None:
    with pytest.raises(InvalidField) as caught:
        parse_effect({"effect": "Llm", "model": {"$config": 1}}, "effects[0]")
    assert caught.value.path == "effects[0].model"


def test_undeclared_effects_are_unknown() -> None:
    assert parse_effects(None, "") == parse_effects([], "") == (UNKNOWN,)
    assert make_stage_spec("x", "builtin:x").effects == (UNKNOWN,)


def test_duplicate_effects_are_dropped_in_order() -> None:
    effects = parse_effects(["Network", "Llm", {"effect": "Network"}, {"effect": "Llm", "model": "m"}], "")
    assert [effect.effect for effect in effects] == ["Network", "Llm", "Llm"]
    assert remove_duplicates(effects) == effects


@pytest.mark.parametrize(
    ("config", "model"),
    [({}, "any"), ({"model": "claude"}, "claude"), ({"model": None}, "any"), ({"x": 1}, "any")],
)
def test_config_fills_a_parameter(config: dict[str, Any], model: str) -> None:
    assert fill_parameters([MODEL], config) == (Effect(effect="Llm", model=model),)


def test_a_parameter_without_default_is_left_out() -> None:
    assert fill_parameters([Effect(effect="Llm", model={"$config": "model"})], {}) == (Effect(effect="Llm"),)


CATALOGUE = Catalogue(
    [
        make_stage_spec("pure", "builtin:pure", effects=[Effect(effect="Pure")]),
        make_stage_spec("get", "builtin:get", effects=[Effect(effect="Network"), Effect(effect="Fallible")]),
        make_stage_spec("chat", "llm:chat", effects=[MODEL]),
        make_stage_spec("small", "llm:chat", effects=[MODEL], config={"model": "tiny"}),
        make_stage_spec("mystery", "python:a:b"),
    ]
)


def stage(name: str, **config: Any) -> dict[str, Any]:
    return {"op": "Stage", "id": name, "config": config or None}


def place(spec: StageSpec, effects: list[Effect], path: str) -> Placement:
    return Placement(queue_names.PURE)


def effects_of(root: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the effects of a graph's plan."""
    return [dict(effect) for effect in compile_plan(parse({"root": root}), CATALOGUE, place).effects]


def test_the_effects_of_a_plan_include_both_arms_and_all_operators() -> None:
    const = {"op": "Const", "value": 1}
    root = {
        "op": "Branch",
        "predicate": {"op": "Let", "bindings": {"unused": stage("mystery")}, "body": const},
        "if_true": {"op": "Fanout", "source": stage("chat", model="a"), "targets": [stage("chat")]},
        "if_false": {
            "op": "Merge",
            "sources": [stage("small"), stage("small", model="b")],
            "target": {"op": "Retry", "stage": stage("pure"), "max_attempts": 2},
        },
    }
    assert effects_of(root) == [
        {"effect": "Unknown"},
        {"effect": "Llm", "model": "a"},
        {"effect": "Llm", "model": "any"},
        {"effect": "Llm", "model": "tiny"},
        {"effect": "Llm", "model": "b"},
        {"effect": "Pure"},
    ]


def test_a_remote_stage_has_network_and_fallible_and_a_constant_nothing() -> None:
    any_type = {"kind": "Any"}
    remote = {"op": "RemoteStage", "url": "https://h", "input": any_type, "output": any_type}
    assert effects_of(remote) == [{"effect": "Network"}, {"effect": "Fallible"}]
    assert effects_of({"op": "Const", "value": 1}) == []
