"""Models that think between their tool calls get back what they wrote, and nothing of another model.

Two questions, each with two calls before the answer: six requests, at seats that reject what their vendors
reject, by clients of each API.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from gridq.profiles.profile import StageContext
from gridq.protocol.models import StageCall
from tests.fakes.reasoning_seats import (
    AnthropicSeat,
    ChatSeat,
    DeepSeekSeat,
    GoogleSeat,
    ReasoningSeat,
    ResponsesSeat,
    RouterSeat,
    StrictSeat,
)
from workers.model_apis.api_request import ANTHROPIC, CHAT, MESSAGES, OPENAI, RESPONSES, parse_api_request
from workers.model_apis.forwarding import forward_request

STAGE = StageCall(id="s", name="s", path="$", implementation="llm:api_request", effects=[])
PARAMETERS = {"type": "object", "properties": {"step": {"type": "integer"}}}
FUNCTION = {"name": "weather", "description": "d", "parameters": PARAMETERS}


class Client:
    """The base of a client, which keeps its history. `ask` asks a question and runs the calls."""

    api = path = ""

    def __init__(self, *, streams: bool, **options: Any) -> None:
        self.streams = streams
        self.options = options
        self.history: list[Any] = []

    def ask(self, seat: Any, model: str = "gemini-3-pro", text: str = "How warm is it?") -> int:
        """Return the number of requests."""
        self.history.append({"role": "user", "content": text})
        for number in range(1, 9):
            if not self.step(seat, model):
                return number
        raise AssertionError("it never answers")

    def step(self, seat: Any, model: str) -> bool:
        """Send the history. Return whether the answer has calls."""
        body = {"model": model, "stream": self.streams, **self.options, **self.make_body()}
        request = parse_api_request(STAGE, {"api": self.api, "path": self.path, "body": body})
        context = StageContext(emit=lambda piece: None) if self.streams else StageContext()
        answer = forward_request(request, model, context, seat)
        return self.add(json.loads(json.dumps(answer)))

    def make_body(self) -> dict[str, Any]:
        raise NotImplementedError

    def add(self, answer: dict[str, Any]) -> bool:
        """Add an answer, and the results of its calls. Return whether there are any."""
        raise NotImplementedError


class ChatClient(Client):
    """Returns whole messages, or only what it knows of them."""

    api, path = OPENAI, CHAT
    known: tuple[str, ...] = ()

    def make_body(self) -> dict[str, Any]:
        return {"messages": self.history, "tools": [{"type": "function", "function": FUNCTION}]}

    def add(self, answer: dict[str, Any]) -> bool:
        message = answer["choices"][0]["message"]
        if self.known:
            message = {name: message[name] for name in self.known if message.get(name) is not None}
        self.history.append(message)
        calls = message.get("tool_calls") or []
        self.history += [{"role": "tool", "tool_call_id": each["id"], "content": "7"} for each in calls]
        return bool(calls)


class PickingClient(ChatClient):
    """Returns what clients of DeepSeek know."""

    known = ("role", "content", "tool_calls", "reasoning_content", "reasoning")


class PlainClient(ChatClient):
    """Knows OpenAI's own fields alone."""

    known = ("role", "content", "tool_calls")

    def add(self, answer: dict[str, Any]) -> bool:
        for call in answer["choices"][0]["message"].get("tool_calls") or ():
            call.pop("extra_content", None)
        return super().add(answer)


class MessagesClient(Client):
    api, path = ANTHROPIC, MESSAGES

    def make_body(self) -> dict[str, Any]:
        tool = {"name": "weather", "description": "d", "input_schema": PARAMETERS}
        return {"max_tokens": 4000, "messages": self.history, "tools": [tool]}

    def add(self, answer: dict[str, Any]) -> bool:
        self.history.append({"role": "assistant", "content": answer["content"]})
        calls = [block for block in answer["content"] if block["type"] == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": call["id"], "content": "7"} for call in calls]
        if calls:
            self.history.append({"role": "user", "content": results})
        return bool(calls)


class ResponsesClient(Client):
    """Returns the fields of each item that the API has, as typed clients do."""

    api, path = RESPONSES, RESPONSES
    known = {"id", "type", "role", "content", "status", "call_id", "name", "arguments"} | {
        "summary",
        "encrypted_content",
    }

    def make_body(self) -> dict[str, Any]:
        return {"input": self.history, "tools": [{"type": "function", **FUNCTION}], "store": False}

    def add(self, answer: dict[str, Any]) -> bool:
        for item in answer["output"]:
            self.history.append({name: item[name] for name in item if name in self.known})
        calls = [item for item in answer["output"] if item["type"] == "function_call"]
        for call in calls:
            output = {"type": "function_call_output", "call_id": call["call_id"], "output": "7"}
            self.history.append(output)
        return bool(calls)


BUDGET = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 4000}
ENCRYPTED: dict[str, Any] = {"include": ["reasoning.encrypted_content"], "reasoning": {"effort": "high"}}
CLIENTS: list[tuple[type[Client], dict[str, Any]]] = [
    (ChatClient, BUDGET),
    (ChatClient, {"reasoning_effort": "high"}),
    (PickingClient, {"reasoning_effort": "high"}),
    (MessagesClient, BUDGET),
    (ResponsesClient, ENCRYPTED),
    (ResponsesClient, {"reasoning": {"effort": "high", "summary": "auto"}}),
]
NAMES = ["chat with a budget", "chat", "picking chat", "messages", "responses", "responses with a summary"]
SEATS: list[type[ReasoningSeat]] = [
    *(AnthropicSeat, ChatSeat, DeepSeekSeat, RouterSeat, GoogleSeat, StrictSeat)
]
RETURNED = {AnthropicSeat: 10, ChatSeat: 5, DeepSeekSeat: 5, RouterSeat: 5, GoogleSeat: 4, StrictSeat: 0}
"""Thoughts that come back with the last of six requests. Anthropic's have two blocks, Google signs calls."""


def make_client(number: int, streams: bool, seat: Any) -> Client:
    kind, options = CLIENTS[number]
    takes_budget = not isinstance(seat, ChatSeat)
    kept = {
        name: options[name] for name in options if takes_budget or name != "thinking" or kind.api != OPENAI
    }
    return kind(streams=streams, **kept)


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("seat_type", SEATS)
@pytest.mark.parametrize("number", range(len(CLIENTS)), ids=NAMES)
def test_a_model_gets_its_own_thoughts_back(seat_type: type[ReasoningSeat], number: int, streams: bool):
    seat = seat_type()
    client = make_client(number, streams, seat)
    assert [client.ask(seat), client.ask(seat)] == [3, 3]
    drops_signatures = (seat_type, CLIENTS[number][0]) == (AnthropicSeat, PickingClient)
    assert seat.returned == (0 if drops_signatures else RETURNED[seat_type])


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
def test_anthropics_own_signatures_stay_as_they_are(streams: bool):
    """A history made here may go on at the vendor itself."""
    seat = AnthropicSeat()
    seat.url = "https://api.anthropic.com/v1"
    client = MessagesClient(streams=streams, **BUDGET)
    client.ask(seat)
    assert client.history[1]["content"][0]["signature"] == seat.last["messages"][1]["content"][0]["signature"]


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
def test_a_vendor_with_responses_gets_its_own_reasoning_back(streams: bool):
    seat = ResponsesSeat()
    client = ResponsesClient(streams=streams, **ENCRYPTED)
    assert [client.ask(seat), client.ask(seat)] == [3, 3]
    assert seat.returned == 5


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("seat_type", [AnthropicSeat, GoogleSeat, StrictSeat])
def test_a_client_that_knows_openais_fields_alone_goes_on(seat_type: type[ReasoningSeat], streams: bool):
    seat = seat_type()
    client = PlainClient(streams=streams)
    assert [client.ask(seat), client.ask(seat)] == [3, 3]
    assert seat.returned == 0


@pytest.mark.parametrize(
    ("first", "other"),
    [(first, other) for first in SEATS for other in (*SEATS, "model", "host") if other is not first],
)
@pytest.mark.parametrize("number", range(len(CLIENTS)), ids=NAMES)
def test_another_model_gets_none_of_it(first: type[ReasoningSeat], other: Any, number: int):
    seat = first()
    client = make_client(number, False, seat)
    client.ask(seat)
    if other == "host":
        next_seat = first("https://b.deepseek.com/v1" if first is DeepSeekSeat else "https://b.invalid/v1")
    else:
        next_seat = seat if other == "model" else other()
    client.options = make_client(number, False, next_seat).options
    client.options.pop("max_tokens", None)
    model = "gemini-3-flash"
    assert client.ask(next_seat, model) == 3
    assert next_seat.returned * 2 <= RETURNED[type(next_seat)]
    assert client.ask(seat) == 3, "and the first one gets its own again"
    assert "gridq." not in json.dumps([seat.last, next_seat.last])


@pytest.mark.parametrize("other", [*SEATS, "account", "model"])
def test_another_than_a_vendor_with_responses_gets_none_of_it(other: Any):
    seat = ResponsesSeat()
    client = ResponsesClient(streams=False, **ENCRYPTED)
    client.ask(seat)
    next_seat = ResponsesSeat(key="l") if other == "account" else seat if other == "model" else other()
    assert client.ask(next_seat, "gemini-3-flash") == 3
    assert client.ask(seat) == 3
    assert seat.returned > 2


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("second", [AnthropicSeat, DeepSeekSeat, GoogleSeat, StrictSeat])
@pytest.mark.parametrize("first", SEATS)
def test_a_loop_of_calls_may_go_on_elsewhere(
    first: type[ReasoningSeat], second: type[ReasoningSeat], streams: bool
):
    """Another seat takes over after the first call, and the client asks for no reasoning."""
    for kind in (ChatClient, PlainClient, MessagesClient, ResponsesClient):
        client = kind(streams=streams)
        seats = [first(), second()]
        client.history.append({"role": "user", "content": "hi"})
        assert client.step(seats[0], "gemini-3-pro")
        assert client.step(seats[1], "gemini-3-flash")
        assert not client.step(seats[1], "gemini-3-flash")
