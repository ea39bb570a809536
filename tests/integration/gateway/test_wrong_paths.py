"""Clients with a wrong base URL or key, and endpoints that the grid does not serve: one clear word each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.integration.gateway.conftest import Served

HELLO: Any = [{"role": "user", "content": "so"}]


def chat(client: openai.OpenAI) -> object:
    return client.chat.completions.create(model="echo", messages=HELLO)


def list_models(client: openai.OpenAI) -> object:
    return client.models.list()


def embed(client: openai.OpenAI) -> object:
    return client.embeddings.create(model="embed", input="x")


CALLS = (chat, list_models, embed)


@pytest.mark.parametrize(
    ("base", "call"),
    [
        *((base, call) for base in ("/v1/v1", "/openai/v1", "/v1/chat/completions") for call in CALLS),
        *((base, call) for base in ("", "/") for call in (chat, embed)),  # /models is a route of gridq
    ],
)
def test_openais_client_learns_its_base_url(
    served: Served, base: str, call: Callable[[openai.OpenAI], object]
) -> None:
    with (
        openai.OpenAI(base_url=served.url + base, api_key="none") as client,
        pytest.raises(openai.NotFoundError) as caught,
    ):
        call(client)
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["fix"] == f"set the client's base URL to {served.url}/v1"
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none") as client:
        call(client)


@pytest.mark.parametrize("base", ["/v1", "/v1/", "/v1/messages", "/anthropic"])
def test_anthropics_client_learns_its_base_url(served: Served, base: str) -> None:
    with anthropic.Anthropic(base_url=served.url + base, api_key="none") as client:
        with pytest.raises(anthropic.NotFoundError) as caught:
            client.messages.create(model="echo", max_tokens=5, messages=HELLO)
        body: Any = caught.value.body
        assert body["error"]["type"] == "not_found_error"
        assert body["error"]["fix"] == f"set the client's base URL to {served.url}"
        with pytest.raises(anthropic.NotFoundError) as caught:
            client.models.list()
        listed: Any = caught.value.body
        assert listed["error"]["fix"] == body["error"]["fix"]


def test_other_unknown_paths_are_as_before(served: Served, http: httpx.Client) -> None:
    for path in ("/v2", "/chat", "/jobs/x/y", "/v1/messages/batches"):
        reply = http.get(path)
        assert reply.status_code == 404
        assert "base URL" not in reply.text


def speak(client: openai.OpenAI) -> object:
    return client.audio.speech.create(model="tts-1", voice="alloy", input="so")


def transcribe(client: openai.OpenAI) -> object:
    return client.audio.transcriptions.create(model="whisper-1", file=("a.wav", b"RIFF"))


def draw(client: openai.OpenAI) -> object:
    return client.images.generate(model="dall-e-3", prompt="so")


@pytest.mark.parametrize("call", [speak, transcribe, draw])
def test_audio_and_images_are_refused_in_the_apis_format(
    served: Served, call: Callable[[openai.OpenAI], object]
) -> None:
    calls: list[str] = []
    hooks = {"request": [lambda request: calls.append(request.url.path)]}
    http_client = openai.DefaultHttpxClient(event_hooks=hooks)
    with (
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", http_client=http_client) as client,
        pytest.raises(openai.APIStatusError) as caught,
    ):
        call(client)
    assert (caught.value.status_code, caught.value.code) == (501, "request.not_supported")
    assert len(calls) == 1, "a retry does not help"
