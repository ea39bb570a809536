"""Ids and tool calls of an answer are right whatever an endpoint leaves out, repeats or sends empty."""

from __future__ import annotations

import itertools
import json
from collections.abc import Generator
from typing import Any

import pytest

from gridq.errors import SeatUnavailable
from gridq.profiles.profile import StageContext
from tests.fakes.client_types import CHUNK, EVENT, valid
from workers.model_apis.adapters import adapt_backend
from workers.model_apis.api_request import ANTHROPIC, CHAT, COMPLETIONS, MESSAGES, OPENAI, RESPONSES
from workers.model_apis.chat_assembly import ChatAssembler
from workers.model_apis.identity.fitting import ANTHROPIC_ID, MISTRAL_ID
from workers.model_apis.message_assembly import MessageAssembler

BODY = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
PATHS = {OPENAI: CHAT, ANTHROPIC: MESSAGES, RESPONSES: RESPONSES}


class Seat:
    """A seat that answers with what it is given, and keeps the requests it got."""

    is_strict = False

    def __init__(self, api: str, *sent: dict[str, Any], url: str = "") -> None:
        self.api = api
        self.sent = sent
        self.url = url
        self.requests: list[dict[str, Any]] = []

    def post(self, path: str, body: dict[str, Any], context: StageContext) -> dict[str, Any]:
        self.requests.append(body)
        return json.loads(json.dumps(self.sent[0]))

    def stream(self, path: str, body: dict[str, Any], context: StageContext) -> Generator[dict[str, Any]]:
        self.requests.append(body)
        yield from json.loads(json.dumps(self.sent))

    def make_format_error(self, reason: str) -> SeatUnavailable:
        return SeatUnavailable(reason)


def stream(api: str, seat: Any, body: dict[str, Any] = BODY) -> tuple[list[Any], dict[str, Any]]:
    """The events that a client of `api` gets, and the answer that they make."""
    adapted = adapt_backend(api, seat)
    assembler = ChatAssembler(CHAT, body) if api == OPENAI else MessageAssembler(body)
    events = list(adapted.stream(PATHS[api], body, StageContext()))
    for event in events:
        valid(CHUNK if api == OPENAI else EVENT, event)
        assembler.add_event(event)
    return events, assembler.build_answer()


def find_calls(api: str, answer: dict[str, Any]) -> list[tuple[str, str, Any]]:
    """The id, the name and the arguments of each tool call."""
    if api == OPENAI:
        calls = answer["choices"][0]["message"].get("tool_calls") or []
        return [
            (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"] or "{}"))
            for call in calls
        ]
    return [
        (block["id"], block["name"], block["input"])
        for block in answer["content"]
        if block["type"] == "tool_use"
    ]


def chunk(*pieces: Any, finish: str | None = None, **head: Any) -> dict[str, Any]:
    delta = {"tool_calls": list(pieces)} if pieces else {}
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **head}


def piece(arguments: str | None = None, name: str | None = None, **more: Any) -> dict[str, Any]:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    return {**more, "function": function}


END = chunk(finish="tool_calls")
BERN, THUN = '{"city": "Bern"}', '{"city": "Thun"}'

PARALLEL: dict[str, list[dict[str, Any]]] = {
    "all at index 0, with ids": [
        chunk(piece(BERN, "weather", index=0, id="a")),
        chunk(piece(THUN, "weather", index=0, id="b")),
    ],
    "all at index 0, without ids": [
        chunk(piece(BERN, "weather", index=0)),
        chunk(piece(THUN, "weather", index=0)),
    ],
    "all at index 0, with equal ids": [
        chunk(piece(BERN, "weather", index=0, id="call_0"), piece(THUN, "weather", index=0, id="call_0")),
    ],
    "all at index 0, with empty ids, in pieces": [
        chunk(piece("", "weather", index=0, id="")),
        chunk(piece('{"city": ', index=0, id="")),
        chunk(piece('"Bern"}', index=0, id="")),
        chunk(piece("", "weather", index=0, id="")),
        chunk(piece(THUN, index=0, id="")),
    ],
    "all at index 0, interleaved, an id in every piece": [
        chunk(piece('{"city": ', "weather", index=0, id="a"), piece('{"city": ', "weather", index=0, id="b")),
        chunk(piece('"Bern"}', index=0, id="a"), piece('"Thun"}', index=0, id="b")),
    ],
    "without an index or ids": [chunk(piece(BERN, "weather")), chunk(piece(THUN, "weather"))],
    "without an index, in pieces": [
        chunk(piece("", "weather", id="a")),
        chunk(piece(BERN)),
        chunk(piece("", "weather", id="b")),
        chunk(piece('{"city": ')),
        chunk(piece('"Thun"}')),
    ],
    "without an index, interleaved": [
        chunk(piece("", "weather"), piece("", "weather")),
        chunk(piece('{"city": '), piece('{"city": ')),
        chunk(piece('"Bern"}'), piece('"Thun"}')),
    ],
    "with null for an index": [chunk(piece(BERN, "weather", index=None), piece(THUN, "weather", index=None))],
    "the name and the id in every piece": [
        chunk(piece('{"city": ', "weather", index=0, id="a")),
        chunk(piece('"Bern"}', "weather", index=0, id="a")),
        chunk(piece('{"city": ', "weather", index=1, id="b")),
        chunk(piece('"Thun"}', "weather", index=1, id="b")),
    ],
    "the id first, then the name": [
        chunk(piece(index=0, id="a")),
        chunk(piece('{"city": ', index=0)),
        chunk(piece('"Bern"}', "weather", index=0)),
        chunk(piece("", index=1, id="b")),
        chunk(piece(THUN, "weather", index=1)),
    ],
    "another id in every piece": [
        chunk(piece("", "weather", index=0, id="a")),
        chunk(piece(BERN, index=0, id="b")),
        chunk(piece("", "weather", index=1, id="c")),
        chunk(piece(THUN, index=1, id="d")),
    ],
    "indexes with gaps and equal ids": [
        chunk(piece(BERN, "weather", index=3, id="x"), piece(THUN, "weather", index=7, id="x"))
    ],
}


@pytest.mark.parametrize("api", [OPENAI, ANTHROPIC])
@pytest.mark.parametrize("case", PARALLEL)
def test_parallel_calls_stay_apart(api: str, case: str):
    _, answer = stream(api, Seat(OPENAI, *PARALLEL[case], END))
    first, second = find_calls(api, answer)
    assert first[1:] == ("weather", {"city": "Bern"})
    assert second[1:] == ("weather", {"city": "Thun"})
    assert first[0]
    assert second[0] not in ("", first[0])


@pytest.mark.parametrize("case", PARALLEL)
def test_parallel_calls_stay_apart_in_responses(case: str):
    adapted = adapt_backend(RESPONSES, Seat(OPENAI, *PARALLEL[case], END), "resp_1")
    *_, last = adapted.stream(RESPONSES, {"model": "m", "input": "hi"}, StageContext())
    assert [json.loads(item["arguments"])["city"] for item in last["response"]["output"]] == ["Bern", "Thun"]


def test_a_client_gets_the_id_and_the_name_of_a_call_once():
    events, _ = stream(OPENAI, Seat(OPENAI, *PARALLEL["the name and the id in every piece"], END))
    pieces = [call for event in events for call in event["choices"][0]["delta"].get("tool_calls", ())]
    assert [call["index"] for call in pieces] == [0, 0, 1, 1]
    assert ["id" in call for call in pieces] == [True, False, True, False]
    assert ["name" in call["function"] for call in pieces] == [True, False, True, False]


CALL = {"type": "function", "function": {"name": "weather", "arguments": "{}"}}
CONTENT = {"parts": [{"functionCall": {"name": "weather", "args": {}}}] * 2}
BLOCK = {"type": "tool_use", "name": "weather", "input": {}}


def make_completion(*calls: dict[str, Any], **head: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": None, "tool_calls": list(calls)}
    return {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}], **head}


ANSWERS: list[tuple[str, dict[str, Any]]] = [
    (OPENAI, make_completion(CALL, CALL)),
    (OPENAI, make_completion({**CALL, "id": ""}, {**CALL, "id": None}, id="", created=1)),
    (OPENAI, make_completion({**CALL, "id": "call_0"}, {**CALL, "id": "call_0"}, id="chatcmpl-0")),
    ("google", {"candidates": [{"content": CONTENT, "finishReason": "STOP"}]}),
    ("google", {"candidates": [{"content": CONTENT, "finishReason": "STOP"}], "responseId": "r"}),
    (ANTHROPIC, {"content": [BLOCK, {**BLOCK, "id": ""}], "stop_reason": "tool_use", "role": "assistant"}),
    (ANTHROPIC, {"content": [{**BLOCK, "id": "t"}] * 2, "stop_reason": "tool_use", "id": "msg_0"}),
]


@pytest.mark.parametrize("client_api", [OPENAI, ANTHROPIC])
@pytest.mark.parametrize(("api", "answer"), ANSWERS)
def test_two_equal_answers_have_four_calls_and_two_ids(client_api: str, api: str, answer: dict[str, Any]):
    adapted = adapt_backend(client_api, Seat(api, answer))
    made = [adapted.post(PATHS[client_api], BODY, StageContext()) for _ in range(2)]
    assert made[0]["id"]
    assert made[1]["id"] not in ("", made[0]["id"])
    ids = [call[0] for each in made for call in find_calls(client_api, each)]
    assert len(set(ids)) == 4
    assert all(map(ANTHROPIC_ID.accepts, ids))


@pytest.mark.parametrize("client_api", [OPENAI, ANTHROPIC])
@pytest.mark.parametrize("head", [{}, {"id": ""}, {"id": None}, {"id": "chatcmpl-0"}])
def test_a_stream_has_one_id_of_its_own(client_api: str, head: dict[str, Any]):
    seat = Seat(OPENAI, chunk(piece("{}", "weather", index=0), **head), {**END, **head})
    streams = [stream(client_api, seat) for _ in range(2)]
    first, second = (answer["id"] for _, answer in streams)
    assert first
    assert second not in ("", first)
    if client_api == OPENAI:
        assert {event["id"] for event in streams[0][0]} == {first}
    else:
        assert first.startswith("msg_")


def test_a_text_completion_has_an_id():
    seat = Seat(OPENAI, {"choices": [{"index": 0, "text": "x", "finish_reason": "stop"}]})
    body = {"model": "m", "prompt": "x"}
    adapted = adapt_backend(OPENAI, seat)
    assert adapted.post(COMPLETIONS, body, StageContext())["id"].startswith("cmpl-")
    (event,) = adapted.stream(COMPLETIONS, body, StageContext())
    assert event["object"] == "text_completion"
    assert event["id"].startswith("cmpl-")


def make_history(api: str, calls: list[str], name: str = "weather") -> dict[str, Any]:
    """A request with two tool calls of these ids, and their results "a" and "b"."""
    if api == OPENAI:
        made = [{**CALL, "id": call_id, "function": {**CALL["function"], "name": name}} for call_id in calls]
        results = [
            {"role": "tool", "tool_call_id": call_id, "content": text}
            for call_id, text in zip(calls, "ab", strict=True)
        ]
        messages = [*BODY["messages"], {"role": "assistant", "tool_calls": made}, *results]
        tools: list[Any] = [
            {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
        ]
    else:
        blocks = [{**BLOCK, "id": call_id, "name": name} for call_id in calls]
        results = [
            {"type": "tool_result", "tool_use_id": call_id, "content": text}
            for call_id, text in zip(calls, "ab", strict=True)
        ]
        turn = [{"role": "assistant", "content": blocks}, {"role": "user", "content": results}]
        messages = [*BODY["messages"], *turn]
        tools = [{"name": name, "input_schema": {"type": "object"}}]
    return {**BODY, "messages": messages, "tools": tools}


def find_sent_ids(api: str, request: dict[str, Any]) -> tuple[list[str], list[str]]:
    """The ids of the calls and those of the results."""
    if api == OPENAI:
        calls = [call["id"] for each in request["messages"] for call in each.get("tool_calls", ())]
        return calls, [each["tool_call_id"] for each in request["messages"] if each["role"] == "tool"]
    blocks = [
        block
        for each in request["messages"]
        if isinstance(each["content"], list)
        for block in each["content"]
    ]
    calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
    return calls, [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]


@pytest.mark.parametrize("client_api", [OPENAI, ANTHROPIC])
@pytest.mark.parametrize("api", [OPENAI, ANTHROPIC])
@pytest.mark.parametrize(
    "ids", [["functions.weather:0", "functions.weather:1"], ["call_0", "call_0"], ["", "x"], ["é", "x" * 200]]
)
@pytest.mark.parametrize("model", ["m", "mistral-large"])
def test_ids_of_a_history_fit_the_seat(client_api: str, api: str, ids: list[str], model: str):
    seat = Seat(api, ANSWERS[0][1] if api == OPENAI else ANSWERS[-1][1])
    body = {**make_history(client_api, ids), "model": model}
    adapt_backend(client_api, seat).post(PATHS[client_api], body, StageContext())
    calls, results = find_sent_ids(api, seat.requests[0])
    assert results == calls
    assert len(set(calls)) == 2
    rule = ANTHROPIC_ID if api == ANTHROPIC else MISTRAL_ID
    if api == ANTHROPIC or model != "m":
        assert all(map(rule.accepts, calls))


@pytest.mark.parametrize("client_api", [OPENAI, ANTHROPIC])
@pytest.mark.parametrize("api", [OPENAI, ANTHROPIC])
def test_a_seat_gets_the_ids_back_that_it_gave(client_api: str, api: str):
    stated = ["functions.weather:0", "functions.weather:1"] if api == OPENAI else ["toolu_01A", "toolu_01B"]
    if api == OPENAI:
        sent = make_completion(*({**CALL, "id": call_id} for call_id in stated))
    else:
        sent = {**ANSWERS[-1][1], "content": [{**BLOCK, "id": call_id} for call_id in stated]}
    seat = Seat(api, sent)
    adapted = adapt_backend(client_api, seat)
    answer = adapted.post(PATHS[client_api], BODY, StageContext())
    history = make_history(client_api, [call[0] for call in find_calls(client_api, answer)])
    adapted.post(PATHS[client_api], history, StageContext())
    assert find_sent_ids(api, seat.requests[1]) == (stated, stated)


LONG = "mcp__plugin_some_long_name__" + "tool" * 30


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(("client_api", "api"), [(OPENAI, ANTHROPIC), (ANTHROPIC, OPENAI)])
def test_names_are_fitted_and_restored(client_api: str, api: str, streaming: bool):
    class Echo(Seat):
        """A seat that calls the first tool it gets."""

        def post(self, path: str, body: dict[str, Any], context: StageContext) -> dict[str, Any]:
            if api == OPENAI:
                name = body["tools"][0]["function"]["name"]
                return make_completion({**CALL, "id": "x", "function": {**CALL["function"], "name": name}})
            self.requests.append(body)
            block = {**BLOCK, "id": "x", "name": body["tools"][0]["name"]}
            return {**ANSWERS[-1][1], "content": [block]}

        def stream(self, path: str, body: dict[str, Any], context: StageContext) -> Generator[dict[str, Any]]:
            answer = self.post(path, body, context)
            if api == OPENAI:
                (choice,) = answer["choices"]
                yield chunk(*choice["message"]["tool_calls"])
                yield END
                return
            usage = {"input_tokens": 1, "output_tokens": 1}
            yield {"type": "message_start", "message": {**answer, "content": [], "usage": usage}}
            yield {"type": "content_block_start", "index": 0, "content_block": answer["content"][0]}
            yield {"type": "content_block_stop", "index": 0}
            yield {
                "type": "message_delta",
                "delta": {"stop_reason": "tool_use"},
                "usage": {"output_tokens": 1},
            }

    body = make_history(client_api, ["a", "b"], LONG)
    choice = (
        {"type": "function", "function": {"name": LONG}}
        if client_api == OPENAI
        else {"type": "tool", "name": LONG}
    )
    body["tool_choice"] = choice
    seat = Echo(api)
    if streaming:
        answer = stream(client_api, seat, body)[1]
    else:
        answer = adapt_backend(client_api, seat).post(PATHS[client_api], body, StageContext())
    assert [call[1] for call in find_calls(client_api, answer)] == [LONG]
    for request in seat.requests:
        assert request["tool_choice"]["name"] == request["tools"][0]["name"] != LONG
        blocks = itertools.chain.from_iterable(each["content"] for each in request["messages"])
        assert {block["name"] for block in blocks if block["type"] == "tool_use"} == {
            request["tools"][0]["name"]
        }
