"""A client of Messages at a seat of the OpenAI API format: requests, answers, events."""

from __future__ import annotations

from typing import Any

import pytest

from gridq.errors import StageError
from tests.fakes.client_types import CHAT_REQUEST, MESSAGE, valid
from workers.model_apis.fields.messages import MESSAGES_TO_CHAT, MESSAGES_TO_GOOGLE, MESSAGES_TO_OPENAI
from workers.model_apis.fields.table import FieldTable
from workers.model_apis.openai.answers import build_message
from workers.model_apis.openai.client import OpenAIClient
from workers.model_apis.openai.from_messages import translate_to_chat


def body(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 9, "messages": list(messages), **more}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def translate(*messages: Any, **more: Any) -> dict[str, Any]:
    """The chat request for Messages; the official package agrees that it is one."""
    made = translate_to_chat(body(*messages, **more))
    valid(CHAT_REQUEST, {key: value for key, value in made.items() if key != "top_k"})
    return made


TOOL = {"name": "weather", "description": "of a city", "input_schema": {"type": "object", "properties": {}}}


def test_plain_fields_and_system():
    made = translate(
        user("hi"),
        system=[
            {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "b"},
        ],
        temperature=0.5,
        top_p=0.9,
        top_k=4,
        stop_sequences=["END"],
        metadata={"user_id": "u"},
        thinking={"type": "enabled", "budget_tokens": 1024},
        service_tier="auto",
    )
    assert made == {
        "model": "m",
        "max_tokens": 9,
        "messages": [{"role": "system", "content": "a\n\nb"}, {"role": "user", "content": "hi"}],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 4,
        "stop": ["END"],
        "user": "u",
    }


def test_a_long_user_id_becomes_a_hash():
    long = "user_" + "a" * 145
    made = translate_to_chat(body(user("hi"), metadata={"user_id": long}))["user"]
    assert len(made) <= 64
    assert made != translate_to_chat(body(user("hi"), metadata={"user_id": f"{long}b"}))["user"]


def test_an_empty_stop_sequence_is_left_out_and_types_of_pictures_are_the_registered_ones():
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/jpg", "data": "QUJD"}}
    made = translate_to_chat(body(user([image]), stop_sequences=["", "END"]))
    assert made["stop"] == ["END"]
    assert made["messages"][0]["content"][0]["image_url"]["url"] == "data:image/jpeg;base64,QUJD"
    assert "stop" not in translate_to_chat(body(user("hi"), stop_sequences=[""]))


def test_openais_own_api_gets_its_own_fields():
    made = translate_to_chat(body(user("hi"), top_k=4), MESSAGES_TO_OPENAI)
    assert made == {"model": "m", "max_completion_tokens": 9, "messages": [user("hi")]}
    assert OpenAIClient("https://api.openai.com/v1").is_strict
    assert OpenAIClient("https://mine.openai.azure.com/openai/v1").is_strict
    assert not OpenAIClient("https://llm.example.com/v1").is_strict
    private = OpenAIClient("https://llm.example.com/v1")
    private.provider = "azure"
    assert private.is_strict
    other = OpenAIClient("https://api.openai.com/v1")
    other.provider = "groq"
    assert not other.is_strict


def test_text_blocks_are_joined_and_images_become_parts():
    text = {"type": "text", "text": "see", "cache_control": {"type": "ephemeral"}}
    base64 = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}
    url = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBE"}}
    plain = {
        "type": "document",
        "title": "T",
        "source": {"type": "text", "media_type": "text/plain", "data": "body"},
    }
    assert translate(user([text, text]))["messages"] == [user("see\n\nsee")]
    assert translate(user([text, base64, url, pdf, plain]))["messages"] == [
        user(
            [
                {"type": "text", "text": "see"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}},
                {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
                {
                    "type": "file",
                    "file": {"filename": "document.pdf", "file_data": "data:application/pdf;base64,JVBE"},
                },
                {"type": "text", "text": "T\n\nbody"},
            ]
        )
    ]


def test_tool_calls_and_results_are_translated():
    call = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Zürich"}}
    picture = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
    results = [
        {"type": "text", "text": "here"},
        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "7 °C"}, picture]},
        {"type": "tool_result", "tool_use_id": "t2", "is_error": True, "content": "no such city"},
        {"type": "tool_result", "tool_use_id": "t3"},
    ]
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s"}
    assistant_turn = {"role": "assistant", "content": [thinking, {"type": "text", "text": "I look"}, call]}
    only = {"role": "assistant", "content": [call]}
    made = translate(user("weather?"), assistant_turn, user(results), only, tools=[TOOL])["messages"]
    function = {"name": "weather", "arguments": '{"city": "Zürich"}'}
    calls = [{"id": "t1", "type": "function", "function": function}]
    assert made[1] == {"role": "assistant", "content": "I look", "tool_calls": calls}
    assert made[2:5] == [
        {"role": "tool", "tool_call_id": "t1", "content": "7 °C"},
        {"role": "tool", "tool_call_id": "t2", "content": "Error: no such city"},
        {"role": "tool", "tool_call_id": "t3", "content": ""},
    ]
    assert [part["type"] for part in made[5]["content"]] == ["text", "image_url"]
    assert made[6] == {"role": "assistant", "content": None, "tool_calls": calls}


@pytest.mark.parametrize(
    ("choice", "made"),
    [
        (None, {"tool_choice": "auto"}),
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        (
            {"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
            {
                "tool_choice": {"type": "function", "function": {"name": "weather"}},
                "parallel_tool_calls": False,
            },
        ),
    ],
)
def test_tool_choice(choice: Any, made: dict[str, Any]):
    request = translate(user("hi"), tools=[TOOL], **({"tool_choice": choice} if choice else {}))
    assert {key: request.get(key) for key in made} == made
    assert request["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "weather",
                "description": "of a city",
                "parameters": TOOL["input_schema"],
            },
        }
    ]


def test_a_wanted_schema_is_a_response_format():
    schema = {"type": "object", "properties": {"a": {"type": "number"}}}
    made = translate(
        user("hi"), output_config={"effort": "low", "format": {"type": "json_schema", "schema": schema}}
    )
    assert made["response_format"]["json_schema"]["schema"] == schema
    assert "reasoning_effort" not in made


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        (
            {
                "type": "object",
                "properties": {"a": {"type": "string"}},
                "required": ["a"],
                "additionalProperties": False,
            },
            True,
        ),
        ({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}, False),
        ({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}, False),
        ({"type": "array", "items": {"type": "string"}}, False),
        (
            {
                "type": "object",
                "properties": {"a": {"type": "array", "items": {"type": "object"}}},
                "required": ["a"],
                "additionalProperties": False,
            },
            False,
        ),
        ({"type": "object", "properties": {}, "additionalProperties": False, "allOf": []}, False),
    ],
)
def test_a_schema_is_strict_only_where_openai_takes_it_so(schema: dict[str, Any], strict: bool):
    made = translate_to_chat(
        body(
            user("hi"),
            output_config={"format": {"type": "json_schema", "schema": schema}},
            tools=[{"name": "a", "input_schema": schema, "strict": True}],
        )
    )
    assert made["response_format"]["json_schema"]["strict"] is strict
    assert made["tools"][0]["function"]["strict"] is strict


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        (body({"role": "robot", "content": "x"}), "messages[0].role"),
        (body(user([{"type": "container_upload"}])), "messages[0].content[0].type"),
        (body(user([{"type": "text"}])), "messages[0].content[0].text"),
        (
            body(user([{"type": "image", "source": {"type": "file", "file_id": "f"}}])),
            "messages[0].content[0].source",
        ),
        (body(user([{"type": "document", "source": {"type": "url"}}])), "messages[0].content[0].source"),
        (body(user([{"type": "tool_result"}])), "messages[0].content[0].tool_use_id"),
        (
            body({"role": "assistant", "content": [{"type": "server_tool_use"}]}),
            "messages[0].content[0].type",
        ),
        (body(user("x"), tools=[{"type": "web_search_20250305", "name": "web_search"}]), "tools[0].type"),
        (body(user("x"), tools=[{"name": "a"}]), "tools[0]"),
        (body(user("x"), tools=[TOOL], tool_choice={"type": "some"}), "tool_choice.type"),
        (body(user("x"), tools=[TOOL], tool_choice={"type": "tool"}), "tool_choice.name"),
        (body(user("x"), system=[{"type": "image"}]), "system[0]"),
        (body(user("x"), mcp_servers=[{"type": "url", "url": "https://x", "name": "x"}]), "mcp_servers"),
        (body(user("x"), container="c"), "container"),
        ({**body(user("x")), "max_tokens": 0}, "max_tokens"),
    ],
)
def test_fields_without_a_counterpart_are_rejected_by_name(wrong: dict[str, Any], param: str):
    with pytest.raises(StageError) as caught:
        translate_to_chat(wrong)
    assert caught.value.details["param"] == param
    assert caught.value.details["status"] == 400


def completion(finish: str = "stop", usage: Any = None, **message: Any) -> dict[str, Any]:
    choice = {
        "index": 0,
        "finish_reason": finish,
        "message": {"role": "assistant", "content": None, **message},
    }
    return {"id": "c1", "model": "real", "choices": [choice], "usage": usage}


USAGE = {
    "prompt_tokens": 30,
    "completion_tokens": 7,
    "total_tokens": 37,
    "prompt_tokens_details": {"cached_tokens": 20, "cache_write_tokens": 4},
}
CALL = {"id": "t1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}


def test_a_whole_answer():
    made = build_message(completion(content="yes", usage=USAGE), body(user("hi")))
    valid(MESSAGE, made)
    assert made.pop("id") != build_message(completion(content="yes"), body(user("hi")))["id"], "it is our own"
    assert made == {
        "type": "message",
        "role": "assistant",
        "model": "real",
        "content": [{"type": "text", "text": "yes"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 6,
            "cache_creation_input_tokens": 4,
            "cache_read_input_tokens": 20,
            "output_tokens": 7,
        },
    }


@pytest.mark.parametrize(
    ("finish", "message", "reason"),
    [
        ("stop", {"content": "x"}, "end_turn"),
        ("length", {"content": "x"}, "max_tokens"),
        ("tool_calls", {"tool_calls": [CALL]}, "tool_use"),
        ("stop", {"tool_calls": [CALL]}, "tool_use"),
        ("content_filter", {"refusal": "no"}, "refusal"),
        ("something new", {"content": "x"}, "end_turn"),
    ],
)
def test_stop_reasons_are_translated(finish: str, message: dict[str, Any], reason: str):
    made = build_message(completion(finish, **message), body(user("hi")))
    valid(MESSAGE, made)
    assert made["stop_reason"] == reason


def test_the_matched_stop_sequence_is_passed_on():
    answer = completion(content="x")
    answer["choices"][0]["stop_reason"] = "END"
    made = build_message(answer, body(user("hi"), stop_sequences=["END"]))
    assert (made["stop_reason"], made["stop_sequence"]) == ("stop_sequence", "END")


def test_answers_with_calls_and_invalid_arguments_are_translated():
    broken = {"function": {"name": "weather", "arguments": '{"city'}}
    empty = {"id": "t3", "function": {"name": "now", "arguments": ""}}
    made = build_message(completion("tool_calls", tool_calls=[CALL, broken, empty]), body(user("hi")))
    valid(MESSAGE, made)
    assert [block["input"] for block in made["content"]] == [{"city": "Bern"}, {"INVALID_JSON": '{"city'}, {}]
    assert len({block["id"] for block in made["content"]}) == 3


def test_clients_that_request_thinking_get_the_reasoning():
    answer = completion(content="42", reasoning_content="six times seven")
    assert [block["type"] for block in build_message(answer, body(user("hi")))["content"]] == ["text"]
    thinking = body(user("hi"), thinking={"type": "enabled", "budget_tokens": 1024})
    made = build_message(answer, thinking)
    valid(MESSAGE, made)
    assert made["content"][0]["thinking"] == "six times seven"


def drops(table: FieldTable = MESSAGES_TO_CHAT, **more: Any) -> list[str]:
    """Return the places that a translation leaves out."""
    found: list[str] = []
    translate_to_chat({**body(user("hi")), **more}, table, drop=found.append)
    return found


CITED = {
    "type": "document",
    "source": {"type": "text", "media_type": "text/plain", "data": "x"},
    "citations": {"enabled": True},
}


@pytest.mark.parametrize(
    ("fields", "dropped"),
    [
        ({"output_config": {"effort": "high", "format": None}}, ["output_config.effort"]),
        ({"output_config": {"task_budget": {"type": "tokens", "total": 9}}}, ["output_config.task_budget"]),
        ({"thinking": {"type": "adaptive"}}, []),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, ["thinking.budget_tokens"]),
        ({"tools": [{**TOOL, "strict": True}]}, ["tools[0].strict"]),
        ({"tools": [{**TOOL, "input_examples": [{"a": 1}]}]}, ["tools[0].input_examples"]),
        ({"tools": [{**TOOL, "allowed_callers": ["direct"], "eager_input_streaming": True}]}, []),
        ({"messages": [user([CITED])]}, ["messages[0].content[0].citations"]),
        ({"messages": [user([{**CITED, "citations": {"enabled": False}}])]}, []),
        ({"context_management": {"edits": []}, "speed": "standard", "service_tier": "auto"}, []),
        ({"speed": "fast", "diagnostics": {"previous_message_id": "m"}}, ["speed", "diagnostics"]),
    ],
)
def test_what_has_no_effect_is_told_by_its_place(fields: dict[str, Any], dropped: list[str]):
    assert drops(**fields) == dropped


def test_googles_seats_take_thinking_and_effort():
    fields = {"output_config": {"effort": "high"}, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    assert drops(MESSAGES_TO_GOOGLE, **fields) == []


@pytest.mark.parametrize("media_type", ["image/jpg", "IMAGE/PNG", "image/webp", "image/gif"])
def test_the_type_of_a_picture_is_normalized(media_type: str):
    source = {"type": "base64", "media_type": media_type, "data": "QUJD"}
    (part,) = translate(user([{"type": "image", "source": source}]))["messages"][0]["content"]
    registered = media_type.lower().replace("jpg", "jpeg")
    assert part["image_url"]["url"] == f"data:{registered};base64,QUJD"


@pytest.mark.parametrize(("media_type", "data"), [("image/tiff", "QUJD"), ("image/png", "no base64!")])
def test_a_picture_that_nobody_takes_is_refused_by_its_place(media_type: str, data: str):
    source = {"type": "base64", "media_type": media_type, "data": data}
    with pytest.raises(StageError) as caught:
        translate(user([{"type": "image", "source": source}]))
    assert caught.value.details["param"] == "messages[0].content[0].source"


@pytest.mark.parametrize(("table", "count", "is_taken"), [
    (MESSAGES_TO_OPENAI, 4, True), (MESSAGES_TO_OPENAI, 5, False), (MESSAGES_TO_CHAT, 5, True),
])  # fmt: skip
def test_openai_takes_four_stop_sequences(table: FieldTable, count: int, is_taken: bool):
    request = body(user("hi"), stop_sequences=list("abcdef")[:count])
    if is_taken:
        assert translate_to_chat(request, table)["stop"] == list("abcdef")[:count]
        return
    with pytest.raises(StageError) as caught:
        translate_to_chat(request, table)
    assert caught.value.details["param"] == "stop_sequences"
    assert "4" in caught.value.details["expected"]
