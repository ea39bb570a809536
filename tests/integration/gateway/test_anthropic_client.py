"""The official `anthropic` package, unmodified but for its base URL; its seat has an OpenAI endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest

from tests.integration.gateway.conftest import Served

HELLO: Any = [{"role": "user", "content": "so it goes on"}]
TOOLS: Any = [
    {
        "name": "weather",
        "description": "The weather in a city",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
    }
]


@pytest.fixture
def client(served: Served) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0) as made:
        yield made


def test_a_message(client: anthropic.Anthropic) -> None:
    answer = client.messages.create(model="echo", max_tokens=50, messages=HELLO)
    assert answer.type == "message"
    assert answer.role == "assistant"
    assert [block.text for block in answer.content if block.type == "text"] == ["so it goes on "]
    assert answer.stop_reason == "end_turn"
    assert answer.usage.output_tokens == 4


def test_a_streamed_message(client: anthropic.Anthropic) -> None:
    with client.messages.stream(model="echo", max_tokens=50, messages=HELLO) as stream:
        assert list(stream.text_stream) == ["so ", "it ", "goes ", "on "]
        final = stream.get_final_message()
    assert final.stop_reason == "end_turn"
    assert final.usage.output_tokens == 4


def test_the_events_are_those_of_the_api(client: anthropic.Anthropic) -> None:
    with client.messages.create(model="echo", max_tokens=50, messages=HELLO, stream=True) as stream:
        events = list(stream)
    kinds = [event.type for event in events]
    assert events[0].type == "message_start"
    assert events[0].message.usage.input_tokens > 0
    assert kinds[1] == "content_block_start"
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_a_stream_that_pauses_is_kept_open_by_comments(client: anthropic.Anthropic) -> None:
    with client.messages.stream(
        model="pausing", max_tokens=9, messages=[{"role": "user", "content": "so it"}]
    ) as stream:
        assert list(stream.text_stream) == ["so ", "it "]


def test_a_streamed_tool_call(client: anthropic.Anthropic) -> None:
    with client.messages.stream(model="tools", max_tokens=50, messages=HELLO, tools=TOOLS) as stream:
        final = stream.get_final_message()
    call = next(block for block in final.content if block.type == "tool_use")
    assert (call.name, call.input) == ("weather", {"city": "Bern"})
    assert final.stop_reason == "tool_use"


def test_betas_are_names_and_no_others_are_taken(client: anthropic.Anthropic) -> None:
    names = {"anthropic-beta": "context-management-2025-06-27, interleaved-thinking-2025-05-14"}
    answer = client.messages.create(model="echo", max_tokens=50, messages=HELLO, extra_headers=names)
    assert answer.stop_reason == "end_turn"
    wrong = {"anthropic-beta": 'a", "b'}
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(model="echo", max_tokens=50, messages=HELLO, extra_headers=wrong)


def test_equal_ids_of_an_endpoint_are_different_ids_of_the_grid(client: anthropic.Anthropic) -> None:
    made = [
        client.messages.create(model="tools", max_tokens=50, messages=HELLO, tools=TOOLS) for _ in range(2)
    ]
    assert made[0].id != made[1].id
    assert len({block.id for each in made for block in each.content if block.type == "tool_use"}) == 2


def test_counting_tokens_calls_no_model(client: anthropic.Anthropic, served: Served) -> None:
    before = served.count_requests()
    few = client.messages.count_tokens(model="echo", messages=HELLO).input_tokens
    more = client.messages.count_tokens(model="echo", messages=HELLO, tools=TOOLS, system="be brief")
    assert 0 < few < more.input_tokens
    assert served.count_requests() == before


def test_models(client: anthropic.Anthropic) -> None:
    found = {model.id: model for model in client.models.list()}
    assert found["echo"].display_name == "echo"
    assert client.models.retrieve("org/Big Model").type == "model"


def test_errors_have_their_status_and_kind(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="refused with"):
        client.messages.create(model="status-400", max_tokens=50, messages=HELLO)
    with pytest.raises(anthropic.APIStatusError) as unknown:
        client.messages.create(model="ecko", max_tokens=50, messages=HELLO)
    assert "echo" in str(unknown.value)
    body: Any = unknown.value.body
    assert body["type"] == "error"


def test_an_error_in_mid_stream_is_raised_by_the_client(client: anthropic.Anthropic) -> None:
    with client.messages.create(model="error-late", max_tokens=50, messages=HELLO, stream=True) as stream:
        seen: list[str] = []
        with pytest.raises(anthropic.APIStatusError, match="engine fell over"):
            seen.extend(event.type for event in stream)
    assert "content_block_delta" in seen  # what came before the error


def test_a_request_without_messages_is_refused(http: httpx.Client) -> None:
    counted = http.post("/v1/messages/count_tokens", json={"model": "echo"})
    assert counted.status_code == 400
    assert counted.json()["error"]["type"] == "invalid_request_error"
    counted = http.post("/v1/messages/count_tokens", json={"model": "echo", "messages": [[]]})
    assert counted.status_code == 400
    assert "messages[0]" in counted.json()["error"]["message"]
    refused = http.post("/v1/messages", json={"model": "echo", "max_tokens": 5})
    assert refused.status_code == 400, refused.text
    assert refused.json()["type"] == "error"


def test_many_concurrent_requests_by_the_async_client(served: Served) -> None:
    async def ask(client: anthropic.AsyncAnthropic, number: int) -> str:
        messages: Any = [{"role": "user", "content": f"number {number}"}]
        if number % 2:
            answer = await client.messages.create(model="echo", max_tokens=50, messages=messages)
            return "".join(block.text for block in answer.content if block.type == "text")
        async with client.messages.stream(model="echo", max_tokens=50, messages=messages) as stream:
            return "".join([text async for text in stream.text_stream])

    async def all_of_them() -> list[str]:
        async with anthropic.AsyncAnthropic(base_url=served.url, api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(ask(client, number) for number in range(20)))

    assert asyncio.run(all_of_them()) == [f"number {number} " for number in range(20)]
