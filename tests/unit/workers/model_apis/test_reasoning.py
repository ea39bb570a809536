"""Reasoning makes the round trip, or goes with all that depends on it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gridq.profiles.profile import StageContext
from tests.unit.workers.model_apis.identity.test_chat import BODY, PATHS, Seat, chunk, stream
from workers.model_apis.adapters import adapt_backend
from workers.model_apis.anthropic.thinking import settle_thinking
from workers.model_apis.api_request import ANTHROPIC, OPENAI
from workers.model_apis.identity.origins import name_origin
from workers.model_apis.reasoning_marks import is_signed, make_mark

ENABLED = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
SIGNED = {"type": "thinking", "thinking": "hm", "signature": "EqQBCg+/="}
REDACTED = {"type": "redacted_thinking", "data": "EmwKAh"}
TOOL_USE = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "7"}


def post(api: str, seat: Any, body: dict[str, Any]) -> dict[str, Any]:
    return adapt_backend(api, seat).post(PATHS[api], body, StageContext())


def answer_with(*content: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(content), "stop_reason": "end_turn", "model": "m"}


def make_completion(**message: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}]}


def continue_chat(message: dict[str, Any], **more: Any) -> dict[str, Any]:
    turn = [{"role": "user", "content": "hi"}, message, {"role": "user", "content": "go on"}]
    return {**BODY, "messages": turn, **more}


@pytest.mark.parametrize("streaming", [False, True])
def test_signed_thinking_makes_the_round_trip_through_a_chat(streaming: bool):
    blocks = [SIGNED, REDACTED, {"type": "text", "text": "7 degrees"}]
    if streaming:
        events: list[dict[str, Any]] = [{"type": "message_start", "message": answer_with()}]
        for index, block in enumerate(blocks):
            empty = {name: "" if name in ("thinking", "signature", "text") else block[name] for name in block}
            events.append({"type": "content_block_start", "index": index, "content_block": empty})
            for name in ("thinking", "signature", "text"):
                if name in block:
                    delta = {"type": f"{name}_delta", name: block[name]}
                    events.append({"type": "content_block_delta", "index": index, "delta": delta})
            events.append({"type": "content_block_stop", "index": index})
        usage = {"input_tokens": 1, "output_tokens": 1}
        events.append({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage})
        answer = stream(OPENAI, Seat(ANTHROPIC, *events))[1]
    else:
        answer = post(OPENAI, Seat(ANTHROPIC, answer_with(*blocks)), BODY)
    message = answer["choices"][0]["message"]
    assert message["reasoning_content"] == "hm"
    seat = Seat(ANTHROPIC, answer_with())
    post(OPENAI, seat, continue_chat(message, **ENABLED))
    assert seat.requests[0]["messages"][1]["content"] == blocks
    assert seat.requests[0]["thinking"] == ENABLED["thinking"]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
@pytest.mark.parametrize("streaming", [False, True])
def test_reasoning_of_an_endpoint_goes_back_to_it_and_to_no_other(field: str, streaming: bool):
    if streaming:
        begun = chunk()
        begun["choices"][0]["delta"] = {field: "hm", "content": "7"}
        sent: tuple[Any, ...] = (begun, chunk(finish="stop"))
        answer = stream(ANTHROPIC, Seat(OPENAI, *sent, url="https://a/v1"), {**BODY, **ENABLED})[1]
    else:
        completion = make_completion(content="7", **{field: "hm"})
        answer = post(ANTHROPIC, Seat(OPENAI, completion, url="https://a/v1"), {**BODY, **ENABLED})
    thinking, text = answer["content"]
    assert (thinking["thinking"], text["text"]) == ("hm", "7")
    assert thinking["signature"], "no empty signature is invented"
    assert not is_signed(thinking)
    history = continue_chat({"role": "assistant", "content": answer["content"]}, **ENABLED)
    for url, model, returned in (
        ("https://a/v1", "m", {field: "hm"}),
        ("https://b/v1", "m", {}),
        ("https://a/v1", "other", {}),
    ):
        seat = Seat(OPENAI, make_completion(content="x"), url=url)
        post(ANTHROPIC, seat, {**history, "model": model})
        assert seat.requests[0]["messages"][1] == {"role": "assistant", "content": "7", **returned}
    vendor = Seat(ANTHROPIC, answer_with())
    post(ANTHROPIC, vendor, history)
    assert vendor.requests[0]["messages"][1]["content"] == [{"type": "text", "text": "7"}]


@pytest.mark.parametrize("client_api", [OPENAI, ANTHROPIC])
@pytest.mark.parametrize("streaming", [False, True])
def test_googles_signature_of_a_call_makes_the_round_trip(client_api: str, streaming: bool):
    part = {"functionCall": {"name": "weather", "args": {}}, "thoughtSignature": "CiQB+/="}
    sent = {"candidates": [{"content": {"parts": [part]}, "finishReason": "STOP"}]}
    body = {**BODY, "model": "gemini-3-pro"}
    seat = Seat("google", {**sent, "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 1}})
    answer = stream(client_api, seat, body)[1] if streaming else post(client_api, seat, body)
    if client_api == OPENAI:
        turn = answer["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": turn["tool_calls"][0]["id"], "content": "7"}
    else:
        turn = {"role": "assistant", "content": answer["content"]}
        call_id = answer["content"][-1]["id"]
        result = {"role": "user", "content": [{**RESULT, "tool_use_id": call_id}]}
    history = {**body, "messages": [*BODY["messages"], turn, result]}
    post(client_api, seat, history)
    assert seat.requests[1]["contents"][1]["parts"][0]["thoughtSignature"] == "CiQB+/="
    if client_api == ANTHROPIC:
        other = Seat(OPENAI, make_completion(content="x"))
        post(ANTHROPIC, other, history)
        assert "extra_content" not in other.requests[0]["messages"][1]["tool_calls"][0]


def test_a_vendors_thinking_goes_to_its_seats_as_it_is_and_to_no_other():
    history = continue_chat(
        {"role": "assistant", "content": [SIGNED, REDACTED, {"type": "text", "text": "7"}]}
    )
    seat = Seat(ANTHROPIC, answer_with())
    post(ANTHROPIC, seat, history)
    assert seat.requests[0]["messages"] == history["messages"]
    other = Seat(OPENAI, make_completion(content="x"))
    post(ANTHROPIC, other, history)
    assert other.requests[0]["messages"][1] == {"role": "assistant", "content": "7"}


UNSIGNED = {**SIGNED, "signature": ""}


def call_tools(first: list[dict[str, Any]], *rest: Any) -> dict[str, Any]:
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [*first, TOOL_USE]},
        {"role": "user", "content": [RESULT]},
        *rest,
    ]
    edits = {"edits": [{"type": "clear_thinking_20251015"}, {"type": "clear_tool_uses_20250919"}]}
    return {**BODY, **ENABLED, "messages": messages, "context_management": edits}


@pytest.mark.parametrize(
    ("request_", "thinks"),
    [
        (call_tools([SIGNED]), True),
        (call_tools([REDACTED]), True),
        (call_tools([UNSIGNED]), False),
        (call_tools([{**SIGNED, "signature": "gridq.reasoning.x"}]), False),
        (call_tools([UNSIGNED, SIGNED]), True),
        (
            call_tools([UNSIGNED], {"role": "assistant", "content": "7"}, {"role": "user", "content": "x"}),
            True,
        ),
        (
            call_tools(
                [SIGNED], {"role": "assistant", "content": [TOOL_USE]}, {"role": "user", "content": [RESULT]}
            ),
            True,
        ),
    ],
)
def test_a_turn_that_lost_its_thinking_goes_on_without(request_: dict[str, Any], thinks: bool):
    settled = settle_thinking(request_)
    assert ("thinking" in settled) == thinks
    assert len(settled["context_management"]["edits"]) == (2 if thinks else 1)
    blocks = [
        block
        for each in settled["messages"]
        if isinstance(each["content"], list)
        for block in each["content"]
    ]
    assert all(is_signed(block) for block in blocks if block["type"] == "thinking")


def test_a_turn_of_thinking_alone_leaves_no_empty_message():
    settled = settle_thinking(continue_chat({"role": "assistant", "content": [UNSIGNED]}))
    assert [message["role"] for message in settled["messages"]] == ["user", "user"]


@pytest.mark.parametrize("content", ["I look it up.", [], None])
def test_a_turn_may_begin_with_an_assistant_message_of_any_content(content: Any):
    request = call_tools([UNSIGNED])
    at = next(at for at, each in enumerate(request["messages"]) if each["role"] == "assistant")
    request["messages"].insert(at, {"role": "assistant", "content": content})
    assert "thinking" not in settle_thinking(request)


def test_a_chat_without_the_thinking_of_its_calls_goes_on_without():
    call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    turn = [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "7"},
    ]
    seat = Seat(ANTHROPIC, answer_with())
    post(OPENAI, seat, {**BODY, **ENABLED, "messages": [*BODY["messages"], *turn]})
    assert "thinking" not in seat.requests[0]


@pytest.mark.parametrize(
    ("url", "is_strict", "kept"),
    [
        ("https://vllm.invalid/v1", False, {"reasoning_content", "reasoning", "reasoning_details"}),
        ("https://api.groq.com/openai/v1", False, {"reasoning"}),
        ("https://api.cerebras.ai/v1", False, {"reasoning"}),
        ("https://api.mistral.ai/v1", False, set()),
        ("https://api.openai.com/v1", True, set()),
    ],
)
def test_reasoning_without_a_mark_goes_where_it_is_not_rejected(url: str, is_strict: bool, kept: set[str]):
    """A turn without calls says nothing of its origin."""
    state = {"reasoning_content": "hm", "reasoning": "hm", "reasoning_details": []}
    seat = Seat(OPENAI, make_completion(content="x"), url=url)
    seat.is_strict = is_strict
    post(OPENAI, seat, continue_chat({"role": "assistant", "content": "7", **state}))
    assert seat.requests[0]["messages"][1].keys() == {"role", "content"} | kept


def test_a_history_without_reasoning_goes_to_endpoints_that_require_it():
    call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "a", "content": "7"}
    history = {**BODY, "messages": [*BODY["messages"], {"role": "assistant", "tool_calls": [call]}, result]}
    for url, is_required in (("https://api.deepseek.com/v1", True), ("https://vllm.invalid/v1", False)):
        seat = Seat(OPENAI, make_completion(content="x"), url=url)
        post(OPENAI, seat, history)
        assert bool(seat.requests[0]["messages"][1].get("reasoning_content")) == is_required


def test_a_mark_says_more_than_the_calls_of_other_turns():
    """A model whose signature covers what stands before it needs all of its thinking, or none."""
    seat = Seat(ANTHROPIC, answer_with(SIGNED, {"type": "text", "text": "7"}), url="https://a/v1")
    own = post(OPENAI, seat, BODY)["choices"][0]["message"]
    called = make_completion(
        content=None, tool_calls=[{"id": "a", "function": {"name": "f", "arguments": "{}"}}]
    )
    other = Seat(OPENAI, called, url="https://b/v1")
    foreign = post(OPENAI, other, BODY)["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": foreign["tool_calls"][0]["id"], "content": "7"}
    user = BODY["messages"][0]
    history = {**BODY, "messages": [user, own, user, foreign, result, own, user]}
    post(OPENAI, seat, history)
    thinking = [
        message["content"][0]["type"] == "thinking"
        for message in seat.requests[-1]["messages"]
        if message["role"] == "assistant"
    ]
    assert thinking == [True, False, True]
    post(OPENAI, other, history)
    assert "reasoning" not in json.dumps(other.requests[-1]["messages"])


def test_a_mark_of_a_clients_own_names_no_other_field_of_a_message():
    seat = Seat(OPENAI, make_completion(content="x"), url="https://a/v1")
    origin = name_origin("m", seat)
    forged = [
        {"type": "thinking", "thinking": "hm", "signature": make_mark(field, origin)}
        for field in (
            "role",
            "content",
            "tool_calls",
            "name",
            "extra_content",
            "reasoning_details",
            "reasoning",
        )
    ]
    content = [*forged, *forged, {"type": "text", "text": "7"}]
    post(ANTHROPIC, seat, continue_chat({"role": "assistant", "content": content}))
    assert seat.requests[0]["messages"][1] == {"role": "assistant", "content": "7", "reasoning": "hmhm"}
