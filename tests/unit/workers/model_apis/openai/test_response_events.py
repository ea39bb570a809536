"""The chunks of a chat become the events of a response, in the types of the official client."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes.client_types import RESPONSE, RESPONSE_EVENT, valid
from workers.model_apis.api_request import CHAT
from workers.model_apis.identity.chat import IdentifiedChunks
from workers.model_apis.identity.fitting import ToolNames, restore_call_id
from workers.model_apis.openai.response_events import ResponseEvents
from workers.model_apis.openai.response_items import translate_tools
from workers.model_apis.response_assembly import ResponseAssembler

REQUEST: dict[str, Any] = {
    "model": "m",
    "input": "x" * 40,
    "tools": [
        {"type": "function", "name": "weather", "parameters": {}},
        {"type": "custom", "name": "patch"},
        {
            "type": "namespace",
            "name": "mcp",
            "description": "d",
            "tools": [{"type": "function", "name": "read"}],
        },
    ],
    "metadata": {"a": "b"},
    "temperature": 0.5,
}


def chunk(finish: str | None = None, logprobs: Any = None, **delta: Any) -> dict[str, Any]:
    return {
        "id": "c",
        "model": "real",
        "choices": [{"delta": delta, "finish_reason": finish, "logprobs": logprobs}],
    }


def piece(index: int | None, arguments: str = "", name: str | None = None, **more: Any) -> dict[str, Any]:
    function = {"arguments": arguments} | ({"name": name} if name else {})
    return {"function": function, **({} if index is None else {"index": index}), **more}


ORIGIN = "0123abcd"


def translate(
    *chunks: dict[str, Any], shows_reasoning: bool = True, state_origin: str = ""
) -> list[dict[str, Any]]:
    """Return the events, each checked, and the order of their numbers."""
    identified = IdentifiedChunks(CHAT, REQUEST, ToolNames(None, ()), ORIGIN)
    events = ResponseEvents(
        REQUEST,
        "resp_1",
        translate_tools(REQUEST["tools"])[1],
        shows_reasoning=shows_reasoning,
        state_origin=state_origin,
    )
    made = [event for each in chunks for event in events.add_chunk(identified.add_chunk(each))]
    made += events.end()
    made = json.loads(json.dumps(made))
    for event in made:
        valid(RESPONSE_EVENT, event)
    assert [event["sequence_number"] for event in made] == list(range(len(made)))
    assembler = ResponseAssembler(REQUEST)
    for event in made:
        assembler.add_event(event)
    assert assembler.is_complete == (made[-1]["type"] in ("response.completed", "response.incomplete"))
    return made


def finish(*chunks: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Return the final response."""
    response: dict[str, Any] = translate(*chunks, **options)[-1]["response"]
    valid(RESPONSE, response)
    return response


def test_a_text_with_reasoning():
    made = translate(
        chunk(role="assistant"), chunk(reasoning_content="let me "), chunk(reasoning="see"),
        chunk(content="so "), chunk(content="on"), chunk("stop"),
        {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}},
    )  # fmt: skip
    assert [event["type"].removeprefix("response.") for event in made] == [
        "created", "in_progress",
        "output_item.added", "reasoning_summary_part.added", "reasoning_summary_text.delta",
        "reasoning_summary_text.delta", "reasoning_summary_text.done", "reasoning_summary_part.done",
        "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    assert made[2]["item"]["summary"] == []
    assert made[9]["item"]["content"] == []
    response = made[-1]["response"]
    thought, message = response["output"]
    assert thought["summary"] == [{"type": "summary_text", "text": "let me see"}]
    assert message["content"][0]["text"] == "so on"
    assert (response["model"], response["metadata"], response["temperature"]) == ("real", {"a": "b"}, 0.5)
    assert (response["usage"]["input_tokens"], response["usage"]["output_tokens"]) == (7, 3)
    assert response["store"] is False
    ids = {response["id"], thought["id"], message["id"]}
    assert len(ids) == 3
    assert not ids & {"c"}


def test_reasoning_is_shown_on_request_only():
    response = finish(chunk(reasoning_content="hm"), chunk("stop", content="a"), shows_reasoning=False)
    assert [item["type"] for item in response["output"]] == ["message"]


def test_parallel_calls_of_each_kind():
    made = translate(
        chunk(content="I look"),
        chunk(tool_calls=[piece(0, '{"city":', "weather", id="x"), piece(1, '{"inp', "patch", id="x")]),
        chunk(tool_calls=[piece(1, 'ut":"a\\nb"}'), piece(0, '"Bern"}'), piece(2, "", "mcp__read", id="z")]),
        chunk("tool_calls"),
    )
    message, weather, patch, read = made[-1]["response"]["output"]
    assert message["type"] == "message"
    assert (weather["type"], weather["name"], weather["arguments"]) == (
        "function_call",
        "weather",
        '{"city":"Bern"}',
    )
    assert (patch["type"], patch["name"], patch["input"]) == ("custom_tool_call", "patch", "a\nb")
    assert (read["name"], read["namespace"], read["arguments"]) == ("read", "mcp", "")
    call_ids = {each["call_id"] for each in (weather, patch, read)}
    assert len(call_ids) == 3
    assert not call_ids & {"x", "z"}
    deltas = [event["delta"] for event in made if event["type"] == "response.function_call_arguments.delta"]
    assert deltas == ['{"city":', '"Bern"}']
    assert [event["delta"] for event in made if event["type"] == "response.custom_tool_call_input.delta"] == [
        "a\nb"
    ]
    indexes = [event["output_index"] for event in made if event["type"] == "response.output_item.done"]
    assert sorted(indexes) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "pieces",
    [
        [piece(0, "{}", "weather", id="a"), piece(0, "[]", "weather", id="b")],
        [piece(None, "{}", "weather"), piece(None, "[]", "weather")],
        [piece(0, "{}", "weather"), piece(1, "[]", "weather")],
    ],
)
def test_calls_are_told_apart_whatever_an_endpoint_leaves_out(pieces: list[dict[str, Any]]):
    for chunks in ([chunk(tool_calls=pieces)], [chunk(tool_calls=[each]) for each in pieces]):
        response = finish(*chunks, chunk("tool_calls"))
        assert [item["arguments"] for item in response["output"]] == ["{}", "[]"]
        assert len({item["call_id"] for item in response["output"]}) == 2


def test_a_custom_tool_whose_arguments_are_no_json_gets_what_the_model_wrote():
    response = finish(chunk(tool_calls=[piece(0, "*** Begin", "patch")]), chunk("tool_calls"))
    assert response["output"][0]["input"] == "*** Begin"


@pytest.mark.parametrize(
    ("reason", "status", "why"),
    [
        ("stop", "completed", None),
        ("tool_calls", "completed", None),
        ("length", "incomplete", "max_output_tokens"),
        ("content_filter", "incomplete", "content_filter"),
    ],
)
def test_the_end_of_a_response(reason: str, status: str, why: str | None):
    made = translate(chunk(content="a"), chunk(reason))
    assert made[-1]["type"] == f"response.{status}"
    response = made[-1]["response"]
    assert response["status"] == status
    assert response["incomplete_details"] == ({"reason": why} if why else None)
    assert response["output"][0]["status"] == status


def test_a_chat_that_breaks_off_has_no_last_event():
    assert translate(chunk(content="a"))[-1]["type"] == "response.output_text.delta"


def test_a_refusal_is_a_part_of_its_own():
    response = finish(chunk(content="a"), chunk(refusal="no"), chunk("stop", refusal="pe"))
    text, refusal = response["output"][0]["content"]
    assert (text["text"], refusal) == ("a", {"type": "refusal", "refusal": "nope"})


def test_log_probabilities_have_every_field_even_if_an_engine_sends_infinity():
    probable = {
        "token": "a",
        "logprob": -0.5,
        "bytes": [97],
        "top_logprobs": [{"token": "b", "logprob": None}],
    }
    response = finish(chunk("stop", {"content": [probable]}, content="a"))
    [logprob] = response["output"][0]["content"][0]["logprobs"]
    assert logprob == {**probable, "top_logprobs": [{"token": "b", "logprob": -9999.0, "bytes": []}]}


def test_links_and_pictures():
    link = {"type": "url_citation", "url_citation": {"url": "https://a.test", "title": "t", "end_index": 1}}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    response = finish(chunk(content="a"), chunk(annotations=[link]), chunk("stop", images=[image]))
    message, picture = response["output"]
    annotation = {
        "type": "url_citation",
        "start_index": 0,
        "end_index": 1,
        "title": "t",
        "url": "https://a.test",
    }
    assert message["content"][0]["annotations"] == [annotation]
    assert (picture["type"], picture["result"], picture["status"]) == (
        "image_generation_call",
        "AAAA",
        "completed",
    )


def test_usage_has_its_parts_and_is_estimated_if_it_is_not_stated():
    stated = {
        "prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }  # fmt: skip
    response = finish(chunk("stop", content="a"), {"choices": [], "usage": stated})
    assert response["usage"] == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 15,
    }
    estimated = finish(chunk(content="a"), chunk("stop", content="b"))["usage"]
    assert estimated["output_tokens"] == 2
    assert estimated["input_tokens"] > 10


def test_an_endpoints_last_event_without_output_gets_the_items_before_it():
    assembler = ResponseAssembler({"model": "m", "input": "hi"})
    item = {"id": "i", "type": "message", "content": []}
    assert not assembler.add_event({"type": "response.created", "response": {"id": "r", "output": []}})
    assert assembler.add_event({"type": "response.output_item.done", "output_index": 0, "item": item})
    last: dict[str, Any] = {"type": "response.completed", "response": {"id": "r", "output": []}}
    assert assembler.add_event(last)
    assert last["response"]["output"] == assembler.build_answer()["output"] == [item]
    assert assembler.compute_usage().tokens_in > 0


def test_a_call_has_an_id_of_the_grids_own_once_which_contains_the_seats():
    made = translate(chunk(tool_calls=[piece(0, "{}", "weather", id="functions_x")]), chunk("tool_calls"))
    (call,) = made[-1]["response"]["output"]
    assert call["call_id"].count("call_q") == 1
    assert restore_call_id(call["call_id"]) == "functions_x"
