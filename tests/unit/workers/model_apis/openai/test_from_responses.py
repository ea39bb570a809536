"""Requests of Responses become requests of a chat."""

from __future__ import annotations

import base64
import json
import time
import tracemalloc
from typing import Any

import pytest

from gridq.errors import StageError
from gridq.protocol.response_needs import find_vendor_part
from tests.fakes.client_types import CHAT_REQUEST, valid
from workers.model_apis.fields.responses import RESPONSES_TO_CHAT, RESPONSES_TO_OPENAI
from workers.model_apis.identity.fitting import make_call_id
from workers.model_apis.identity.origins import make_signed_id
from workers.model_apis.openai.from_responses import translate_to_chat
from workers.model_apis.openai.responses_seat import prepare_request
from workers.model_apis.reasoning_marks import MAX_STATE_VALUES, mark_content, pack_state

WEATHER: Any = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": True}
PATCH: Any = {
    "type": "custom",
    "name": "patch",
    "description": "Changes files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: WORD"},
}
MCP: Any = {"type": "namespace", "name": "mcp__files__", "tools": [{**WEATHER, "name": "read"}]}


def translate(is_strict: bool = False, **body: Any) -> dict[str, Any]:
    table = RESPONSES_TO_OPENAI if is_strict else RESPONSES_TO_CHAT
    request, _ = translate_to_chat({"model": "m", "input": "hi", **body}, table)
    valid(CHAT_REQUEST, request)
    return request


def messages(*items: Any, **body: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = translate(input=list(items), **body)["messages"]
    return found


def call(call_id: str, name: str = "weather", **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": '{"a":1}', **more}


def output(call_id: str, value: Any = "sun") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": value}


def test_a_string_is_a_user_message():
    assert translate() == {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def test_instructions_and_the_first_system_messages_are_one():
    made = messages(
        {"role": "developer", "content": [{"type": "input_text", "text": "b"}]},
        {"role": "system", "content": "c"},
        {"role": "user", "content": "hi"},
        instructions="a",
    )
    assert made == [{"role": "system", "content": "a\n\nb\n\nc"}, {"role": "user", "content": "hi"}]


def test_the_parts_of_a_message():
    text = {"type": "input_text", "text": "look"}
    image = {"type": "input_image", "image_url": "https://a.test/b.png", "detail": "high"}
    file = {"type": "input_file", "filename": "f.pdf", "file_data": "data:application/pdf;base64,AA"}
    [made] = messages({"type": "message", "role": "user", "content": [text, image, file]})
    assert made["content"] == [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "https://a.test/b.png", "detail": "high"}},
        {"type": "file", "file": {"filename": "f.pdf", "file_data": "data:application/pdf;base64,AA"}},
    ]
    [plain] = messages({"role": "user", "content": [text, text]})
    assert plain["content"] == "look\n\nlook"


def test_a_conversation_with_parallel_calls():
    made = messages(
        {"role": "user", "content": "weather?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sealed"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look"}]},
        call("a"),
        {"type": "reasoning", "id": "rs_2", "summary": []},
        call("b"),
        output("b", [{"type": "input_text", "text": "rain"}]),
        {"role": "user", "content": "hurry"},
        output("a"),
    )
    calls = [
        {"id": name, "type": "function", "function": {"name": "weather", "arguments": '{"a":1}'}}
        for name in ("a", "b")
    ]
    assert made == [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": "I look", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "b", "content": "rain"},
        {"role": "tool", "tool_call_id": "a", "content": "sun"},
        {"role": "user", "content": "hurry"},
    ]


def test_text_after_a_call_does_not_part_it_from_its_result():
    made = messages(call("a"), {"role": "assistant", "content": "soon"}, output("a"))
    assert [message["role"] for message in made] == ["assistant", "tool"]
    assert made[0]["content"] == "soon"


def test_empty_texts_around_a_call_leave_no_trace():
    empty = {"role": "assistant", "content": ""}
    assert messages(empty)[0]["content"] == ""
    (message,) = messages(empty, call("c1"), empty)
    assert message["content"] is None
    (message,) = messages(empty, call("c1"), {"role": "assistant", "content": "so"}, empty)
    assert message["content"] == "so"


def test_reasoning_in_parts_is_one_text_and_long_histories_take_linear_time():
    def reason(state: dict[str, Any]) -> dict[str, Any]:
        return {"type": "reasoning", "summary": [], "encrypted_content": pack_state(state, "12345678")}

    def build(*items: Any) -> list[dict[str, Any]]:
        request, _ = translate_to_chat({"model": "m", "input": list(items)}, origin="12345678")
        return [*request["messages"]]

    part, text = reason({"reasoning_content": "ab"}), {"role": "assistant", "content": "x"}
    (message,) = build(part, part, call("c1"), part, call("c2"))
    assert message["reasoning_content"] == "ababab"
    detail = reason({"reasoning_details": [0] * 40})
    begun = time.process_time()
    (message,) = build(*[detail] * 20_000, text)
    assert len(message["reasoning_details"]) == 800_000
    (message,) = build(*[part] * 20_000, call("c1"), *[text] * 20_000)
    assert len(message["reasoning_content"]) == 40_000
    assert message["content"].count("x") == 20_000
    assert time.process_time() - begun < 10, "minutes, if each part copied those before"


def test_pictures_in_a_result_follow_in_a_user_message():
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
    made = messages(call("a"), call("b"), output("a", [image]), output("b"))
    assert [message["role"] for message in made] == ["assistant", "tool", "tool", "user"]
    assert made[-1]["content"] == [{"type": "image_url", "image_url": {"url": image["image_url"]}}]


def test_what_a_vendor_wants_back_of_a_call_stays_with_it():
    extra = {"google": {"thought_signature": "sealed"}}
    signed = make_signed_id({"id": make_call_id("a"), "extra_content": extra})
    [made, result] = messages(call(signed), output(signed))
    assert made["tool_calls"][0]["extra_content"] == extra
    assert result["tool_call_id"] == made["tool_calls"][0]["id"]


def test_tools():
    made = translate(tools=[WEATHER, PATCH, MCP], tool_choice={"type": "custom", "name": "patch"})
    weather, patch, read = (tool["function"] for tool in made["tools"])
    assert weather == {"name": "weather", "parameters": {"type": "object"}, "strict": True}
    assert patch["parameters"]["properties"] == {"input": {"type": "string"}}
    assert "start: WORD" in patch["description"]
    assert read["name"] == "mcp__files__read"
    assert made["tool_choice"] == {"type": "function", "function": {"name": "patch"}}


def test_a_custom_tool_in_the_history_is_a_function_of_one_string():
    [made] = messages({"type": "custom_tool_call", "call_id": "a", "name": "patch", "input": 'say "x"'})
    assert json.loads(made["tool_calls"][0]["function"]["arguments"]) == {"input": 'say "x"'}
    [made] = messages(call("a", "read", namespace="mcp__files__"))
    assert made["tool_calls"][0]["function"]["name"] == "mcp__files__read"


@pytest.mark.parametrize(
    ("choice", "made"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "name": "weather"}, {"type": "function", "function": {"name": "weather"}}),
    ],
)
def test_the_choice_of_a_tool(choice: Any, made: Any):
    assert translate(tools=[WEATHER], tool_choice=choice)["tool_choice"] == made
    assert "tool_choice" not in translate(tools=[WEATHER])


def test_allowed_tools_are_the_only_ones():
    allowed = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "weather"}],
    }
    made = translate(tools=[PATCH, WEATHER], tool_choice=allowed, parallel_tool_calls=False)
    assert [tool["function"]["name"] for tool in made["tools"]] == ["weather"]
    assert made["tool_choice"] == "required"
    assert made["parallel_tool_calls"] is False


def test_without_tools_nothing_is_said_of_them():
    assert translate(tools=[], tool_choice="auto", parallel_tool_calls=True) == translate()


def test_structured_output():
    schema = {"type": "json_schema", "name": "city", "schema": {"type": "object"}, "strict": True}
    made = translate(text={"format": schema})
    wanted = {"name": "city", "schema": {"type": "object"}, "strict": True}
    assert made["response_format"] == {"type": "json_schema", "json_schema": wanted}
    assert translate(text={"format": {"type": "json_object"}})["response_format"] == {"type": "json_object"}
    assert "response_format" not in translate(text={"format": {"type": "text"}})


def test_the_other_fields_of_the_vendors_own_api_and_of_all_others():
    fields: Any = {
        "temperature": 0.5, "top_p": 0.9, "user": "u", "service_tier": "flex", "seed": 7,
        "max_output_tokens": 9, "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"verbosity": "low"},
        "prompt_cache_key": "k", "safety_identifier": "s", "top_logprobs": 2, "stream": True,
    }  # fmt: skip
    same = {"temperature": 0.5, "top_p": 0.9, "user": "u", "service_tier": "flex", "seed": 7}
    same |= {"reasoning_effort": "low", "logprobs": True, "top_logprobs": 2, **translate()}
    assert translate(**fields) == {**same, "max_tokens": 9}
    own = {"max_completion_tokens": 9, "verbosity": "low", "prompt_cache_key": "k", "safety_identifier": "s"}
    assert translate(True, **fields) == {**same, **own}
    assert translate(include=["message.output_text.logprobs"])["logprobs"] is True


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"n": 2}, "n"),
        ({"context_management": [{"type": "compaction"}]}, "context_management"),
        ({"moderation": {"model": "m"}}, "moderation"),
        ({"access_programs": {"cyber": "standard"}}, "access_programs"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [WEATHER, {**PATCH, "name": "weather"}]}, "tools[1].name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "mcp", "server_label": "x"}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{**MCP, "tools": [{"type": "web_search"}]}]}, "tools[0].tools[0].type"),
        ({"input": [{"role": "critic", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "name": "x"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "https://a.test"}]}]},
         "input[0].content[0].file_url"),
        ({"input": [{"role": "user", "content": [{"type": "input_video"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input"),
    ],
)  # fmt: skip
def test_what_has_no_counterpart_is_refused_by_name(body: dict[str, Any], param: str):
    with pytest.raises(StageError) as caught:
        translate_to_chat({"model": "m", "input": "hi", **body})
    assert caught.value.details["param"] == param
    assert caught.value.details["status"] == 400
    assert find_vendor_part(body) in (param, "")


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"input": "hi", "tools": [WEATHER, PATCH, MCP], "tool_choice": "auto"}, ""),
        ({"tools": [WEATHER, {"type": "web_search"}]}, "tools[1].type"),
        ({"tools": [{**MCP, "tools": [WEATHER, {"type": "mcp"}]}]}, "tools[0].tools[1].type"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, ""),
        ({"input": [call("a"), output("a"), {"id": "rs", "type": "reasoning"}, {"role": "user"}]}, ""),
        ({"input": [{"role": "user"}, {"type": "web_search_call", "id": "w"}]}, "input[1].type"),
        ({"input": [{"content": [{"type": "input_file", "file_id": "f"}]}]}, "input[0].content[0].file_id"),
        ({"input": [output("a", [{"type": "input_file", "file_url": "u"}])]}, "input[0].output[0].file_url"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"input": [None, 3], "tools": 3, "prompt": None, "tool_choice": {"type": 3}}, ""),
    ],
)
def test_what_only_a_seat_with_responses_can_serve_is_found(body: dict[str, Any], place: str):
    assert find_vendor_part(body) == place


def test_a_seat_with_responses_gets_everything_but_what_is_the_grids_own():
    sealed = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
    open_text = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    lost = {"type": "reasoning", "id": "rs_0", "summary": [], "content": None, "encrypted_content": None}
    items = [lost, {**sealed, "content": None}, open_text, {"role": "user", "content": "x"}]
    body = {"model": "m", "input": items, "tools": [{"type": "web_search"}], "truncation": "auto"}
    dropped: list[str] = []
    own = {"store": True, "background": True, "background_options": {}}
    made = prepare_request({**body, **own}, drop=dropped.append)
    assert dropped == ["store"]
    assert made == {**body, "input": [sealed, *items[2:]], "store": False}
    assert prepare_request({"model": "m", "input": "hi"}) == {"model": "m", "input": "hi", "store": False}


@pytest.mark.parametrize("value", ["{}", "[]", "0", '""', '{"a,[{":0}'])
@pytest.mark.parametrize("items", [1, 4])
def test_forged_reasoning_of_millions_of_values_is_refused_by_name(value: str, items: int) -> None:
    number = MAX_STATE_VALUES // items + 10
    state = f'{{"reasoning_details": [{",".join([value] * number)}]}}'.encode()
    forged = mark_content(base64.b64encode(state).decode(), "12345678")
    item = {"type": "reasoning", "summary": [], "encrypted_content": forged}
    tracemalloc.start()
    with pytest.raises(StageError) as caught:
        translate_to_chat({"model": "m", "input": [item] * items}, origin="12345678")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert caught.value.details["status"] == 400
    assert str(caught.value.details["param"]).endswith(".encrypted_content")
    assert peak < 250_000_000


def test_the_commas_of_a_long_thought_are_no_values() -> None:
    state = {"reasoning_content": 'well, "so [it] goes", ' * 200_000}
    item = {"type": "reasoning", "summary": [], "encrypted_content": pack_state(state, "12345678")}
    body = {"model": "m", "input": [item, {"role": "assistant", "content": "x"}]}
    request, _ = translate_to_chat(body, origin="12345678")
    assert request["messages"][0]["reasoning_content"] == state["reasoning_content"]
