"""Effects: what stages do besides computing. Each is `{"effect": NAME, …}`, and the set of names is open.

The short form `"Network"` is `{"effect": "Network"}`; a bare `"Llm"` means any model. A stage without effects
has `Unknown`. In the catalogue, a field of an effect may be `{"$config": KEY, "default": V}`: its value is
what the node's config (or the stage's default config) has under KEY, else V, else the field is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from gridq.errors import InvalidField
from gridq.graph.source import join_path
from gridq.protocol.models import Effect, Json

UNKNOWN = Effect(effect="Unknown")
REMOTE = (Effect(effect="Network"), Effect(effect="Fallible"))
"""The effects of a RemoteStage."""


def parse_effect(data: Json, path: str) -> Effect:
    """Parse one effect in either form, with all of its fields; raise InvalidField if it is not an effect."""
    if isinstance(data, str) and data:
        return Effect(effect=data)
    name = data.get("effect") if isinstance(data, dict) else None
    if not isinstance(name, str) or not name:
        raise InvalidField(
            "An effect must be a name or an object with one",
            {"path": path, "expected": '"Network" or {"effect": "Llm", "model": "…"}'},
        )
    for key, value in data.items():
        if isinstance(value, dict) and "$config" in value and not isinstance(value["$config"], str):
            raise InvalidField(
                "$config must be the name of a config key",
                {"path": join_path(path, key), "expected": '{"$config": "model", "default": "any"}'},
            )
    return Effect.model_validate(data)


def parse_effects(data: Json, path: str) -> tuple[Effect, ...]:
    """Parse a stage's effects, an array or `{"effects": array}`; None and an empty array mean Unknown."""
    if isinstance(data, dict) and "effects" in data:
        data, path = data["effects"], join_path(path, "effects")
    if data is None:
        return (UNKNOWN,)
    if not isinstance(data, list):
        raise InvalidField(
            "The effects must be an array", {"path": path, "expected": 'an array such as ["Pure"]'}
        )
    return remove_duplicates(parse_effect(item, join_path(path, i)) for i, item in enumerate(data)) or (
        UNKNOWN,
    )


def to_json(effect: Effect) -> dict[str, Json]:
    """Return the effect in its object form."""
    return {"effect": effect.effect, **effect.fields}


def remove_duplicates(effects: Iterable[Effect]) -> tuple[Effect, ...]:
    """Return `effects` without duplicates, in their order."""
    found: dict[str, Effect] = {}
    for effect in effects:
        found.setdefault(json.dumps(to_json(effect), sort_keys=True), effect)
    return tuple(found.values())


def have_parameters(effects: Iterable[Effect]) -> bool:
    """Return whether one of `effects` depends on a node's config."""
    return any(_is_parameter(value) for effect in effects for value in effect.fields.values())


def _is_parameter(value: Json) -> bool:
    return isinstance(value, dict) and "$config" in value


def fill_parameters(effects: Iterable[Effect], config: Mapping[str, Json]) -> tuple[Effect, ...]:
    """Return `effects` with the value of every `$config` field taken from `config`."""
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
