"""A client of the OpenAI API format at a seat of Anthropic's: requests, answers, chunks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gridq.errors import StageError
from gridq.profiles.profile import StageContext
from tests.fakes.client_types import CHUNK, COMPLETION, MESSAGES_REQUEST, valid
from workers.model_apis.anthropic.claude_models import find_claude_model
from workers.model_apis.anthropic.client import FALLBACK_MAX_TOKENS, AnthropicClient
from workers.model_apis.anthropic.from_chat import (
    ChatToMessages,
    CompletionChunks,
    build_completion,
    translate_to_messages,
)
from workers.model_apis.anthropic.json_text import JsonText
from workers.model_apis.api_request import CHAT, COMPLETIONS, EMBEDDINGS
from workers.model_apis.chat_assembly import ChatAssembler


def body(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages), **more}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def translate(*messages: Any, **more: Any) -> dict[str, Any]:
    """The Messages request for a chat; the official package agrees that it is one."""
    made, _ = translate_to_messages(CHAT, body(*messages, **more))
    valid(MESSAGES_REQUEST, {"max_tokens": 1, **made})
    return made


FUNCTION = {"name": "weather", "description": "of a city", "parameters": {"type": "object", "properties": {}}}
TOOL = {"type": "function", "function": FUNCTION}


def test_plain_fields_and_system():
    made = translate(
        {"role": "system", "content": "a"},
        {"role": "developer", "content": [{"type": "text", "text": "b"}]},
        user("hi"),
        max_completion_tokens=9,
        temperature=1.7,
        top_p=0.9,
        stop="END",
        user="u",
        seed=3,
        stream_options={"include_usage": True},
    )
    assert made == {
        "model": "m",
        "max_tokens": 9,
        "messages": [user([{"type": "text", "text": "hi"}])],
        "system": "a\n\nb",
        "temperature": 1,
        "top_p": 0.9,
        "stop_sequences": ["END"],
        "metadata": {"user_id": "u"},
    }


@pytest.mark.parametrize(
    ("stated", "made"),
    [
        ({}, None),
        ({"max_tokens": 0}, 0),
        ({"max_tokens": 5}, 5),
        ({"max_tokens": 5, "max_completion_tokens": 7}, 7),
        ({"max_tokens": None, "max_completion_tokens": None}, None),
    ],
)
def test_no_length_is_invented(stated: dict[str, Any], made: int | None):
    assert translate(user("hi"), **stated).get("max_tokens") == made


def test_blank_texts_and_stops_are_left_out():
    parts = [{"type": "text", "text": " \n"}, {"type": "text", "text": "hi "}, {"type": "text", "text": ""}]
    blank = {"role": "assistant", "content": "  "}
    made = translate(
        {"role": "system", "content": " "}, user(parts), blank, user("\n"), stop=["", "\n", "END"]
    )
    assert made == {
        "model": "m",
        "messages": [user([{"type": "text", "text": "hi "}])],
        "stop_sequences": ["END"],
    }
    assert "stop_sequences" not in translate(user("hi"), stop="\n")
    begun = translate(user("hi"), {"role": "assistant", "content": "I \n"})["messages"][-1]
    assert begun["content"] == [{"type": "text", "text": "I"}]


@pytest.mark.parametrize(
    ("part", "block"),
    [
        ("data:image/jpg;base64,QUJD", ("image", "image/jpeg", "QUJD")),
        ("DATA:IMAGE/PNG;charset=x;base64,QUJD", ("image", "image/png", "QUJD")),
        ("data:application/pdf;base64,JVBE", ("document", "application/pdf", "JVBE")),
        ("data:text/csv;base64,QUJD", ("document", "text/plain", "ABC")),
        ("data:,ABC", ("document", "text/plain", "ABC")),
    ],
)
@pytest.mark.parametrize("kind", ["image_url", "file"])
def test_data_urls_become_what_they_are(part: str, block: tuple[str, str, str], kind: str):
    value = {"url": part} if kind == "image_url" else {"file_data": part, "filename": "a"}
    (message,) = translate(user([{"type": kind, kind: value}]))["messages"]
    (made,) = message["content"]
    assert (made["type"], made["source"]["media_type"], made["source"]["data"]) == block


def test_content_parts_are_translated():
    text = {"type": "text", "text": "see"}
    data = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}
    url = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    file = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBE"}}
    (message,) = translate(user([text, data, url, file]))["messages"]
    assert [block["type"] for block in message["content"]] == ["text", "image", "image", "document"]
    assert message["content"][1]["source"] == {"type": "base64", "media_type": "image/png", "data": "QUJD"}
    assert message["content"][2]["source"] == {"type": "url", "url": "https://example.com/a.png"}


def test_tool_calls_and_results_alternate():
    def call(name: str, arguments: str) -> dict[str, Any]:
        return {"id": name, "type": "function", "function": {"name": "weather", "arguments": arguments}}

    assistant_turn = {
        "role": "assistant",
        "content": None,
        "tool_calls": [call("t1", '{"city": "Bern"}'), call("t2", "")],
    }
    results = [{"role": "tool", "tool_call_id": name, "content": "7 °C"} for name in ("t1", "t2")]
    turns = translate(user("weather?"), assistant_turn, *results, user("and now?"), tools=[TOOL])["messages"]
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
    assert [block["input"] for block in turns[1]["content"]] == [{"city": "Bern"}, {}]
    assert [block["type"] for block in turns[2]["content"]] == ["tool_result", "tool_result", "text"]


@pytest.mark.parametrize(
    ("translator", "made"),
    [
        ({}, {"type": "auto"}),
        ({"tool_choice": "auto"}, {"type": "auto"}),
        ({"tool_choice": "required"}, {"type": "any"}),
        ({"tool_choice": "none", "parallel_tool_calls": False}, {"type": "none"}),
        (
            {
                "tool_choice": {"type": "function", "function": {"name": "weather"}},
                "parallel_tool_calls": False,
            },
            {"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
        ),
    ],
)
def test_tool_choice(translator: dict[str, Any], made: dict[str, Any]):
    request = translate(user("hi"), tools=[TOOL], **translator)
    assert request["tool_choice"] == made
    schema = FUNCTION["parameters"]
    assert request["tools"] == [{"name": "weather", "description": "of a city", "input_schema": schema}]


def test_a_response_format_is_a_wanted_schema():
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    assert translate(user("hi"), response_format=wanted)["output_config"]["format"]["schema"] == schema
    assert "output_config" not in translate(user("hi"), response_format={"type": "text"})


def test_a_schema_is_fitted():
    city = {"type": "string", "pattern": "^B", "format": "city", "description": "in CH"}
    properties = {
        "city": city,
        "degrees": {"oneOf": [{"type": "integer", "minimum": -60}, {"type": "null"}]},
        "days": {"type": "array", "items": {"$ref": "#/$defs/day"}, "minItems": 1, "maxItems": 7},
    }
    day = {"type": "object", "properties": {"at": {"type": "string", "format": "date"}}}
    schema = {"type": "object", "properties": properties, "required": ["city"], "$defs": {"day": day}}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    made = translate(user("hi"), response_format=wanted)["output_config"]["format"]["schema"]
    assert made == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": 'in CH\n\n{pattern: "^B", format: "city"}'},
            "degrees": {"anyOf": [{"type": "integer", "description": "{minimum: -60}"}, {"type": "null"}]},
            "days": {
                "type": "array",
                "items": {"$ref": "#/$defs/day"},
                "minItems": 1,
                "description": "{maxItems: 7}",
            },
        },
        "required": ["city"],
        "$defs": {"day": {**day, "additionalProperties": False}},
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    "wanted",
    [
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
        {
            "type": "json_schema",
            "json_schema": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "by_name": {"type": "object", "additionalProperties": {"type": "integer"}}
                    },
                }
            },
        },
    ],
)
def test_any_json_is_asked_for_in_words(wanted: dict[str, Any]):
    made = translate({"role": "system", "content": "a"}, user("hi"), response_format=wanted)
    assert "output_config" not in made
    assert made["system"].startswith("a\n\n")
    assert "JSON" in made["system"]
    assert ("by_name" in made["system"]) == ("by_name" in json.dumps(wanted))


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ('```json\n{"a": 1}\n```', '{"a": 1}'),
        ('\n```\n{"a": "```x"}\n```\n', '{"a": "```x"}'),
        ('``{"a": 1}', '``{"a": 1}'),
        ("", ""),
    ],
)
def test_an_answer_in_json_has_no_code_fence(written: str, sent: str):
    for pieces in ([written], list(written)):
        text = JsonText()
        assert "".join([*map(text.add, pieces), text.end()]) == sent


def test_a_cache_is_marked_where_the_chat_marks_it():
    mark = {"type": "ephemeral"}
    made = translate(
        {"role": "system", "content": [{"type": "text", "text": "a", "cache_control": mark}]},
        {"role": "system", "content": "b"},
        user([{"type": "text", "text": "c"}, {"type": "text", "text": "d", "cache_control": mark}]),
        {"role": "assistant", "content": "e", "cache_control": mark},
        tools=[{**TOOL, "cache_control": mark}],
    )
    assert made["system"] == [
        {"type": "text", "text": "a", "cache_control": mark},
        {"type": "text", "text": "b"},
    ]
    marked = [[block.get("cache_control") for block in turn["content"]] for turn in made["messages"]]
    assert marked == [[None, mark], [mark]]
    assert made["tools"][0]["cache_control"] == mark


AUDIO = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}
CALLED = {"id": "t", "type": "function", "function": {"name": "a", "arguments": "{no"}}


@pytest.mark.parametrize(
    ("path", "wrong", "param"),
    [
        (COMPLETIONS, body(prompt="x"), "model"),
        (EMBEDDINGS, body(input="x"), "model"),
        (CHAT, body(user("x"), n=2), "n"),
        (CHAT, body(user("x"), logprobs=True), "logprobs"),
        (CHAT, body(user("x"), response_format={"type": "grammar"}), "response_format.type"),
        (
            CHAT,
            body(user("x"), response_format={"type": "json_schema"}),
            "response_format.json_schema.schema",
        ),
        (CHAT, body(user([AUDIO])), "messages[0].content[0]"),
        (
            CHAT,
            body(user([{"type": "image_url", "image_url": {"url": "data:x"}}])),
            "messages[0].content[0].image_url.url",
        ),
        (CHAT, body(user("x"), web_search_options={"search_context_size": "low"}), "web_search_options"),
        (CHAT, body(user("x"), modalities=["text", "audio"]), "modalities"),
        (CHAT, body(user("x"), audio={"voice": "alloy", "format": "wav"}), "audio"),
        (
            CHAT,
            body(user([{"type": "image_url", "image_url": {"url": "data:image/tiff;base64,QUJD"}}])),
            "messages[0].content[0].image_url.url",
        ),
        (CHAT, body({"role": "robot", "content": "x"}), "messages[0].role"),
        (CHAT, body({"role": "tool", "content": "x"}), "messages[0].tool_call_id"),
        (CHAT, body({"role": "system", "content": "x"}), "messages"),
        (
            CHAT,
            body({"role": "assistant", "tool_calls": [CALLED]}),
            "messages[0].tool_calls[0].function.arguments",
        ),
        (CHAT, body(user("x"), tools=[{"type": "custom"}]), "tools[0]"),
        (CHAT, body(user("x"), tools=[TOOL], tool_choice="some"), "tool_choice"),
        (CHAT, body(user("x"), tools=[TOOL], tool_choice={"type": "custom"}), "tool_choice.function.name"),
    ],
)
def test_fields_without_a_counterpart_are_rejected_by_name(path: str, wrong: dict[str, Any], param: str):
    with pytest.raises(StageError) as caught:
        translate_to_messages(path, wrong)
    assert caught.value.details["param"] == param
    assert caught.value.details["status"] == 400


USAGE = {
    "input_tokens": 6,
    "cache_creation_input_tokens": 4,
    "cache_read_input_tokens": 20,
    "output_tokens": 7,
}


def message(*content: dict[str, Any], reason: str = "end_turn") -> dict[str, Any]:
    return {"id": "msg_1", "model": "real", "content": list(content), "stop_reason": reason, "usage": USAGE}


ID = {"id": "made by workers.model_apis.identity"}


def test_a_whole_answer():
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "I look"},
        {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Bern"}},
    ]
    made = build_completion(message(*blocks, reason="tool_use"), body(user("hi")))
    valid(COMPLETION, {**ID, **made})
    (choice,) = made["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "I look"
    assert choice["message"]["reasoning_content"] == "hm"
    assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]) == {"city": "Bern"}
    assert made["usage"] == {
        "prompt_tokens": 30,
        "completion_tokens": 7,
        "total_tokens": 37,
        "prompt_tokens_details": {"cached_tokens": 20, "cache_write_tokens": 4},
    }


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("refusal", "content_filter"),
        ("model_context_window_exceeded", "length"),
        ("something_new", "stop"),
    ],
)
def test_finish_reasons(reason: str, finish: str):
    made = build_completion(message({"type": "text", "text": "x"}, reason=reason), body(user("hi")))
    valid(COMPLETION, {**ID, **made})
    assert made["choices"][0]["finish_reason"] == finish


def test_a_stream():
    def delta(index: int, kind: str, **translator: Any) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **translator}}

    call = {"type": "tool_use", "id": "t1", "name": "weather", "input": {}}
    events = [
        {"type": "message_start", "message": {**message(reason=""), "usage": {**USAGE, "output_tokens": 1}}},
        {"type": "ping"},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        delta(0, "text_delta", text="I "),
        delta(0, "text_delta", text="look"),
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": call},
        delta(1, "input_json_delta", partial_json=""),
        delta(1, "input_json_delta", partial_json='{"city": '),
        delta(1, "input_json_delta", partial_json='"Bern"}'),
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 7}},
        {"type": "message_stop"},
    ]
    translator = CompletionChunks(body(user("hi")))
    assembler = ChatAssembler(CHAT, body(user("hi")))
    for event in events:
        for chunk in translator.add_event(event):
            valid(CHUNK, {**ID, **chunk})
            assembler.add_event(chunk)
    assert assembler.is_complete
    made = assembler.build_answer()
    valid(COMPLETION, {**ID, **made})
    (choice,) = made["choices"]
    assert choice["message"]["content"] == "I look"
    assert choice["message"]["tool_calls"] == [
        {"id": "t1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
    ]
    assert choice["finish_reason"] == "tool_calls"
    assert made["usage"]["prompt_tokens"] == 30
    assert made["usage"]["completion_tokens"] == 7


def translate_with_drops(*messages: Any, **more: Any) -> tuple[dict[str, Any], list[str]]:
    """The Messages request for a chat, and the places of what it leaves out."""
    dropped: list[str] = []
    return translate_to_messages(CHAT, body(*messages, **more), dropped.append)[0], dropped


@pytest.mark.parametrize(
    ("model", "stated", "sent", "dropped"),
    [
        ("claude-haiku-4-5", {"temperature": 0}, {"temperature": 0}, []),
        (
            "claude-haiku-4-5",
            {"temperature": 1.5, "top_k": 4},
            {"temperature": 1, "top_k": 4},
            ["temperature"],
        ),
        ("claude-sonnet-4-5", {"temperature": 0.2, "top_p": 0.9}, {"temperature": 0.2}, ["top_p"]),
        ("claude-sonnet-4-5", {"temperature": 0.2, "top_p": 1}, {"temperature": 0.2}, []),
        ("claude-sonnet-4-6", {"top_p": 0.9}, {"top_p": 0.9}, []),
        ("claude-opus-4-7", {"temperature": 0, "top_p": 0.9}, {}, ["temperature", "top_p"]),
        ("claude-sonnet-5", {"temperature": 1, "top_p": 1.0, "top_k": 1}, {}, ["top_k"]),
        ("us.anthropic.claude-haiku-5-5-v1:0", {"temperature": 0.5}, {}, ["temperature"]),
        ("kimi-k2", {"temperature": 0.5, "top_p": 0.9}, {"temperature": 0.5, "top_p": 0.9}, []),
    ],
)
def test_a_model_gets_the_sampling_that_it_takes(
    model: str, stated: dict[str, Any], sent: dict[str, Any], dropped: list[str]
):
    made, found = translate_with_drops(user("hi"), model=model, **stated)
    assert {name: made[name] for name in ("temperature", "top_p", "top_k") if name in made} == sent
    assert found == dropped


CLOSED = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}
BOUNDED = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 1}}, "required": ["a"]}
FREE = {"type": "object", "additionalProperties": True}


@pytest.mark.parametrize(
    ("model", "schema", "is_strict", "dropped"),
    [
        ("claude-haiku-4-5", CLOSED, True, []),
        ("claude-haiku-4-5", BOUNDED, True, ["tools[0].function.parameters.properties.a.minimum"]),
        ("claude-haiku-4-5", FREE, False, ["tools[0].function.strict"]),
        ("claude-3-7-sonnet-20250219", CLOSED, False, ["tools[0].function.strict"]),
        ("kimi-k2", CLOSED, False, ["tools[0].function.strict"]),
    ],
)
def test_a_strict_tool_stays_strict_where_it_can(
    model: str, schema: dict[str, Any], is_strict: bool, dropped: list[str]
):
    tool = {"type": "function", "function": {"name": "a", "parameters": schema, "strict": True}}
    made, found = translate_with_drops(user("hi"), model=model, tools=[tool])
    assert made["tools"][0].get("strict", False) is is_strict
    assert (made["tools"][0]["input_schema"] == schema) is (schema is not BOUNDED)
    assert found == dropped


def test_no_more_tools_are_strict_than_the_vendor_takes():
    tools = [
        {"type": "function", "function": {"name": f"t{number}", "parameters": CLOSED, "strict": True}}
        for number in range(22)
    ]
    made, dropped = translate_with_drops(user("hi"), model="claude-opus-5", tools=tools)
    assert sum("strict" in tool for tool in made["tools"]) == 20
    assert dropped == ["tools[20].function.strict", "tools[21].function.strict"]


@pytest.mark.parametrize(
    ("fields", "dropped"),
    [
        ({"stop": "\n"}, ["stop"]),
        ({"stop": ["END", " ", ""]}, ["stop[1]"]),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": CLOSED}}}, []),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": BOUNDED}}},
            ["response_format.json_schema.schema.properties.a.minimum"],
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": FREE}}},
            ["response_format.json_schema.strict"],
        ),
        ({"response_format": {"type": "json_object"}}, []),
    ],
)
def test_what_cannot_be_kept_is_told_by_its_place(fields: dict[str, Any], dropped: list[str]):
    assert translate_with_drops(user("hi"), **fields)[1] == dropped


def test_who_uses_the_answer_is_told_in_either_field():
    assert translate(user("hi"), safety_identifier="s")["metadata"] == {"user_id": "s"}
    assert translate(user("hi"), safety_identifier="s", user="u")["metadata"] == {"user_id": "u"}


@pytest.mark.parametrize(
    ("filename", "media_type"),
    [
        ("a.pdf", "application/pdf"),
        (None, "application/pdf"),
        ("a.png", "image/png"),
        ("a.csv", "text/plain"),
    ],
)
def test_a_file_may_be_bare_base64(filename: str | None, media_type: str):
    part = {"type": "file", "file": {"filename": filename, "file_data": "QUJD"}}
    (block,) = translate(user([part]))["messages"][0]["content"]
    assert block["source"]["media_type"] == media_type


class _Endpoint:
    """The vendor's endpoint, as far as a request goes: it keeps what it gets."""

    api = "anthropic"
    is_strict = False

    def __init__(self) -> None:
        self.request: dict[str, Any] = {}

    def post(self, path: str, request: dict[str, Any], context: StageContext) -> dict[str, Any]:
        self.request = request
        return message({"type": "text", "text": "x"})

    def make_format_error(self, reason: str) -> Any:
        raise AssertionError(reason)


@pytest.mark.parametrize(
    ("model", "fields", "sent", "dropped"),
    [
        ("claude-opus-5-5", {"reasoning_effort": "high"}, "high", []),
        ("claude-opus-5-5", {"reasoning_effort": "minimal"}, "low", []),
        ("claude-opus-5-5", {"reasoning_effort": "none"}, "low", ["reasoning_effort"]),
        ("claude-sonnet-4-6", {"reasoning_effort": "xhigh"}, "high", ["reasoning_effort"]),
        ("claude-haiku-4-5", {"reasoning_effort": "medium"}, None, []),
        ("claude-haiku-4-5", {"reasoning_effort": "none"}, None, []),
        ("claude-haiku-4-5", {"reasoning_effort": "high", "max_tokens": 100}, None, ["reasoning_effort"]),
        ("claude-3-5-haiku-20241022", {"reasoning_effort": "low"}, None, ["reasoning_effort"]),
    ],
)
def test_an_effort_that_the_model_does_not_have_is_told(
    model: str, fields: dict[str, Any], sent: str | None, dropped: list[str]
):
    endpoint, context = _Endpoint(), StageContext()
    ChatToMessages(endpoint).post(CHAT, body(user("hi"), **{"model": model, **fields}), context)
    assert endpoint.request.get("output_config", {}).get("effort") == sent
    assert context.dropped_fields == dropped


@pytest.mark.parametrize(
    ("name", "longest"),
    [
        ("claude-opus-5-5", 128_000),
        ("claude-haiku-5-5", 128_000),
        ("claude-mythos-preview", 128_000),
        ("claude-opus-9", 128_000),
        ("anthropic/claude-sonnet-4.6", 128_000),
        ("claude-haiku-4-5-20251001", 64_000),
        ("claude-sonnet-4@20250514", 64_000),
        ("claude-opus-4-1-20250805", 32_000),
        ("claude-opus-4-20250514", 32_000),
        ("claude-3-7-sonnet-latest", 64_000),
        ("claude-3-5-haiku-20241022", 8192),
        ("anthropic.claude-3-opus-20240229-v1:0", 4096),
        ("kimi-k2", None),
    ],
)
def test_the_longest_answer_of_a_model_whose_endpoint_states_none(name: str, longest: int | None):
    found = find_claude_model(name)
    assert (found.max_tokens if found else None) == longest


@pytest.mark.parametrize(
    ("entry", "name", "longest"),
    [
        ({"max_tokens": 5}, "claude-haiku-4-5", 5),
        ({}, "claude-haiku-4-5", 64_000),
        ({"max_tokens": None}, "claude-opus-5", 128_000),
        ({}, "kimi-k2", FALLBACK_MAX_TOKENS),
    ],
)
def test_an_endpoint_states_the_longest_answer_before_the_table_does(
    entry: dict[str, Any], name: str, longest: int, monkeypatch: pytest.MonkeyPatch
):
    client = AnthropicClient("https://api.example.com/v1")
    monkeypatch.setattr(client, "_find_entry", lambda model: entry)
    assert client.find_max_tokens(name) == longest
