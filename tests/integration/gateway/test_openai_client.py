"""The official `openai` package, unmodified but for its base URL."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.gateways import serving
from tests.integration.gateway.conftest import Served

HELLO: Any = [{"role": "user", "content": "so it goes on"}]
WEATHER: Any = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
def patient(served: Served) -> Iterator[openai.OpenAI]:
    """A client of a gateway that keeps the status line back for 5 s, however slow the machine is."""
    with (
        serving(served.config, keep_alive=5, admission_wait=0.5) as gateway,
        openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as made,
    ):
        yield made


def test_a_chat_completion(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="echo", messages=HELLO)
    assert answer.choices[0].message.content == "so it goes on "
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4


def test_a_streamed_chat_completion(client: openai.OpenAI) -> None:
    with client.chat.completions.create(model="echo", messages=HELLO, stream=True) as stream:
        chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "so it goes on "
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "stop"
    assert all(chunk.usage is None for chunk in chunks)


def test_the_last_chunk_has_the_usage_on_request(client: openai.OpenAI) -> None:
    with client.chat.completions.create(
        model="echo", messages=HELLO, stream=True, stream_options={"include_usage": True}
    ) as stream:
        chunks = list(stream)
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 8


def test_a_stream_that_pauses_is_kept_open_by_comments(client: openai.OpenAI) -> None:
    with client.chat.completions.create(
        model="pausing", messages=[{"role": "user", "content": "so it"}], stream=True
    ) as stream:
        chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "so it "


def test_a_streamed_tool_call(client: openai.OpenAI) -> None:
    with client.chat.completions.create(model="tools", messages=HELLO, tools=WEATHER, stream=True) as stream:
        calls = [call for chunk in stream for call in chunk.choices[0].delta.tool_calls or ()]
    assert calls[0].function is not None
    assert calls[0].function.name == "weather"
    arguments = "".join(call.function.arguments or "" for call in calls if call.function)
    assert arguments == '{"city":"Bern"}'


def test_unknown_fields_pass_through(client: openai.OpenAI, served: Served) -> None:
    image: Any = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    schema: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
    client.chat.completions.create(
        model="echo",
        messages=[{"role": "user", "content": [image, {"type": "text", "text": "x"}]}, *HELLO],
        tools=WEATHER,
        response_format=schema,
        seed=7,
        extra_body={"vendor_thing": {"deep": [1, None]}},
    )
    body = served.api.requests[-1]["body"]
    assert body["messages"][0]["content"][0] == image
    assert body["response_format"] == schema
    assert body["tools"] == WEATHER
    assert (body["seed"], body["vendor_thing"]) == (7, {"deep": [1, None]})


def test_completions(client: openai.OpenAI) -> None:
    assert client.completions.create(model="echo", prompt="a b").choices[0].text == "a b "


def test_embeddings(client: openai.OpenAI) -> None:
    found = client.embeddings.create(model="embed", input=["a", "bcd"], encoding_format="float")
    assert [each.embedding for each in sorted(found.data, key=lambda one: one.index)] == [[1, 1], [3, 1]]


def test_models(client: openai.OpenAI) -> None:
    names = {model.id for model in client.models.list()}
    assert {"echo", "small", "any", "org/Big Model"} <= names
    assert "org/big model" not in names
    assert client.models.retrieve("echo").owned_by.startswith("127.0.0.1:")
    with pytest.raises(openai.NotFoundError, match="echo"):
        client.models.retrieve("ecko")


def test_a_family_and_any_are_models(client: openai.OpenAI) -> None:
    for name in ("small", "any"):
        assert client.chat.completions.create(model=name, messages=HELLO).choices


@pytest.mark.parametrize(
    ("model", "kind"),
    [("status-400", openai.BadRequestError), ("status-404", openai.NotFoundError),
     ("status-422", openai.UnprocessableEntityError)],
)  # fmt: skip
def test_an_endpoints_refusal_keeps_its_status_and_message(
    patient: openai.OpenAI, model: str, kind: type[openai.APIStatusError]
) -> None:
    for stream in (False, True):
        with pytest.raises(kind, match="refused with"):
            patient.chat.completions.create(model=model, messages=HELLO, stream=stream)


def test_an_error_in_mid_stream_is_raised_by_the_client(client: openai.OpenAI) -> None:
    with client.chat.completions.create(model="error-late", messages=HELLO, stream=True) as stream:
        assert next(iter(stream)).choices
        with pytest.raises(openai.APIError, match="engine fell over"):
            list(stream)


def test_many_concurrent_requests_by_the_async_client(served: Served) -> None:
    async def ask(client: openai.AsyncOpenAI, number: int) -> str:
        messages: Any = [{"role": "user", "content": f"number {number}"}]
        if number % 2:
            answer = await client.chat.completions.create(model="echo", messages=messages)
            return answer.choices[0].message.content or ""
        text = ""
        async with await client.chat.completions.create(
            model="echo", messages=messages, stream=True
        ) as stream:
            async for chunk in stream:
                text += chunk.choices[0].delta.content or ""
        return text

    async def all_of_them() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(ask(client, number) for number in range(40)))

    assert asyncio.run(all_of_them()) == [f"number {number} " for number in range(40)]
