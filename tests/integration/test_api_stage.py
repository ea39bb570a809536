"""The stage `llm:api_request` on seats of each API format: requests, answers and failures."""

from __future__ import annotations

import base64
import itertools
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gridq.errors import (
    GridError,
    JobCancelled,
    RequestRefused,
    SeatDegraded,
    SeatRateLimited,
    SeatUnavailable,
    StageError,
    StageTimeout,
)
from gridq.profiles.profile import StageContext
from gridq.protocol.betas import ANY_BETA
from gridq.protocol.models import Effect, Json, StageCall, Usage
from tests.fakes.anthropic_server import KEY as ANTHROPIC_KEY
from tests.fakes.anthropic_server import AnthropicServer
from tests.fakes.client_types import CHUNK, COMPLETION, EMBEDDINGS, EVENT, MESSAGE, TEXT_COMPLETION, valid
from tests.fakes.openai_server import CALL, KEY, OpenAIServer, logprobs
from workers.model_apis import stages
from workers.model_apis.anthropic.client import AnthropicClient
from workers.model_apis.api_request import parse_api_request
from workers.model_apis.forwarding import forward_request
from workers.model_apis.openai.client import OpenAIClient
from workers.profiles.llm import LlmProfile
from workers.profiles.llm.capability import LlmCapability

STAGE = StageCall(
    id="s",
    name="llm_api_request",
    path="$.a",
    implementation="llm:api_request",
    effects=[Effect(effect="Llm", model="any")],
)
WORDS = [{"role": "user", "content": "so it goes on"}]
MODELS = [
    *("echo", "tools", "reasoning", "thinking", "unmetered", "packs", "whole", "silent", "poor", "malformed"),
    "pausing",
    *("cut", "cut-first", "error-event", "error-late", "status-400-too_long-messages"),
    *(f"status-{status}" for status in (400, 401, 404, 413, 429, 500, 529)),
]


@pytest.fixture(scope="module")
def openai_server() -> Iterator[OpenAIServer]:
    with OpenAIServer(key=KEY) as running:
        yield running


@pytest.fixture(scope="module")
def anthropic_server() -> Iterator[AnthropicServer]:
    with AnthropicServer() as running:
        yield running


def opened(url: str, key: str, api: str) -> Iterator[LlmProfile]:
    profile = LlmProfile()
    models = [{"name": name, "price_in": 1, "price_out": 10} for name in MODELS]
    table = {"name": "main", "url": url, "api": api, "key_env": "WIRE_KEY", "models": models}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WIRE_KEY", key)
        (offer,) = profile.probe([{**table, "allow_loopback": True}]).found
        profile.open(LlmCapability.model_validate(offer.capability), offer.config)
    yield profile
    profile.close()


@pytest.fixture(scope="module")
def openai_seat(openai_server: OpenAIServer) -> Iterator[LlmProfile]:
    yield from opened(openai_server.url, KEY, "openai")


@pytest.fixture(scope="module")
def anthropic_seat(anthropic_server: AnthropicServer) -> Iterator[LlmProfile]:
    yield from opened(anthropic_server.url, ANTHROPIC_KEY, "anthropic")


@pytest.fixture(params=["openai", "anthropic"])
def seat(request: pytest.FixtureRequest) -> LlmProfile:
    """A seat of each API format in turn."""
    profile: LlmProfile = request.getfixturevalue(f"{request.param}_seat")
    return profile


def run(
    profile: LlmProfile, api: str, path: str, body: dict[str, Any], context: StageContext | None = None
) -> Any:
    value = {"api": api, "path": path, "body": body, "model": body["model"]}
    return profile.run(STAGE, value, context or StageContext())


def chat(profile: LlmProfile, model: str, context: StageContext | None = None, **more: Any) -> Any:
    body = {"model": model, "messages": WORDS, **more}
    return run(profile, "openai", "chat/completions", body, context)


def messages(profile: LlmProfile, model: str, context: StageContext | None = None, **more: Any) -> Any:
    body = {"model": model, "max_tokens": 50, "messages": WORDS, **more}
    return run(profile, "anthropic", "messages", body, context)


def test_a_body_is_forwarded_unchanged(openai_seat: LlmProfile, openai_server: OpenAIServer):
    fields = {"seed": 7, "vendor_thing": {"deep": [1, None]}, "temperature": None, "n": 2, "stream": True}
    context = StageContext()
    answer = chat(openai_seat, "echo", context, stream_options={"include_usage": True}, **fields)
    sent = openai_server.requests[-1]["body"]
    del fields["stream"]
    assert sent == {"model": "echo", "messages": WORDS, **fields}
    assert valid(COMPLETION, answer).usage.total_tokens == 8
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["so it goes on "] * 2
    assert answer["model"] == "the-real-name"
    assert context.usage == Usage(tokens_in=4, tokens_out=4, micro_dollars=44)


def test_chunks_are_forwarded_unchanged(openai_seat: LlmProfile, openai_server: OpenAIServer):
    pieces: list[Any] = []
    context = StageContext(emit=pieces.append)
    answer = chat(openai_seat, "echo", context, n=2)
    assert openai_server.requests[-1]["body"]["stream"] is True
    assert openai_server.requests[-1]["body"]["stream_options"] == {"include_usage": True}
    for piece in pieces:
        valid(CHUNK, piece)
    assert {piece["system_fingerprint"] for piece in pieces} == {"fp_1"}
    assert pieces[1]["choices"][0]["logprobs"] == logprobs("so ")
    assert all(piece["choices"] for piece in pieces), "the usage was not asked for"
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["so it goes on "] * 2
    tokens = [each["token"] for each in answer["choices"][1]["logprobs"]["content"]]
    assert tokens == ["so ", "it ", "goes ", "on "]
    assert answer["object"] == "chat.completion"
    assert answer["usage"]["completion_tokens"] == 4
    assert context.usage == Usage(tokens_in=4, tokens_out=4, micro_dollars=44)


def test_the_opening_of_a_stream_goes_together_with_its_first_word(anthropic_seat: LlmProfile):
    together: list[Any] = []
    messages(anthropic_seat, "echo", StageContext(emit=lambda piece: None, emit_together=together.append))
    assert [event["type"] for event in together[0]][:2] == ["message_start", "content_block_start"]
    assert [event["type"] for event in together[0]].count("content_block_delta") == 1
    assert len(together) == 1


@pytest.mark.parametrize("model", ["echo", "unmetered"])
def test_requested_usage_comes_in_the_last_chunk(openai_seat: LlmProfile, model: str):
    pieces: list[Any] = []
    context = StageContext(emit=pieces.append)
    answer = chat(openai_seat, model, context, stream_options={"include_usage": True, "vendor": 1})
    assert [bool(piece["choices"]) for piece in pieces[-2:]] == [True, False]
    valid(CHUNK, pieces[-1])
    assert pieces[-1]["usage"]["completion_tokens"] >= 4
    assert answer["usage"] == pieces[-1]["usage"]


def test_usage_is_in_every_answer_and_charged(openai_seat: LlmProfile):
    context = StageContext()
    assert valid(COMPLETION, chat(openai_seat, "unmetered", context)).usage.prompt_tokens > 0
    assert context.usage.micro_dollars > 0


class Extending(StageContext):
    """A context whose deadline moves with each piece, as that of a stage without its own timeout does."""

    seconds = 1.5

    def __init__(self) -> None:
        super().__init__(deadline=time.monotonic() + self.seconds, emit=lambda piece: None)

    def emit(self, *pieces: Json) -> None:
        self.deadline = time.monotonic() + self.seconds


@pytest.mark.parametrize("call", [chat, messages])
def test_a_call_lasts_as_long_as_its_stream_flows(
    openai_seat: LlmProfile, call: Callable[[LlmProfile, str, StageContext], Any]
):
    begun = time.monotonic()
    call(openai_seat, "pausing", Extending())
    assert time.monotonic() - begun > Extending.seconds + 0.5
    with pytest.raises(StageTimeout):
        call(openai_seat, "silent", Extending())


@pytest.mark.parametrize(("limit", "sent"), [({}, 16), ({"max_tokens": None}, 16), ({"max_tokens": 40}, 40)])
@pytest.mark.parametrize("stream", [True, False])
def test_completions_have_the_default_length_of_their_api(
    openai_seat: LlmProfile, openai_server: OpenAIServer, limit: dict[str, Any], sent: int, stream: bool
):
    body = {"model": "echo", "prompt": "one two", **limit}
    run(openai_seat, "openai", "completions", body, StageContext(emit=list[Any]().append if stream else None))
    assert openai_server.requests[-1]["body"]["max_tokens"] == sent
    estimate = stages.estimate_usage(STAGE, {"api": "openai", "path": "completions", "body": body})
    assert estimate.tokens_out == sent


def test_completions(openai_seat: LlmProfile):
    pieces: list[Any] = []
    body = {"model": "echo", "prompt": "one two"}
    answer = run(openai_seat, "openai", "completions", body)
    assert valid(TEXT_COMPLETION, answer).choices[0].text == "one two "
    streamed = run(openai_seat, "openai", "completions", body, StageContext(emit=pieces.append))
    assert streamed["object"] == "text_completion"
    assert pieces


def test_a_whole_answer_to_a_streaming_request_becomes_a_stream(openai_seat: LlmProfile):
    pieces: list[Any] = []
    answer = chat(openai_seat, "whole", StageContext(emit=pieces.append))
    for piece in pieces:
        valid(CHUNK, piece)
    assert pieces[0]["choices"][0]["delta"]["content"] == "so it goes on "
    valid(COMPLETION, answer)


@pytest.mark.parametrize("model", ["echo", "packs"])
@pytest.mark.parametrize("wanted", [None, "float", "base64"])
def test_embeddings_have_the_requested_format(openai_seat: LlmProfile, model: str, wanted: str | None):
    body = {"model": model, "input": ["a", "bcd"], **({"encoding_format": wanted} if wanted else {})}
    context = StageContext()
    answer = run(openai_seat, "openai", "embeddings", body, context)
    valid(EMBEDDINGS, {**answer, "data": [{**item, "embedding": [0.0]} for item in answer["data"]]})
    vectors = [item["embedding"] for item in answer["data"]]
    if wanted == "base64":
        vectors = [list(struct.unpack("<2f", base64.b64decode(vector))) for vector in vectors]
    assert vectors == [[1.0, 1.0], [3.0, 1.0]], "in the order of the input"
    assert context.usage == Usage(tokens_in=2, micro_dollars=2)


@pytest.mark.parametrize("tokens", [[1, 2], [[1, 2], [3]]])
def test_tokens_of_another_vocabulary_are_refused_by_name(openai_seat: LlmProfile, tokens: Any):
    with pytest.raises(StageError) as caught:
        run(openai_seat, "openai", "embeddings", {"model": "echo", "input": tokens})
    assert caught.value.details["param"] == "input"
    assert caught.value.details["status"] == 400


def test_dimensions_are_forwarded(openai_seat: LlmProfile, openai_server: OpenAIServer):
    run(openai_seat, "openai", "embeddings", {"model": "echo", "input": "x", "dimensions": 2})
    assert openai_server.requests[-1]["body"]["dimensions"] == 2


TOOLS = [{"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}]
FUNCTIONS = [{"type": "function", "function": {"name": "weather", "parameters": TOOLS[0]["input_schema"]}}]


@pytest.mark.parametrize("streaming", [False, True])
def test_either_client_is_answered_by_either_seat(seat: LlmProfile, streaming: bool):
    pieces: list[Any] = []

    def context() -> StageContext:
        return StageContext(emit=pieces.append if streaming else None)

    message = valid(MESSAGE, messages(seat, "echo", context()))
    assert message.content[0].text.split() == ["so", "it", "goes", "on"]
    assert message.usage.input_tokens > 0
    assert message.usage.output_tokens > 0
    for piece in pieces:
        valid(EVENT, piece)
    pieces.clear()
    call = valid(MESSAGE, messages(seat, "tools", context(), tools=TOOLS)).content[-1]
    assert (call.name, call.input) == ("weather", {"city": "Bern"})
    pieces.clear()
    whole = valid(COMPLETION, chat(seat, "echo", context()))
    assert whole.choices[0].message.content.split() == ["so", "it", "goes", "on"]
    for piece in pieces:
        valid(CHUNK, piece)
    whole = valid(COMPLETION, chat(seat, "tools", context(), tools=FUNCTIONS))
    (called,) = whole.choices[0].message.tool_calls
    assert (called.function.name, called.function.arguments.replace(" ", "")) == (
        "weather",
        CALL["function"]["arguments"],
    )
    assert whole.choices[0].finish_reason == "tool_calls"


def test_the_other_stages_run_at_an_anthropic_seat(anthropic_seat: LlmProfile):
    pieces: list[Any] = []
    call = STAGE.model_copy(update={"implementation": "llm:complete"})
    value = {"prompt": "one two", "model": "echo", "system": "brief"}
    assert anthropic_seat.run(call, value, StageContext()) == "one two"
    assert anthropic_seat.run(call, value, StageContext(emit=pieces.append)) == "one two "
    assert pieces == ["one ", "two "]


def test_an_anthropic_seat_lists_its_models(
    anthropic_server: AnthropicServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("WIRE_KEY", ANTHROPIC_KEY)
    table = {"name": "a", "url": anthropic_server.url, "api": "anthropic", "key_env": "WIRE_KEY"}
    (offer,) = LlmProfile().probe([{**table, "allow_loopback": True}]).found
    assert [model["name"] for model in offer.capability["models"]] == ["echo"]


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({}, 128_000),
        ({"thinking": {"type": "enabled", "budget_tokens": 20_000}}, 128_000),
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 9}, 9),
    ],
)
def test_a_chat_has_the_longest_answer_of_the_model_if_it_states_none(
    anthropic_seat: LlmProfile, anthropic_server: AnthropicServer, fields: dict[str, Any], sent: int
):
    chat(anthropic_seat, "echo", **fields)
    assert anthropic_server.requests[-1]["body"]["max_tokens"] == sent


HINTS = ["context-management-2025-06-27", "interleaved-thinking-2025-05-14"]
FILES = "files-api-2025-04-14"
FILE: Json = {"type": "document", "source": {"type": "file", "file_id": "file_1"}}


def send_betas(
    client: Any, context: StageContext, content: Json = "hi", betas: Any = (*HINTS, FILES)
) -> None:
    """Send a request with betas."""
    body = {"model": "echo", "max_tokens": 5, "messages": [{"role": "user", "content": content}]}
    value = {"api": "anthropic", "path": "messages", "body": body, "betas": list(betas)}
    forward_request(parse_api_request(STAGE, value), "echo", context, client)


@pytest.mark.parametrize(
    ("allowed", "sent"),
    [((ANY_BETA,), HINTS), ((FILES,), [FILES]), ((), []), ((ANY_BETA, FILES), [*HINTS, FILES])],
)
@pytest.mark.parametrize("streaming", [False, True])
def test_betas_that_the_owner_allows_reach_the_endpoint(
    anthropic_server: AnthropicServer, allowed: tuple[str, ...], sent: list[str], streaming: bool
):
    client = AnthropicClient(anthropic_server.url, ANTHROPIC_KEY)
    client.allowed_betas = allowed
    context = StageContext(emit=lambda piece: None) if streaming else StageContext()
    send_betas(client, context)
    headers = anthropic_server.requests[-1]["headers"]
    assert headers.get("anthropic-beta", "") == ",".join(sent)
    assert "anthropic_beta" not in anthropic_server.requests[-1]["body"]
    left = [beta for beta in (*HINTS, FILES) if beta not in sent]
    assert context.dropped_fields == [f"anthropic-beta: {beta}" for beta in left]
    if FILES not in sent:
        with pytest.raises(StageError) as caught:
            send_betas(client, StageContext(), [FILE])
        assert caught.value.details["param"] == "anthropic-beta"
        assert caught.value.details["status"] == 400
    client.close()


def test_a_seat_of_another_api_says_which_betas_have_no_effect(openai_server: OpenAIServer):
    client = OpenAIClient(openai_server.url, KEY)
    context = StageContext()
    send_betas(client, context)
    assert context.dropped_fields == [f"anthropic-beta: {beta}" for beta in (*HINTS, FILES)]
    with pytest.raises(StageError) as caught:
        send_betas(client, StageContext(), [FILE])
    assert caught.value.details["param"] == "anthropic-beta"
    client.close()


def test_an_empty_answer_that_fills_the_vendors_cache_is_passed_on(
    anthropic_seat: LlmProfile, anthropic_server: AnthropicServer
):
    messages(anthropic_seat, "echo", max_tokens=0)
    assert anthropic_server.requests[-1]["body"]["max_tokens"] == 0
    chat(anthropic_seat, "echo", max_tokens=0)
    assert anthropic_server.requests[-1]["body"]["max_tokens"] == 0


def test_a_thinking_budget_is_smaller_than_a_length_that_nobody_states(
    anthropic_seat: LlmProfile, anthropic_server: AnthropicServer
):
    chat(anthropic_seat, "thinking", thinking={"type": "enabled", "budget_tokens": 20_000})
    assert anthropic_server.requests[-1]["body"]["max_tokens"] > 20_000


def test_thinking_is_translated_between_the_apis(openai_seat: LlmProfile, anthropic_seat: LlmProfile):
    pieces: list[Any] = []
    thinking = {"type": "enabled", "budget_tokens": 1024}
    context = StageContext(emit=pieces.append)
    message = valid(MESSAGE, messages(openai_seat, "reasoning", context, max_tokens=2000, thinking=thinking))
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert message.content[0].thinking == "let me see"
    completion = chat(anthropic_seat, "thinking", StageContext(emit=pieces.append))
    assert completion["choices"][0]["message"]["reasoning_content"] == "let me see"


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("model", "error"),
    [
        ("status-400", StageError),
        ("status-404", RequestRefused),
        ("status-413", StageError),
        ("status-401", SeatDegraded),
        ("status-429", SeatRateLimited),
        ("status-500", SeatUnavailable),
        ("status-529", SeatUnavailable),
    ],
)
@pytest.mark.parametrize("ask", [chat, messages])
def test_a_refusal_becomes_its_error(
    seat: LlmProfile, ask: Any, model: str, error: type[GridError], streaming: bool
):
    context = StageContext(emit=(lambda piece: None) if streaming else None)
    with pytest.raises(error) as caught:
        ask(seat, model, context)
    assert type(caught.value) is error
    assert caught.value.details["status"] == int(model.split("-")[1])
    assert caught.value.reason == f"refused with {model.split('-')[1]}"


def test_the_endpoints_code_and_field_are_in_the_error(openai_seat: LlmProfile):
    with pytest.raises(StageError) as caught:
        chat(openai_seat, "status-400-too_long-messages")
    assert caught.value.details["endpoint_code"] == "too_long"
    assert caught.value.details["param"] == "messages"
    assert caught.value.path == STAGE.path, "of a field in the graph the endpoint knows nothing"


def test_an_account_without_credit_degrades_the_seat(anthropic_seat: LlmProfile):
    with pytest.raises(SeatDegraded, match="credit"):
        messages(anthropic_seat, "poor")


@pytest.mark.parametrize("model", ["cut-first", "error-event"])
@pytest.mark.parametrize("ask", [chat, messages])
def test_a_stream_that_fails_before_its_first_piece_is_the_seats_fault(
    seat: LlmProfile, ask: Any, model: str
):
    pieces: list[Any] = []
    with pytest.raises(SeatUnavailable):
        ask(seat, model, StageContext(emit=pieces.append))
    assert pieces == [], "another seat can still be asked"


@pytest.mark.parametrize("model", ["cut", "error-late"])
@pytest.mark.parametrize("ask", [chat, messages])
def test_a_stream_that_breaks_off_is_the_seats_fault(seat: LlmProfile, ask: Any, model: str):
    pieces: list[Any] = []
    with pytest.raises(SeatUnavailable):
        ask(seat, model, StageContext(emit=pieces.append))
    assert pieces


@pytest.mark.parametrize("ask", [chat, messages])
def test_an_answer_that_is_not_json_is_the_seats_fault(openai_seat: LlmProfile, ask: Any):
    with pytest.raises(SeatUnavailable, match="not JSON"):
        ask(openai_seat, "malformed")


@pytest.mark.parametrize("ask", [chat, messages])
@pytest.mark.parametrize("streaming", [False, True])
def test_cancel_and_deadline_end_the_call(
    seat: LlmProfile, request: pytest.FixtureRequest, ask: Any, streaming: bool
):
    server = request.getfixturevalue(f"{request.node.callspec.params['seat']}_server")
    for make, error in itertools.product([None, 0.2], [JobCancelled, StageTimeout]):
        if (make is None) != (error is JobCancelled):
            continue
        server.started.clear()
        server.disconnected.clear()
        emit = (lambda piece: None) if streaming else None
        context = StageContext(emit=emit, deadline=None if make is None else time.monotonic() + make)
        if make is None:
            threading.Thread(target=lambda c=context: server.started.wait(5) and c.cancel()).start()
        with pytest.raises(error):
            ask(seat, "silent", context)
        assert server.disconnected.wait(2)


def test_a_malformed_request_reaches_no_endpoint(openai_seat: LlmProfile, openai_server: OpenAIServer):
    before = len(openai_server.requests)
    with pytest.raises(StageError) as caught:
        chat(openai_seat, "echo", messages="hello")
    assert caught.value.path == "$.a.input.body.messages"
    with pytest.raises(StageError) as caught:
        messages(openai_seat, "echo", tools=[{"type": "web_search_20250305", "name": "web_search"}])
    assert caught.value.path == "$.a.input.body.tools[0].type"
    assert len(openai_server.requests) == before
