"""An effort becomes the thinking that the model takes."""

from __future__ import annotations

from typing import Any

import pytest

from workers.model_apis.anthropic.thinking import add_effort, make_effort_fields

ADAPTIVE = {"thinking": {"type": "adaptive", "display": "summarized"}}


def level(effort: str) -> dict[str, Any]:
    return {"output_config": {"effort": effort}}


def budget(tokens: int) -> dict[str, Any]:
    return {"thinking": {"type": "enabled", "budget_tokens": tokens}}


def state(**supported: list[str]) -> dict[str, Any]:
    """Return a model's `capabilities` with the kinds of thinking and the efforts that it takes."""
    kinds = {kind: {"supported": True} for kind in supported["kinds"]}
    levels = {each: {"supported": True} for each in supported["levels"]}
    return {"thinking": {"supported": True, "types": kinds}, "effort": {"supported": True, **levels}}


@pytest.mark.parametrize(
    ("model", "effort", "expected"),
    [
        ("claude-opus-5-5", "high", {**ADAPTIVE, **level("high")}),
        ("claude-opus-5-5", "none", level("low")),
        ("claude-fable-5", "none", level("low")),
        ("claude-mythos-preview", "medium", {**ADAPTIVE, **level("medium")}),
        ("claude-sonnet-5-5", "none", {"thinking": {"type": "between_tools"}}),
        ("claude-opus-5", "none", {"thinking": {"type": "disabled"}}),
        ("claude-haiku-5-5", "minimal", {**ADAPTIVE, **level("low")}),
        ("claude-opus-4-7", "xhigh", {**ADAPTIVE, **level("xhigh")}),
        ("anthropic.claude-opus-4-6-v1", "xhigh", {**ADAPTIVE, **level("high")}),
        ("claude-sonnet-4.6", "max", {**ADAPTIVE, **level("max")}),
        ("claude-opus-4-5-20251101", "medium", budget(8192)),
        ("claude-haiku-4-5", "high", budget(24_576)),
        ("claude-opus-4-20250514", "low", budget(1024)),
        ("claude-3-7-sonnet-20250219", "high", budget(24_576)),
        ("claude-3-5-haiku-20241022", "high", {}),
        ("claude-3-opus-20240229", "none", {"thinking": {"type": "disabled"}}),
        ("kimi-k2", "high", budget(24_576)),
        ("claude-opus-4-7", "a new one", {**ADAPTIVE, **level("high")}),
    ],
)
def test_an_effort_becomes_what_the_model_takes(model: str, effort: str, expected: dict[str, Any]):
    assert make_effort_fields(effort, model, 64_000) == expected


@pytest.mark.parametrize(
    ("max_tokens", "expected"), [(2047, {}), (2048, budget(1024)), (10_000, budget(5000)), (0, {})]
)
def test_a_budget_leaves_half_of_the_answer(max_tokens: int, expected: dict[str, Any]):
    assert make_effort_fields("high", "claude-haiku-4-5", max_tokens) == expected


def test_what_the_endpoint_states_has_precedence_over_the_name():
    old = state(kinds=["enabled"], levels=[])
    assert make_effort_fields("high", "claude-opus-5-5", 64_000, old) == budget(24_576)
    new = state(kinds=["adaptive", "disabled"], levels=["low", "high"])
    assert make_effort_fields("medium", "claude-haiku-4-5", 100, new) == {**ADAPTIVE, **level("low")}
    assert make_effort_fields("none", "claude-opus-5-5", 100, new) == {"thinking": {"type": "disabled"}}


REQUEST = {"model": "claude-opus-4-7", "max_tokens": 100, "messages": []}
FORMAT = {"format": {"type": "json_schema"}}


@pytest.mark.parametrize(
    ("stated", "added"),
    [
        ({}, {**ADAPTIVE, **level("low")}),
        ({"output_config": FORMAT}, {**ADAPTIVE, "output_config": {"effort": "low", **FORMAT}}),
        ({"thinking": {"type": "disabled"}}, level("low")),
        ({"tool_choice": {"type": "any"}}, level("low")),
        ({"tool_choice": {"type": "auto"}}, {**ADAPTIVE, **level("low")}),
        ({"temperature": 0.5}, level("low")),
        ({"temperature": 1}, {**ADAPTIVE, **level("low")}),
        ({"output_config": {"effort": "max"}}, {**ADAPTIVE, **level("max")}),
    ],
)
def test_an_effort_leaves_what_the_request_says(stated: dict[str, Any], added: dict[str, Any]):
    assert add_effort({**REQUEST, **stated}, "low") == {**REQUEST, **stated, **added}
