"""Clients with `functions` at every seat."""

from __future__ import annotations

from typing import Any

import pytest

from gridq.errors import StageError
from gridq.profiles.profile import StageContext
from tests.unit.workers.model_apis.identity.test_chat import ANSWERS, BODY, END, Seat, chunk, piece, stream
from workers.model_apis.adapters import adapt_backend
from workers.model_apis.api_request import ANTHROPIC, CHAT, OPENAI
from workers.model_apis.openai.legacy_functions import translate_to_tools

WEATHER = {"name": "weather", "parameters": {"type": "object", "properties": {}}}
LEGACY = {**BODY, "functions": [WEATHER]}
HISTORY = [
    *BODY["messages"],
    {"role": "assistant", "content": None, "function_call": {"name": "weather", "arguments": "{}"}},
    {"role": "function", "name": "weather", "content": "7"},
]


@pytest.mark.parametrize(
    ("choice", "made"),
    [
        ({}, None),
        ({"function_call": "auto"}, "auto"),
        ({"function_call": "none"}, "none"),
        ({"function_call": {"name": "weather"}}, {"type": "function", "function": {"name": "weather"}}),
    ],
)
def test_a_request_becomes_one_with_tools(choice: dict[str, Any], made: Any):
    request = translate_to_tools(CHAT, {**LEGACY, **choice, "messages": HISTORY})
    assert "functions" not in request
    assert "function_call" not in request
    assert request["tools"] == [{"type": "function", "function": WEATHER}]
    assert request.get("tool_choice") == made
    _, calling, result = request["messages"]
    assert calling["tool_calls"][0]["function"] == {"name": "weather", "arguments": "{}"}
    assert result == {"role": "tool", "tool_call_id": calling["tool_calls"][0]["id"], "content": "7"}


@pytest.mark.parametrize(("field", "value"), [("functions", "weather"), ("function_call", "often")])
def test_what_is_not_valid_is_refused_by_name(field: str, value: Any):
    with pytest.raises(StageError) as caught:
        translate_to_tools(CHAT, {**LEGACY, field: value})
    assert caught.value.details["param"] == field


@pytest.mark.parametrize("api", [OPENAI, ANTHROPIC, "google"])
def test_every_seat_calls_a_function(api: str):
    answer = next(answer for each, answer in ANSWERS if each == api)
    seat = Seat(api, answer)
    made = adapt_backend(OPENAI, seat).post(CHAT, {**LEGACY, "messages": HISTORY}, StageContext())
    (choice,) = made["choices"]
    assert choice["finish_reason"] == "function_call"
    assert choice["message"]["function_call"] == {"name": "weather", "arguments": "{}"}
    assert "tool_calls" not in choice["message"]
    assert seat.requests[0]["tools"]


def test_a_stream_calls_a_function():
    pieces = [
        piece("", "weather", index=0, id="a"),
        piece("{}", index=0),
        piece("{}", "weather", index=1, id="b"),
    ]
    answer = stream(OPENAI, Seat(OPENAI, *map(chunk, pieces), END), LEGACY)[1]
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "function_call"
    assert choice["message"]["function_call"] == {"name": "weather", "arguments": "{}"}
    assert "tool_calls" not in choice["message"]


def test_openais_own_api_gets_the_fields_as_they_are():
    seat = Seat(OPENAI, ANSWERS[0][1])
    seat.is_strict = True
    adapt_backend(OPENAI, seat).post(CHAT, LEGACY, StageContext())
    assert seat.requests[0]["functions"] == [WEATHER]
