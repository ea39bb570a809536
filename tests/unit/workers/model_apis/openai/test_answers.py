"""A client of Messages at a seat of the OpenAI API format: the events of a stream."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes.client_types import EVENT, valid
from tests.unit.workers.model_apis.openai.test_from_messages import USAGE, body, completion, user
from workers.model_apis.message_assembly import MessageAssembler
from workers.model_apis.openai.answers import MessageEvents, build_message


def chunk(finish: str | None = None, usage: Any = None, **delta: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c1", "model": "real", "choices": [choice], "usage": usage}


def events(*chunks: dict[str, Any], **more: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The events of `chunks`, each of the package's type and in its place, and what a client puts together of
    them.
    """
    request = body(user("hi"), **more)
    translator = MessageEvents(request)
    parts: Iterator[Any] = itertools.chain.from_iterable(map(translator.add_chunk, chunks))
    made = [*parts, *translator.end()]
    assembler = MessageAssembler(request)
    for event in made:
        valid(EVENT, event)
        assembler.add_event(event)
    check_block_order(made)
    return made, assembler.build_answer()


def check_block_order(made: list[dict[str, Any]]) -> None:
    """Blocks come one after the other, numbered from 0; what goes on with one comes while it is open."""
    open_, number = False, 0
    for event in made:
        match event["type"].removeprefix("content_block_"):
            case "start":
                assert (open_, event["index"]) == (False, number)
                open_ = True
            case "delta":
                assert (open_, event["index"]) == (True, number)
            case "stop":
                assert (open_, event["index"]) == (True, number)
                open_, number = False, number + 1
            case "message_stop":
                assert not open_


def call(index: int, arguments: str, **first: Any) -> dict[str, Any]:
    name = {"name": first.pop("name")} if first else {}
    return chunk(tool_calls=[{"index": index, **first, "function": {**name, "arguments": arguments}}])


def test_a_text_stream_becomes_events():
    last = {"id": "c1", "choices": [], "usage": USAGE}
    made, answer = events(
        chunk(role="assistant", content=""), chunk(content="a"), chunk(content="b"), chunk("stop"), last
    )
    assert [event["type"] for event in made] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    whole = build_message(completion(content="ab", usage=USAGE), body(user("hi")))
    assert answer == {**whole, "id": answer["id"]}


def test_thinking_text_and_calls_become_blocks():
    _, answer = events(
        chunk(reasoning_content="hm"),
        chunk(content="I look"),
        call(0, "", id="t1", name="weather"),
        call(0, '{"city":'),
        call(0, '"Bern"}'),
        call(1, "{}", id="t2", name="now"),
        chunk("tool_calls"),
        thinking={"type": "adaptive"},
    )
    assert [block["type"] for block in answer["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    assert answer["content"][2] == {
        "type": "tool_use",
        "id": "t1",
        "name": "weather",
        "input": {"city": "Bern"},
    }
    assert answer["content"][3]["input"] == {}
    assert answer["stop_reason"] == "tool_use"


def test_interleaved_calls_become_successive_blocks():
    _, answer = events(
        call(0, "", id="t1", name="weather"),
        call(1, "", id="t2", name="weather"),
        call(0, '{"city":'),
        call(1, '{"city":"Thun"'),
        chunk(content="both"),
        call(0, '"Bern"}'),
        call(1, "}"),
        chunk("tool_calls"),
    )
    weather, other, text = answer["content"]
    assert (weather["id"], weather["input"]) == ("t1", {"city": "Bern"})
    assert (other["id"], other["input"]) == ("t2", {"city": "Thun"})
    assert text == {"type": "text", "text": "both"}


def test_pieces_of_the_open_call_are_sent_at_once_and_the_next_call_afterwards():
    translator = MessageEvents(body(user("hi")))
    assert (
        len(list(translator.add_chunk(call(0, "", id="t1", name="weather")))) == 2
    )  # the message begins, and its block
    assert list(translator.add_chunk(call(1, "{}", id="t2", name="now"))) == []
    assert [event["index"] for event in translator.add_chunk(call(0, '{"a":'))] == [0]
    brought = [(event["type"], event["index"]) for event in translator.add_chunk(call(0, "1}"))]
    assert brought == [
        ("content_block_delta", 0),
        ("content_block_stop", 0),
        ("content_block_start", 1),
        ("content_block_delta", 1),
    ]
    assert [event["index"] for event in translator.add_chunk(chunk(content="both"))] == [1, 2, 2]


def test_calls_without_arguments_are_complete():
    _, answer = events(
        call(0, "", id="t1", name="now"), call(1, "", id="t2", name="now"), chunk("tool_calls")
    )
    assert [block["id"] for block in answer["content"]] == ["t1", "t2"]


def test_arguments_after_a_complete_call_are_an_error():
    with pytest.raises(ValueError, match="complete"):
        events(call(0, "{}", id="t1", name="now"), call(1, "{}", id="t2", name="now"), call(0, '{"a":1}'))


def test_a_stream_without_usage_is_counted_by_its_pieces():
    made, answer = events(chunk(content="a"), chunk(content="b"), chunk("length"))
    assert made[-2]["usage"]["output_tokens"] == 2
    assert answer["usage"]["input_tokens"] > 0


def test_a_stream_that_breaks_off_has_no_end():
    made, _ = events(chunk(content="a"))
    assert made[-1]["type"] == "content_block_delta"
