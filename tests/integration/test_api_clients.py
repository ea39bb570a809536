"""The vendors' clients with a seat at an Anthropic endpoint, and with a local engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from gridq.config.settings import settings
from tests import small_model
from tests.fakes.anthropic_server import KEY, AnthropicServer
from tests.fakes.client_types import RESPONSE, valid
from tests.fakes.profile_server import ProfileServer
from workers.profiles.gpu import GpuProfile
from workers.profiles.gpu.capability import GpuCapability
from workers.profiles.llm import LlmProfile
from workers.profiles.llm.capability import LlmCapability

HELLO: Any = [{"role": "user", "content": "so it goes on"}]
RAIN: Any = [{"role": "user", "content": "What is rain?"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: Any = [{"name": "weather", "description": "of a city", "input_schema": SCHEMA}]
FUNCTIONS: Any = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
SMOL = "smollm2-135m-instruct"


@pytest.fixture(scope="module")
def anthropic_seat() -> Iterator[ProfileServer]:
    with AnthropicServer() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("WIRE_KEY", KEY)
        profile = LlmProfile()
        table = {"name": "a", "url": server.url, "api": "anthropic", "key_env": "WIRE_KEY"}
        models = [{"name": name} for name in ("echo", "tools", "status-400", "status-404")]
        (offer,) = profile.probe([{**table, "models": models, "allow_loopback": True}]).found
        profile.open(LlmCapability.model_validate(offer.capability), offer.config)
        with ProfileServer(profile) as door:
            yield door
        profile.close()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProfileServer]:
    if not small_model.is_runnable():
        pytest.skip(small_model.WHY_SKIPPED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRIDQ_ENGINE", "xllamacpp")
        patch.setenv("GRIDQ_HOME", str(tmp_path_factory.mktemp("home")))
        settings.cache_clear()
        profile = GpuProfile()
        (offer,) = profile.probe({"gpus": False}).found
        profile.open(GpuCapability.model_validate(offer.capability), offer.config)
        with ProfileServer(profile) as door:
            yield door
        profile.close()
    settings.cache_clear()


def openai_at(door: ProfileServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{door.url}/v1", api_key="none", max_retries=0)


def anthropic_at(door: ProfileServer) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=door.url, api_key="none", max_retries=0)


def test_openai_at_an_anthropic_seat(anthropic_seat: ProfileServer):
    with openai_at(anthropic_seat) as client:
        whole = client.chat.completions.create(model="echo", messages=HELLO)
        assert whole.choices[0].message.content == "so it goes on"
        assert whole.usage is not None
        assert whole.usage.prompt_tokens_details is not None
        assert whole.usage.prompt_tokens_details.cached_tokens == 2
        with client.chat.completions.stream(model="tools", messages=HELLO, tools=FUNCTIONS) as stream:
            final = stream.get_final_completion()
    assert final.choices[0].message.tool_calls is not None
    assert json.loads(final.choices[0].message.tool_calls[0].function.arguments) == {"city": "Bern"}
    assert final.choices[0].finish_reason == "tool_calls"


def test_openai_async_at_an_anthropic_seat(anthropic_seat: ProfileServer):
    async def words() -> tuple[list[str], Any]:
        async with openai.AsyncOpenAI(base_url=f"{anthropic_seat.url}/v1", api_key="none") as client:
            stream = await client.chat.completions.create(
                model="echo", messages=HELLO, stream=True, stream_options={"include_usage": True}
            )
            chunks = [chunk async for chunk in stream]
        pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
        return pieces, chunks[-1].usage

    pieces, usage = asyncio.run(words())
    assert "".join(pieces) == "so it goes on "
    assert (usage.prompt_tokens, usage.completion_tokens) == (7, 3)


def test_anthropic_at_an_anthropic_seat(anthropic_seat: ProfileServer):
    with anthropic_at(anthropic_seat) as client:
        with client.messages.stream(model="tools", max_tokens=50, messages=HELLO, tools=TOOLS) as stream:
            assert "".join(stream.text_stream) == "I look "
            final = stream.get_final_message()
        assert final.content[-1].type == "tool_use"
        assert final.content[-1].input == {"city": "Bern"}
        assert (final.usage.input_tokens, final.usage.cache_read_input_tokens, final.usage.output_tokens) == (
            5,
            2,
            3,
        )
        with pytest.raises(anthropic.NotFoundError, match="refused with 404"):
            client.messages.create(model="status-404", max_tokens=5, messages=HELLO)


def test_openai_at_an_engine(engine: ProfileServer):
    with openai_at(engine) as client:
        request: Any = {"model": SMOL, "messages": RAIN, "temperature": 0}
        whole = client.chat.completions.create(**request, max_completion_tokens=6, logprobs=True)
        assert whole.model == SMOL
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 6
        assert whole.choices[0].finish_reason == "length"
        assert whole.choices[0].logprobs is not None
        assert len(whole.choices[0].logprobs.content or ()) == 6
        with client.chat.completions.create(**request, max_tokens=6, stream=True) as stream:
            streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert streamed == whole.choices[0].message.content
        text = client.completions.create(
            model=SMOL, prompt="The capital of France is", max_tokens=3, temperature=0
        )
        assert "Paris" in text.choices[0].text
        with pytest.raises(openai.BadRequestError, match="'n'"):
            client.chat.completions.create(**request, n=2)
        with pytest.raises(openai.BadRequestError, match="context"):
            client.chat.completions.create(model=SMOL, messages=[{"role": "user", "content": "x " * 9000}])


@pytest.mark.parametrize("is_streamed", [False, True])
def test_what_an_engine_reuses_of_a_prompt_is_reported_to_both_clients(
    engine: ProfileServer, is_streamed: bool
):
    text = f"Tell me of boats, {is_streamed}: " + "a small boat sails past green hills. " * 30
    messages: Any = [{"role": "user", "content": text}]
    used: Any
    with openai_at(engine) as client:
        request: Any = {"model": SMOL, "messages": messages, "max_completion_tokens": 2}
        found = []
        for _ in range(2):
            if is_streamed:
                options: Any = {"stream": True, "stream_options": {"include_usage": True}}
                with client.chat.completions.create(**request, **options) as stream:
                    used = [chunk.usage for chunk in stream][-1]
            else:
                used = client.chat.completions.create(**request).usage
            found.append((used.prompt_tokens_details.cached_tokens, used.prompt_tokens))
    (first, _), (again, whole) = found
    assert first < whole / 2 < 0.8 * whole < again < whole
    with anthropic_at(engine) as other:
        if is_streamed:
            with other.messages.stream(model=SMOL, max_tokens=2, messages=messages) as answer:
                used = answer.get_final_message().usage
        else:
            used = other.messages.create(model=SMOL, max_tokens=2, messages=messages).usage
    assert used.cache_read_input_tokens > 0.8 * whole
    assert used.input_tokens + used.cache_read_input_tokens == whole, "input_tokens is the rest"


def test_responses_at_an_engine(engine: ProfileServer):
    with openai_at(engine) as client:
        request: Any = {"model": SMOL, "input": "What is rain?", "temperature": 0}
        whole = client.responses.create(**request, max_output_tokens=6, top_logprobs=1)
        assert whole.status == "incomplete"
        assert whole.incomplete_details is not None
        assert whole.incomplete_details.reason == "max_output_tokens"
        assert whole.usage is not None
        assert whole.usage.output_tokens == 6
        valid(RESPONSE, whole.to_dict())
        assert whole.output[0].type == "message"
        assert whole.output[0].content[0].type == "output_text"
        assert len(whole.output[0].content[0].logprobs or ()) == 6
        with client.responses.create(**request, max_output_tokens=6, stream=True) as stream:
            events = list(stream)
        assert [event.type for event in events][-1] == "response.incomplete"
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        assert text == whole.output_text
        schema = {"type": "json_schema", "name": "city", "schema": SCHEMA, "strict": True}
        shaped = client.responses.create(
            model=SMOL, input="Name a city as JSON.", text={"format": schema}, max_output_tokens=60
        )
        assert json.loads(shaped.output_text)["city"]


def test_embeddings_at_an_engine(engine: ProfileServer):
    with openai_at(engine) as client:
        packed = client.embeddings.create(model=SMOL, input=["rain", "snow"])  # the client asks for base64
        plain = client.embeddings.create(model=SMOL, input="rain", encoding_format="float")
        length = len(plain.data[0].embedding)
        assert [len(item.embedding) for item in packed.data] == [length, length]
        assert packed.data[0].embedding == pytest.approx(plain.data[0].embedding, abs=0.02)
        assert packed.data[0].embedding != packed.data[1].embedding
        assert len(client.embeddings.create(model=SMOL, input="a", dimensions=length).data) == 1
        with pytest.raises(openai.BadRequestError, match=f"dimensions.*{length}"):
            client.embeddings.create(model=SMOL, input="rain", dimensions=3)


def test_anthropic_at_an_engine(engine: ProfileServer):
    async def streamed() -> anthropic.types.Message:
        asking = anthropic.AsyncAnthropic(base_url=engine.url, api_key="none")
        async with asking as client, client.messages.stream(**request) as stream:
            return await stream.get_final_message()

    request: Any = {"model": SMOL, "max_tokens": 6, "messages": RAIN, "system": "Be brief."}
    request["extra_body"] = {"temperature": 0}  # which this client no longer has an argument for
    with anthropic_at(engine) as client:
        whole = client.messages.create(**request)
    assert whole.stop_reason == "max_tokens"
    assert whole.usage.output_tokens == 6
    assert [block.text for block in asyncio.run(streamed()).content if block.type == "text"] == [
        block.text for block in whole.content if block.type == "text"
    ]
