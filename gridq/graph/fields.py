"""Checks of the fields of a graph file."""

from __future__ import annotations

from typing import Any

from gridq.errors import GraphTooLarge, InvalidField
from gridq.graph.source import join_path, measure_nesting
from gridq.graph.types import parse_type
from gridq.protocol.models import Json

PINNINGS = ("signature", "both")

MAX_VALUE_NESTING = 200
"""The deepest nesting of arrays and objects in a Const's value or a Stage's config."""


def _describe_kind(value: Json) -> str:
    names = {
        dict: "an object",
        list: "an array",
        str: "text",
        bool: "a boolean",
        int: "a number",
        float: "a number",
    }
    return names.get(type(value), "null")


def make_field_error(what: str, path: str, value: Json, expected: str) -> InvalidField:
    """Return the error for a field, `what`, whose value has the wrong type."""
    return InvalidField(f"{what} is {_describe_kind(value)}", {"path": path, "expected": expected})


def parse_leaf_fields(op: str, data: dict[str, Json], path: str) -> dict[str, Any]:
    """Return the checked fields of a node that are not nodes themselves; raise GraphError if one is wrong."""
    if op == "Stage":
        return _parse_stage_fields(data, path)
    if op == "Retry":
        attempts = _parse_count(data["max_attempts"], join_path(path, "max_attempts"), 1, 2**32 - 1)
        delay = data.get("delay_ms")
        if delay is not None:
            delay = _parse_count(delay, join_path(path, "delay_ms"), 0, 2**53)
        return {"max_attempts": attempts, "delay_ms": delay}
    if op == "Const":
        _check_nesting(data["value"], join_path(path, "value"))
        return {"value": data["value"]}
    if op == "RemoteStage":
        url = data["url"]
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise InvalidField(
                "RemoteStage's url is not an HTTP address",
                {"path": join_path(path, "url"), "expected": "http://… or https://…"},
            )
        return {"url": url} | {
            name: parse_type(data[name], join_path(path, name)) for name in ("input", "output")
        }
    return {}


def _parse_stage_fields(data: dict[str, Json], path: str) -> dict[str, Any]:
    ref = data["id"]
    if not isinstance(ref, str) or not ref:
        raise InvalidField(
            "The stage's id is empty" if ref == "" else f"The stage's id is {_describe_kind(ref)}",
            {
                "path": join_path(path, "id"),
                "expected": "a stage's id, the first 8 or more digits of it, or its name",
            },
        )
    pinning = data.get("pinning")
    if pinning is not None and pinning not in PINNINGS:
        raise InvalidField(
            f"Unknown pinning {pinning!r}",
            {"path": join_path(path, "pinning"), "expected": "'signature' or 'both'"},
        )
    config = data.get("config")
    if config is not None:
        if not isinstance(config, dict):
            raise make_field_error("The stage's config", join_path(path, "config"), config, "an object")
        _check_nesting(config, join_path(path, "config"))
    return {"id": ref, "pinning": pinning or PINNINGS[0], "config": config}


def _parse_count(value: Json, path: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidField(
            f"{value!r} is out of range here",
            {"path": path, "expected": f"a whole number from {low} to {high}"},
        )
    return value


def _check_nesting(value: Json, path: str) -> None:
    if measure_nesting(value) > MAX_VALUE_NESTING:
        raise GraphTooLarge(
            "A value is nested too deeply", {"path": path, "expected": f"at most {MAX_VALUE_NESTING} levels"}
        )
