"""Google's own client with the fake server, and other vendors' clients with a seat at that server."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from gridq.errors import (
    GridError,
    RequestRefused,
    SeatDegraded,
    SeatRateLimited,
    SeatUnavailable,
    StageError,
)
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Effect, StageCall, Usage
from tests.fakes.gemini_server import KEY, GeminiServer
from tests.fakes.profile_server import ProfileServer
from workers.model_apis.google.from_chat import translate_to_google
from workers.profiles.llm import LlmProfile
from workers.profiles.llm.capability import LlmCapability

HELLO: Any = [{"role": "user", "content": "so it goes on"}]
SCHEMA: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTIONS: Any = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
TOOLS: Any = [{"name": "weather", "description": "of a city", "input_schema": SCHEMA}]
MODELS = [
    *("echo", "tools", "thinking", "caching", "unmetered", "picture", "unsafe", "empty", "blocked", "embed"),
    *("broken-call", "silent", "cut", "cut-first", "malformed", "error-late", "bad-key", "quota"),
    *(f"status-{status}" for status in (400, 401, 403, 404, 429, 500, 503)),
]


@pytest.fixture(scope="module")
def server() -> Iterator[GeminiServer]:
    with GeminiServer() as running:
        yield running


def profile_at(server: GeminiServer, patch: pytest.MonkeyPatch) -> LlmProfile:
    patch.setenv("WIRE_KEY", KEY)
    profile = LlmProfile()
    provider = "vertex" if server.vertex else "google"
    prices = {"price_in": 1, "price_out": 10, "price_cached": 0.1}
    models = [{"name": name, "embeddings": name == "embed", **prices} for name in MODELS]
    table = {"provider": provider, "url": server.url, "key_env": "WIRE_KEY", "models": models}
    (offer,) = profile.probe([{**table, "allow_loopback": True}]).found
    profile.open(LlmCapability.model_validate(offer.capability), offer.config)
    return profile


@pytest.fixture(scope="module")
def profile(server: GeminiServer) -> Iterator[LlmProfile]:
    with pytest.MonkeyPatch.context() as patch:
        opened = profile_at(server, patch)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def door(profile: LlmProfile) -> Iterator[ProfileServer]:
    with ProfileServer(profile) as running:
        yield running


def openai_at(door: ProfileServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{door.url}/v1", api_key="none", max_retries=0)


# -- Google's own client with the fake server -------------------------------------------------------------


@pytest.fixture(scope="module")
def genai(server: GeminiServer) -> Iterator[Any]:
    if importlib.util.find_spec("google.genai") is None:
        pytest.skip("google-genai is not installed")
    from google import genai

    base, _, version = server.url.rpartition("/")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_CLOUD_PROJECT"):
            patch.delenv(name, raising=False)
        client = genai.Client(api_key=KEY, http_options={"base_url": base, "api_version": version})
        yield client
        client.close()


def test_googles_client_reads_the_test_servers_answers(genai: Any):
    whole = genai.models.generate_content(model="thinking", contents="so it goes on")
    assert [part.text for part in whole.candidates[0].content.parts if part.thought] == ["let me see"]
    (call,) = whole.function_calls
    assert (call.name, call.args, call.id) == ("weather", {"city": "Bern"}, "c1")
    assert whole.candidates[0].finish_reason.name == "STOP"
    assert whole.usage_metadata.thoughts_token_count == 40
    assert whole.usage_metadata.total_token_count == 48
    cached = genai.models.generate_content(model="caching", contents="so").usage_metadata
    assert cached.cached_content_token_count == 900
    assert {each.modality.name: each.token_count for each in cached.prompt_tokens_details} == {
        "TEXT": 950,
        "AUDIO": 50,
    }
    stream = list(genai.models.generate_content_stream(model="echo", contents="so it goes on"))
    assert "".join(each.text or "" for each in stream) == "so it goes on "
    assert stream[-1].usage_metadata.candidates_token_count == 4
    picture = genai.models.generate_content(model="picture", contents="one").candidates[0].content.parts[0]
    assert picture.inline_data.mime_type == "image/png"
    blocked = genai.models.generate_content(model="blocked", contents="x")
    assert (blocked.candidates, blocked.prompt_feedback.block_reason.name) == (None, "SAFETY")
    unsafe = genai.models.generate_content(model="unsafe", contents="x")
    assert unsafe.candidates[0].finish_reason.name == "SAFETY"
    embedded = genai.models.embed_content(model="embed", contents=["a", "bcd"])
    assert [each.values for each in embedded.embeddings] == [[1.0, 1.0], [3.0, 1.0]]
    assert genai.models.count_tokens(model="echo", contents="so it goes on").total_tokens == 4
    assert [each.name for each in genai.models.list()] == ["models/echo", "models/embed", "models/images"]


@pytest.mark.parametrize(
    ("model", "code", "status"),
    [
        ("status-400", 400, "INVALID_ARGUMENT"),
        ("status-403", 403, "PERMISSION_DENIED"),
        ("status-404", 404, "NOT_FOUND"),
        ("quota", 429, "RESOURCE_EXHAUSTED"),
        ("status-500", 500, "INTERNAL"),
        ("status-503", 503, "UNAVAILABLE"),
    ],
)
def test_googles_client_reads_the_test_servers_refusals(genai: Any, model: str, code: int, status: str):
    from google.genai import errors

    with pytest.raises(errors.APIError) as caught:
        genai.models.generate_content(model=model, contents="x")
    assert (caught.value.code, caught.value.status) == (code, status)


def test_googles_client_sends_what_the_translation_makes(genai: Any, server: GeminiServer):
    """Google's client and the translation of an OpenAI request produce the same request."""
    from google.genai import types

    config = types.GenerateContentConfig(
        system_instruction="be brief",
        max_output_tokens=5,
        temperature=0.5,
        top_p=0.9,
        seed=7,
        stop_sequences=["END"],
        response_mime_type="application/json",
        response_json_schema=SCHEMA,
        thinking_config=types.ThinkingConfig(include_thoughts=True, thinking_budget=1024),
        tools=[
            types.Tool(
                function_declarations=[
                    types.FunctionDeclaration(name="weather", parameters_json_schema=SCHEMA)
                ]
            )
        ],
        tool_config=types.ToolConfig(
            function_calling_config=types.FunctionCallingConfig(
                mode="ANY", allowed_function_names=["weather"]
            )
        ),
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )
    call = types.FunctionCall(name="weather", args={"city": "Bern"}, id="c1")
    result = types.FunctionResponse(name="weather", response={"output": "sun"}, id="c1")
    contents = [
        types.Content(
            role="user",
            parts=[types.Part(text="what?"), types.Part.from_bytes(data=b"ABC", mime_type="image/png")],
        ),
        types.Content(role="model", parts=[types.Part(function_call=call)]),
        types.Content(role="user", parts=[types.Part(function_response=result)]),
    ]
    genai.models.generate_content(model="echo", contents=contents, config=config)
    by_google = server.requests[-1]
    request = {
        "model": "gemini-2.5-flash",
        "max_tokens": 5,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 7,
        "stop": ["END"],
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "tools": FUNCTIONS,
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "messages": [
            {"role": "system", "content": "be brief"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "what?"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}},
                ],
            },
            {
                "role": "assistant",
                "tool_calls": [
                    {
                        "id": "c1",
                        "type": "function",
                        "function": {"name": "weather", "arguments": '{"city": "Bern"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "sun"},
        ],
    }
    assert translate_to_google("chat/completions", request) == _plain(by_google["body"])
    assert by_google["path"] == "/v1beta/models/echo:generateContent"
    assert {name.lower(): text for name, text in by_google["headers"].items()}["x-goog-api-key"] == KEY


def _plain(body: Any) -> Any:
    """Return a request in camel case, without the role of the system's text.

    The API accepts both `mime_type` and `mimeType`, and ignores that role.
    """
    body["systemInstruction"].pop("role", None)
    return _camel(body)


def _camel(value: Any) -> Any:
    if isinstance(value, list):
        return [_camel(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        re.sub(r"_([a-z])", lambda found: found[1].upper(), key): _camel(each) for key, each in value.items()
    }


# -- other vendors' clients with a seat at it ---------------------------------------------------------


def test_openais_client_at_a_google_seat(door: ProfileServer, server: GeminiServer):
    with openai_at(door) as client:
        whole = client.chat.completions.create(model="thinking", messages=HELLO, tools=FUNCTIONS)
        message = whole.choices[0].message
        assert whole.choices[0].finish_reason == "tool_calls"
        assert message.tool_calls is not None
        assert whole.usage is not None
        assert whole.usage.completion_tokens_details is not None
        assert (whole.usage.completion_tokens, whole.usage.completion_tokens_details.reasoning_tokens) == (
            44,
            40,
        )
        # its own message goes back as it came, signature and all
        result: Any = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sun"}
        history: Any = [*HELLO, message.model_dump(exclude_none=True), result]
        client.chat.completions.create(model="thinking", messages=history, tools=FUNCTIONS)
        turns = server.requests[-1]["body"]["contents"]
        assert [turn["role"] for turn in turns] == ["user", "model", "user"]
        assert turns[1]["parts"][-1]["thoughtSignature"] == "c2ln"
        with client.chat.completions.stream(
            model="tools", messages=HELLO, tools=FUNCTIONS, stream_options={"include_usage": True}
        ) as stream:
            final = stream.get_final_completion()
        assert final.choices[0].message.content == "I look"
        assert final.choices[0].message.tool_calls is not None
        assert json.loads(final.choices[0].message.tool_calls[0].function.arguments) == {"city": "Bern"}
        assert final.usage is not None
        assert (final.usage.prompt_tokens, final.usage.completion_tokens) == (4, 4)
        unsafe = client.chat.completions.create(model="unsafe", messages=HELLO)
        assert unsafe.choices[0].finish_reason == "content_filter"
        vectors = client.embeddings.create(model="embed", input=["a", "bcd"])
        assert [each.embedding for each in vectors.data] == [[1.0, 1.0], [3.0, 1.0]]
        with pytest.raises(openai.BadRequestError, match="'logprobs'"):
            client.chat.completions.create(model="echo", messages=HELLO, logprobs=True)
        with pytest.raises(openai.BadRequestError, match="filters"):
            client.chat.completions.create(model="blocked", messages=HELLO)
        with pytest.raises(openai.NotFoundError, match="refused with 404"):
            client.chat.completions.create(model="status-404", messages=HELLO)


def test_anthropics_client_at_a_google_seat(door: ProfileServer, server: GeminiServer):
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    with anthropic.Anthropic(base_url=door.url, api_key="none", max_retries=0) as client:
        request: Any = {"model": "thinking", "max_tokens": 2000, "messages": HELLO, "tools": TOOLS}
        whole = client.messages.create(**request, thinking=thinking)
        assert [block.type for block in whole.content] == ["thinking", "tool_use"]
        assert (whole.stop_reason, whole.usage.output_tokens) == ("tool_use", 44)
        assert whole.usage.output_tokens_details is not None
        assert whole.usage.output_tokens_details.thinking_tokens == 40
        with client.messages.stream(model="caching", max_tokens=50, messages=HELLO) as stream:
            assert "".join(stream.text_stream) == "so it goes on "
            used = stream.get_final_message().usage
        assert (used.input_tokens, used.cache_read_input_tokens, used.output_tokens) == (100, 900, 4)


# -- stages of a seat at it --------------------------------------------------------------------------------


def run(
    profile: LlmProfile, model: str, pieces: list[Any] | None = None, context: StageContext | None = None
) -> tuple[Any, Usage]:
    effects = [Effect(effect="Llm", model=model)]
    call = StageCall(id="s", name="llm_complete", path="$", implementation="llm:complete", effects=effects)
    context = context or StageContext(emit=None if pieces is None else pieces.append)
    return profile.run(call, "so it goes on", context), context.usage


@pytest.mark.parametrize("streaming", [False, True])
def test_cached_tokens_are_charged_at_their_price(profile: LlmProfile, streaming: bool):
    answer, used = run(profile, "caching", [] if streaming else None)
    assert answer == "so it goes on "
    assert (used.tokens_in, used.tokens_cached, used.tokens_out) == (1000, 900, 4)
    assert used.micro_dollars == 100 * 1 + 900 * 0.1 + 4 * 10
    answer, used = run(profile, "unmetered", [] if streaming else None)
    assert used.tokens_out > 0


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("status-400", StageError),
        ("status-401", SeatDegraded),
        ("status-403", RequestRefused),
        ("bad-key", SeatDegraded),
        ("status-404", RequestRefused),
        ("status-429", SeatRateLimited),
        ("quota", SeatRateLimited),
        ("status-500", SeatUnavailable),
        ("status-503", SeatUnavailable),
        ("empty", SeatUnavailable),
        ("malformed", SeatUnavailable),
        ("broken-call", SeatUnavailable),
        ("blocked", StageError),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
def test_a_failure_becomes_its_error(profile: LlmProfile, model: str, kind: type[GridError], streaming: bool):
    pieces: list[Any] | None = [] if streaming else None
    with pytest.raises(GridError) as caught:
        run(profile, model, pieces)
    assert type(caught.value) is kind
    assert not pieces
    assert KEY not in caught.value.to_json()
    assert caught.value.details.get("retry_after") == (34.5 if model == "quota" else None)


@pytest.mark.parametrize(
    ("model", "received"), [("cut", ["so "]), ("cut-first", []), ("error-late", ["so "])]
)
def test_a_stream_that_breaks_off_is_the_seats_fault(profile: LlmProfile, model: str, received: list[str]):
    pieces: list[Any] = []
    context = StageContext(emit=pieces.append)
    with pytest.raises(SeatUnavailable):
        run(profile, model, context=context)
    assert pieces == received
    assert context.usage.tokens_in == (4 if received else 0), (
        "what it said that it had used so far is charged"
    )


def test_vertex_takes_a_bearer_and_no_ids(monkeypatch: pytest.MonkeyPatch):
    with GeminiServer(vertex=True) as server:
        profile = profile_at(server, monkeypatch)
        with ProfileServer(profile) as door, openai_at(door) as client:
            call: Any = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
            result: Any = {"role": "tool", "tool_call_id": "c1", "content": "sun"}
            history: Any = [*HELLO, {"role": "assistant", "tool_calls": [call]}, result]
            client.chat.completions.create(model="echo", messages=history)
            request = server.requests[-1]
            assert request["path"].endswith("/publishers/google/models/echo:generateContent")
            assert request["headers"]["Authorization"] == f"Bearer {KEY}"
            assert "'id'" not in str(request["body"])
            vectors = client.embeddings.create(model="embed", input=["a", "bcd"])
            assert [each.embedding for each in vectors.data] == [[1.0, 1.0], [3.0, 1.0]]
            assert vectors.usage.prompt_tokens == 6
        profile.close()


def test_a_probe_lists_the_models_that_answer(server: GeminiServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GEMINI_API_KEY", KEY)
    (offer,) = LlmProfile().probe([{"provider": "google", "url": server.url, "allow_loopback": True}]).found
    assert [model["name"] for model in offer.capability["models"]] == ["echo", "embed"]
