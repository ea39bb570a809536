"""Requests and answers with a part missing or of another type are errors of the grid, never exceptions."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from gridq.errors import GridError, SeatUnavailable, StageError
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Effect, StageCall
from workers.model_apis.api_request import parse_api_request
from workers.model_apis.forwarding import forward_request
from workers.model_apis.openai.client import OpenAIClient
from workers.model_apis.stage_runner import parse_stage_input, run_request

STAGE = StageCall(id="s", name="llm_api_request", path="$", implementation="llm:api_request")
JUNK = [
    None,
    3,
    -1,
    1.5,
    True,
    10**30,
    10**400,
    "",
    "x",
    [],
    [3],
    [None],
    ["a"],
    {},
    {"type": "text"},
    {"type": 3},
    {"a": None},
]

TEXT = {"type": "text", "text": "a"}
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}
PAPER = {"type": "document", "title": "t", "source": {"type": "content", "content": [TEXT]}}
FOUND = {"type": "search_result", "title": "t", "source": "s", "content": [TEXT]}
CALL = {"type": "tool_use", "id": "t", "name": "n", "input": {"a": 1}}
THOUGHT = {"type": "thinking", "thinking": "x", "signature": "y"}
MESSAGES = {
    "model": "m",
    "max_tokens": 5,
    "system": [TEXT],
    "messages": [
        {"role": "user", "content": [TEXT, PICTURE, PAPER, FOUND]},
        {"role": "assistant", "content": [TEXT, CALL, THOUGHT]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t", "content": [TEXT, PICTURE]}],
        },
    ],
    "tools": [{"name": "n", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "tool", "name": "n", "disable_parallel_tool_use": True},
    "metadata": {"user_id": "u"},
    "thinking": {"type": "enabled", "budget_tokens": 2000},
    "output_config": {"format": {"type": "json_schema", "schema": {}}},
}
CALLED = {"id": "t", "type": "function", "function": {"name": "n", "arguments": "{}"}}
SIGNED = {**CALLED, "extra_content": {"google": {"thought_signature": "x"}}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}
CHAT = {
    "model": "m",
    "thinking": {"type": "enabled", "budget_tokens": 2000},
    "messages": [
        {"role": "system", "content": "s"},
        {
            "role": "user",
            "content": [
                TEXT,
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
                {"type": "file", "file": {"filename": "f", "file_data": "data:application/pdf;base64,AA"}},
            ],
        },
        {"role": "assistant", "content": "x", "tool_calls": [SIGNED]},
        {"role": "tool", "tool_call_id": "t", "content": "r"},
    ],
    "tools": [{"type": "function", "function": {"name": "n", "parameters": {"type": "object"}}}],
    "tool_choice": {"type": "function", "function": {"name": "n"}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}},
    "stream_options": {"include_usage": True},
}
EMBED = {"model": "m", "input": ["a"], "encoding_format": "base64", "dimensions": 2}

RESPONSES = {
    "model": "m",
    "instructions": "s",
    "input": [
        {"role": "developer", "content": [{"type": "input_text", "text": "a"}]},
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "a"},
                {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "low"},
                {"type": "input_file", "filename": "f", "file_data": "data:application/pdf;base64,AA"},
            ],
        },
        {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "x"},
        {"type": "function_call", "call_id": "t", "name": "n", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "u", "name": "c", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "u", "output": "r"},
        {
            "type": "function_call_output",
            "call_id": "t",
            "output": [
                {"type": "input_text", "text": "r"},
                {"type": "input_image", "image_url": "data:image/png;base64,AA"},
            ],
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
        {"role": "user", "content": "b"},
    ],
    "tools": [
        {"type": "function", "name": "n", "parameters": {"type": "object"}, "strict": True},
        {"type": "custom", "name": "c", "format": {"type": "grammar", "syntax": "lark", "definition": "d"}},
        {"type": "namespace", "name": "s", "tools": [{"type": "function", "name": "n", "parameters": {}}]},
    ],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "n"}]},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}, "verbosity": "low"},
    "reasoning": {"effort": "low", "summary": "auto"},
    "metadata": {"a": "b"},
}

USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}
SAID = {"role": "assistant", "content": "a", "reasoning_content": "r", "tool_calls": [CALLED]}
COMPLETION = {
    "id": "c",
    "model": "m",
    "choices": [{"index": 0, "message": SAID, "finish_reason": "stop"}],
    "usage": USAGE,
    "data": [{"index": 0, "embedding": [1.0, 2.0]}],
}
PART = {"index": 0, "id": "t", "type": "function", "function": {"name": "n", "arguments": "{"}}
CHUNKS = [
    {"id": "c", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
    {
        "id": "c",
        "choices": [{"index": 0, "delta": {"content": "a"}, "logprobs": {"content": [{"token": "a"}]}}],
    },
    {"id": "c", "choices": [{"index": 0, "delta": {"tool_calls": [PART]}}]},
    {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
    {"id": "c", "choices": [], "usage": USAGE},
]
SPENT = {"input_tokens": 1, "output_tokens": 2}
MESSAGE = {
    "id": "m",
    "model": "m",
    "content": [TEXT, CALL, THOUGHT],
    "stop_reason": "end_turn",
    "usage": SPENT,
}
EVENTS = [
    {"type": "message_start", "message": {**MESSAGE, "content": []}},
    {"type": "content_block_start", "index": 0, "content_block": TEXT},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": CALL},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "{}"}},
    {"type": "content_block_stop", "index": 1},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}},
    {"type": "message_stop"},
]


ANSWERED = {
    "id": "r",
    "object": "response",
    "status": "completed",
    "output": [{"id": "i", "type": "message", "content": [{"type": "output_text", "text": "a"}]}],
    "usage": {**SPENT, "input_tokens_details": {"cached_tokens": 1}},
}
RESPONSE_EVENTS = [
    {"type": "response.created", "response": {**ANSWERED, "output": []}},
    {"type": "response.output_item.added", "output_index": 0, "item": {"id": "i", "type": "message"}},
    {"type": "response.output_text.delta", "item_id": "i", "output_index": 0, "delta": "a"},
    {"type": "response.output_item.done", "output_index": 0, "item": ANSWERED["output"][0]},
    {"type": "response.completed", "response": ANSWERED},
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each part of a JSON value."""
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, child in children:
        yield (*path, key)
        yield from places(child, (*path, key))


def broken(value: Any, chance: random.Random) -> Any:
    """A copy with one part gone or replaced."""
    value = copy.deepcopy(value)
    *path, last = chance.choice(list(places(value)))
    parent = value
    for key in path:
        parent = parent[key]
    if isinstance(parent, dict) and chance.random() < 0.25:
        del parent[last]
    else:
        parent[last] = copy.deepcopy(chance.choice(JUNK))
    return value


class Seat:
    """Sends what it was given."""

    is_strict = False

    def __init__(self, api: str, answer: Any, events: list[Any]) -> None:
        self.api = api
        self.answer = answer
        self.events = events

    def post(self, path: str, body: dict[str, Any], context: StageContext) -> dict[str, Any]:
        return dict(self.answer)

    def stream(self, path: str, body: dict[str, Any], context: StageContext) -> Generator[dict[str, Any]]:
        yield from (event for event in self.events if isinstance(event, dict))

    def make_format_error(self, reason: str) -> SeatUnavailable:
        return SeatUnavailable(reason)


class OwnSeat(Seat, OpenAIClient):
    """Has Responses of its own."""

    serves_responses = True

    def hash_key(self) -> str:
        return ""


SPOKEN = {"model": "m", "messages": [{"role": "user", "content": [TEXT, AUDIO]}]}


@pytest.mark.parametrize("api", ["openai", "anthropic", "google"])
@pytest.mark.parametrize(
    ("client_api", "path", "body"),
    [
        ("responses", "responses", RESPONSES),
        ("anthropic", "messages", MESSAGES),
        ("openai", "chat/completions", CHAT),
        ("openai", "chat/completions", SPOKEN),
    ],
)
def test_a_field_of_a_wrong_type_is_named(api: str, client_api: str, path: str, body: dict[str, Any]) -> None:
    named = []
    for place in places(body):
        for junk in JUNK:
            changed = copy.deepcopy(body)
            parent: Any = changed
            for key in place[:-1]:
                parent = parent[key]
            parent[place[-1]] = copy.deepcopy(junk)
            request = {"api": client_api, "path": path, "body": changed}
            try:
                seat = Seat(api, COMPLETION, CHUNKS)
                forward_request(parse_api_request(STAGE, request), "m", StageContext(), seat)
            except StageError as error:
                named.append((error.details["param"], place, junk))
            except GridError:
                pass
    assert named
    assert not [each for each in named if each[0] == "body"]


@pytest.mark.parametrize("api", ["openai", "anthropic"])
@pytest.mark.parametrize(
    ("client_api", "path", "body"),
    [
        ("responses", "responses", RESPONSES),
        ("anthropic", "messages", MESSAGES),
        ("openai", "chat/completions", CHAT),
        ("openai", "embeddings", EMBED),
    ],
)
def test_every_malformed_answer_is_an_error(api: str, client_api: str, path: str, body: dict[str, Any]):
    chance = random.Random(1)
    answers, errors = 0, 0
    answer, events = (COMPLETION, CHUNKS) if api == "openai" else (MESSAGE, EVENTS)
    for number in range(600):
        request_body = broken(body, chance) if number % 2 else body
        seat = (
            Seat(api, answer, events)
            if number % 3 == 0
            else Seat(api, broken(answer, chance), broken(events, chance))
        )
        pieces: list[Any] = []
        context = StageContext(emit=pieces.append if chance.random() < 0.5 else None)
        try:
            made = forward_request(
                parse_api_request(STAGE, {"api": client_api, "path": path, "body": request_body}),
                "m",
                context,
                seat,
            )
        except GridError:
            errors += 1
            continue
        answers += 1
        assert made["usage"]
        json.dumps([made, pieces], allow_nan=False)
    assert errors
    assert answers or (api == "anthropic" and path == "embeddings")


@pytest.mark.parametrize("api", ["openai", "anthropic"])
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("implementation", "value"),
    [
        ("llm:chat", {"messages": [{"role": "user", "content": "a"}]}),
        ("llm:complete", "a"),
        ("llm:embed", ["a"]),
    ],
)
def test_every_malformed_answer_is_an_error_for_the_stages_of_a_model(
    api: str, streaming: bool, implementation: str, value: Any
):
    chance = random.Random(2)
    answer, events = (COMPLETION, CHUNKS) if api == "openai" else (MESSAGE, EVENTS)
    effects = [Effect(effect="Llm", model="m")]
    call = StageCall(id="s", name="s", path="$", implementation=implementation, effects=effects)
    answers, errors = 0, 0
    for _ in range(400):
        seat = Seat(api, broken(answer, chance), broken(events, chance))
        context = StageContext(emit=(lambda piece: None) if streaming else None)
        try:
            json.dumps(run_request(parse_stage_input(call, value), "m", context, seat), allow_nan=False)
        except GridError:
            errors += 1
            continue
        answers += 1
        used = context.usage
        assert 0 < used.tokens_in < 10**9
        assert used.tokens_out > 0 or implementation == "llm:embed"
    assert errors
    assert answers or (api == "anthropic" and implementation == "llm:embed")


def test_every_malformed_answer_of_a_responses_seat_is_an_error():
    chance = random.Random(3)
    answers, errors = 0, 0
    for number in range(600):
        request_body = broken(RESPONSES, chance) if number % 2 else RESPONSES
        seat = OwnSeat("openai", broken(ANSWERED, chance), broken(RESPONSE_EVENTS, chance))
        pieces: list[Any] = []
        context = StageContext(emit=pieces.append if chance.random() < 0.5 else None)
        request = {"api": "responses", "path": "responses", "body": request_body}
        try:
            made = forward_request(parse_api_request(STAGE, request), "m", context, seat)
        except GridError:
            errors += 1
            continue
        answers += 1
        assert made["usage"]
        json.dumps([made, pieces], allow_nan=False)
    assert errors
    assert answers
