"""What stages do besides computing: an open set of effects, each `{"effect": NAME, …}`.

The short spelling `"Network"` is `{"effect": "Network"}`; a bare `"Llm"` names no model and so means any. A
stage that declares none has `Unknown`. In a catalogued stage a field of an effect may be `{"$config": KEY,
"default": V}`: it takes the value that the node's config (over the stage's default config) has under KEY,
else V, else the field is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from gridq.errors import InvalidField
from gridq.graph.nodes import Graph, RemoteStage, Stage, walk_nodes
from gridq.graph.source import join_path
from gridq.protocol.models import Effect, Json

if TYPE_CHECKING:
    from gridq.graph.catalogue import Catalogue

UNKNOWN = Effect(effect="Unknown")
REMOTE = (Effect(effect="Network"), Effect(effect="Fallible"))
"""What a RemoteStage does."""


def parse_effect(data: Json, path: str) -> Effect:
    """Read one effect in either spelling; an object's fields are all kept. InvalidField where it is none."""
    if isinstance(data, str) and data:
        return Effect(effect=data)
    name = data.get("effect") if isinstance(data, dict) else None
    if not isinstance(name, str) or not name:
        raise InvalidField(
            "This is no effect", {"path": path, "expected": '"Network" or {"effect": "Llm", "model": "…"}'}
        )
    for key, value in data.items():
        if isinstance(value, dict) and "$config" in value and not isinstance(value["$config"], str):
            raise InvalidField(
                "$config names no key",
                {"path": join_path(path, key), "expected": '{"$config": "model", "default": "any"}'},
            )
    return Effect.model_validate(data)


def parse_effects(data: Json, path: str) -> tuple[Effect, ...]:
    """Read a stage's effects: an array, or `{"effects": array}`. None or an empty array is Unknown."""
    if isinstance(data, dict) and "effects" in data:
        data, path = data["effects"], join_path(path, "effects")
    if data is None:
        return (UNKNOWN,)
    if not isinstance(data, list):
        raise InvalidField(
            "The effects are no array", {"path": path, "expected": 'an array such as ["Pure"]'}
        )
    return remove_duplicates(parse_effect(item, join_path(path, i)) for i, item in enumerate(data)) or (
        UNKNOWN,
    )


def to_json(effect: Effect) -> dict[str, Json]:
    """The object spelling."""
    return {"effect": effect.effect, **effect.fields}


def remove_duplicates(effects: Iterable[Effect]) -> tuple[Effect, ...]:
    """`effects` without repeats, in the order they came."""
    found: dict[str, Effect] = {}
    for effect in effects:
        found.setdefault(json.dumps(to_json(effect), sort_keys=True), effect)
    return tuple(found.values())


def have_parameters(effects: Iterable[Effect]) -> bool:
    """Whether one of `effects` depends on a node's config."""
    return any(_is_parameter(value) for effect in effects for value in effect.fields.values())


def _is_parameter(value: Json) -> bool:
    return isinstance(value, dict) and "$config" in value


def fill_parameters(effects: Iterable[Effect], config: Mapping[str, Json]) -> tuple[Effect, ...]:
    """`effects` with every `$config` field taken from `config`."""
    filled = []
    for effect in effects:
        fields = {}
        for name, value in effect.fields.items():
            if not _is_parameter(value):
                fields[name] = value
                continue
            taken = config.get(value["$config"])
            taken = value.get("default") if taken is None else taken
            if taken is not None:
                fields[name] = taken
        filled.append(Effect.model_validate({"effect": effect.effect, **fields}))
    return tuple(filled)


def infer_effects(graph: Graph, catalogue: Catalogue) -> list[Effect]:
    """The effects of all nodes of `graph`, both arms of each Branch included, without repeats.

    UnknownStage, AmbiguousStage: a stage that `catalogue` cannot resolve.
    """
    found: list[Effect] = []
    seen: set[str] = set()
    for path, node in walk_nodes(graph.root):
        if isinstance(node, RemoteStage):
            found.extend(REMOTE)
        elif isinstance(node, Stage):
            spec = catalogue.resolve(node.id, node.pinning, path)
            if spec.has_parameters:
                found.extend(spec.effects_with(node.config))
            elif spec.id not in seen:
                seen.add(spec.id)
                found.extend(spec.effects)
    return list(remove_duplicates(found))
