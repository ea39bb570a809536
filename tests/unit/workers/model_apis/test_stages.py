"""Inputs, models and outputs of the stages of a model."""

from __future__ import annotations

from typing import Any

import pytest

from gridq.errors import SeatUnavailable, StageError
from gridq.protocol.models import Effect, StageCall, Usage
from workers.model_apis.api_request import CHAT, COMPLETIONS
from workers.model_apis.chat_assembly import ChatAssembler
from workers.model_apis.model_catalogue import ModelOffer
from workers.model_apis.stages import (
    build_output,
    choose_model,
    estimate_usage,
    extract_vectors,
    parse_request,
)

A = ModelOffer(name="a-1", families=("a",))
B = ModelOffer(name="b-1", families=("b",), embeddings=True)


def call(implementation: str, *effects: Effect) -> StageCall:
    return StageCall(id="s", name="s", path="$.body", implementation=implementation, effects=list(effects))


def llm(model: str) -> Effect:
    return Effect(effect="Llm", model=model)


@pytest.mark.parametrize(
    ("implementation", "value", "field"),
    [
        ("llm:complete", {}, "prompt"),
        ("llm:complete", {"prompt": 3}, "prompt"),
        ("llm:complete", {"prompt": "x", "system": 3}, "system"),
        ("llm:complete", {"prompt": "x", "system": "y", "raw": True}, "system"),
        ("llm:chat", {"messages": []}, "messages"),
        ("llm:chat", {"messages": {"role": "user"}}, "messages"),
        ("llm:chat", {"messages": "hello", "system": 3}, "system"),
        ("llm:chat", {"messages": [{"content": "x"}]}, "messages[0]"),
        ("llm:chat", {"messages": [{"role": "user"}], "n": 2}, "n"),
        ("llm:embed", {"input": ""}, "input"),
        ("llm:embed", {"input": []}, "input"),
        ("llm:embed", {"input": ["a", 3]}, "input"),
    ],
)
def test_a_wrong_input_names_its_field(implementation: str, value: Any, field: str):
    with pytest.raises(StageError) as caught:
        parse_request(call(implementation), value)
    assert caught.value.path == f"$.body.input.{field}"


@pytest.mark.parametrize("value", [None, 3, True])
@pytest.mark.parametrize("implementation", ["llm:complete", "llm:chat", "llm:embed"])
def test_an_input_that_is_not_an_object_is_refused(implementation: str, value: Any):
    with pytest.raises(StageError, match="not an object"):
        parse_request(call(implementation), value)


def test_an_unknown_implementation_is_refused():
    with pytest.raises(StageError, match="llm:dream") as caught:
        parse_request(call("llm:dream"), {})
    assert "llm:chat" in str(caught.value.expected)


@pytest.mark.parametrize("key", ["items", "text", "data", "input"])
def test_a_wrapped_input_is_unwrapped(key: str):
    messages = [{"role": "user", "content": "x"}]
    for implementation, value, body in [
        ("llm:complete", "x", {"messages": messages}),
        ("llm:chat", "x", {"messages": messages}),
        ("llm:chat", messages, {"messages": messages}),
        ("llm:embed", ["x"], {"input": ["x"]}),
    ]:
        bare = parse_request(call(implementation), value)
        wrapped = parse_request(call(implementation), {key: value, "max_tokens": 5, "temperature": None})
        assert bare.body == body
        assert wrapped.body == {**body, "max_tokens": 5}


def test_a_system_text_leads_the_messages():
    request = parse_request(call("llm:chat"), {"messages": "x", "system": "be brief"})
    assert [message["role"] for message in request.body["messages"]] == ["system", "user"]


def test_the_body_is_the_input_without_the_fields_that_gridq_sets():
    value = {"prompt": "x", "model": "a", "stream": True, "stream_options": {}, "n": 1, "top_k": 3}
    request = parse_request(call("llm:complete"), value)
    assert request.path == CHAT
    assert request.body == {"messages": [{"role": "user", "content": "x"}], "top_k": 3}
    assert request.model == "a"
    assert value["prompt"] == "x", "the input was changed"


@pytest.mark.parametrize(
    ("effects", "model", "chosen"),
    [
        ([], None, "a-1"),
        ([llm("any")], "any", "a-1"),
        ([llm("any")], "b", "b-1"),
        ([llm("any")], "b-1", "b-1"),
        ([llm("b")], None, "b-1"),
        ([llm("b")], "b-1", "b-1"),
    ],
)
def test_the_model_is_one_that_both_effect_and_input_allow(effects: list[Effect], model: Any, chosen: str):
    stage = call("llm:complete", *effects)
    assert choose_model(stage, parse_request(stage, {"prompt": "x", "model": model}), [A, B]).name == chosen


@pytest.mark.parametrize("model", [None, "any", "a-1", "b", ["a-1", "b"], [{"model": "a-1"}, "b"]])
@pytest.mark.parametrize(("queue", "chosen"), [("llm:a-1", "a-1"), ("llm:b", "b-1"), ("", "a-1")])
def test_the_queue_decides_between_several_models(model: Any, queue: str, chosen: str):
    effect = Effect(effect="Llm", model=["a-1", "b"])
    stage = call("llm:complete", effect).model_copy(update={"queue": queue})
    assert choose_model(stage, parse_request(stage, {"prompt": "x", "model": model}), [B, A]).name == chosen


def test_an_input_naming_another_model_is_a_stage_error():
    stage = call("llm:complete", Effect(effect="Llm", model=["a-1", "c"]))
    stage = stage.model_copy(update={"queue": "llm:a-1"})
    with pytest.raises(StageError, match="'b-1'"):
        choose_model(stage, parse_request(stage, {"prompt": "x", "model": "b-1"}), [A, B])


def test_an_input_against_its_effect_is_the_stages_fault():
    stage = call("llm:complete", llm("b"))
    with pytest.raises(StageError, match="'a-1'") as caught:
        choose_model(stage, parse_request(stage, {"prompt": "x", "model": "a-1"}), [A, B])
    assert '"model": "a-1"' in str(caught.value.fix)


def test_an_effect_that_this_seat_does_not_meet_is_the_seats_fault():
    stage = call("llm:complete", llm("c"))
    with pytest.raises(SeatUnavailable):
        choose_model(stage, parse_request(stage, "x"), [A, B])


def test_embeddings_prefer_a_model_that_has_them():
    stage = call("llm:embed", llm("any"))
    assert choose_model(stage, parse_request(stage, "x"), [A, B]) == B


def test_an_answer_without_stated_usage_counts_its_request_and_its_pieces():
    answer = ChatAssembler(CHAT, {"messages": [{"role": "user", "content": "u" * 396}]})
    assert answer.compute_usage() == Usage()
    for word in ("a", "b", ""):
        answer.add_event({"choices": [{"delta": {"content": word}, "finish_reason": None}]})
    assert answer.compute_usage() == Usage(tokens_in=101, tokens_out=2)
    answer.add_event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 5}})
    assert answer.compute_usage() == Usage(tokens_in=9, tokens_out=5)


def test_a_whole_answer_without_stated_usage_is_more_than_a_piece():
    answer = ChatAssembler(COMPLETIONS, {"prompt": "p" * 40})
    answer.add_answer({"choices": [{"text": "w" * 80, "finish_reason": "stop"}]})
    assert answer.compute_usage() == Usage(tokens_in=11, tokens_out=21)


def test_thinking_and_tool_calls_count_as_pieces():
    answer = ChatAssembler(CHAT, {"prompt": "p" * 40})
    part = {"index": None, "id": "t1", "function": {"name": "f", "arguments": ""}}
    for delta in ({"reasoning_content": "hm"}, {"tool_calls": [part]}, {"role": "assistant", "content": ""}):
        answer.add_event({"choices": [{"delta": delta}]})
    assert answer.compute_usage() == Usage(tokens_in=11, tokens_out=2)
    (choice,) = answer.build_answer()["choices"]
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "f", "its place is that in its list"
    answer = ChatAssembler(CHAT, {"prompt": "p" * 40})
    called = {"content": None, "tool_calls": [{"function": {"name": "f", "arguments": "a" * 79}}]}
    answer.add_answer({"choices": [{"message": called}]})
    assert answer.compute_usage() == Usage(tokens_in=11, tokens_out=21)


def test_other_fields_of_a_message_are_kept():
    answer = ChatAssembler(CHAT, {})
    answer.add_event({"choices": [{"delta": {"reasoning_content": "hm", "content": None}}]})
    answer.add_event(
        {"choices": [{"delta": {"reasoning_content": "m", "content": "yes"}, "finish_reason": "stop"}]}
    )
    assert build_output("llm:chat", answer.build_answer()) == {
        "role": "assistant",
        "content": "yes",
        "reasoning_content": "hmm",
        "finish_reason": "stop",
    }


def test_vectors_follow_their_index():
    response = {"data": [{"index": 1, "embedding": [2.0]}, {"index": 0, "embedding": [1.0]}]}
    assert extract_vectors(response, is_single=False) == [[1.0], [2.0]]


def test_an_estimate_counts_text_and_the_longest_answer():
    stage = call("llm:chat")
    message = {"role": "user", "content": "x" * 4000}
    assert estimate_usage(stage, {"messages": [message], "max_tokens": 50}).tokens == 1000 + 1 + 1 + 50
    assert estimate_usage(call("llm:embed"), "x" * 400).tokens == 101
    assert estimate_usage(call("bench:echo"), "x").tokens == 0
