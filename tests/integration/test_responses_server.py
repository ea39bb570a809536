"""The fake server of OpenAI's Responses API with OpenAI's own client."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import openai
import pytest

from tests.fakes.responses_server import KEY, ResponsesServer


@pytest.fixture(scope="module")
def server() -> Iterator[ResponsesServer]:
    with ResponsesServer() as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ResponsesServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url, api_key=KEY, max_retries=0) as made:
        yield made


def test_a_whole_answer(client: openai.OpenAI) -> None:
    answer = client.responses.create(model="echo", input="so it goes on", instructions="be brief")
    assert answer.output_text == "so it goes on"
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (7, 3)


def test_a_streamed_answer(client: openai.OpenAI) -> None:
    with client.responses.stream(model="reasoning", input="so it goes on") as stream:
        pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
        answer = stream.get_final_response()
    assert pieces == ["so ", "it ", "goes ", "on "]
    assert answer.output_text == "so it goes on "
    assert [item.type for item in answer.output] == ["reasoning", "message"]


def test_a_function_call(client: openai.OpenAI) -> None:
    with client.responses.stream(model="tools", input="and the weather?") as stream:
        (item,) = stream.get_final_response().output
    assert (item.type, getattr(item, "name", "")) == ("function_call", "weather")


@pytest.mark.parametrize(
    ("model", "error"),
    [
        ("status-400", openai.BadRequestError),
        ("status-429", openai.RateLimitError),
        ("status-500", openai.InternalServerError),
        ("poor", openai.RateLimitError),
        ("unknown", openai.NotFoundError),
    ],
)
def test_a_refusal_raises_its_error(
    client: openai.OpenAI, model: str, error: type[openai.APIStatusError]
) -> None:
    with pytest.raises(error):
        client.responses.create(model=model, input="so it goes on")


def test_a_wrong_key_is_refused(server: ResponsesServer) -> None:
    with (
        openai.OpenAI(base_url=server.url, api_key="sk-wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.responses.create(model="echo", input="so it goes on")


def test_a_cut_stream_raises_an_error(client: openai.OpenAI) -> None:
    stream = client.responses.create(model="cut", input="so it goes on", stream=True)
    with pytest.raises((httpx.RemoteProtocolError, openai.APIError)), stream:
        list(stream)
