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


@pytest.mark.parametrize(
    ("method", "path", "right"),
    [
        ("GET", "/v1/v1/responses/resp_1", "/v1/responses/resp_1"),
        ("POST", "/responses/resp_1/cancel", "/v1/responses/resp_1/cancel"),
        ("GET", "/openai/v1/models/echo", "/v1/models/echo"),
        ("POST", "/openai/deployments/d/chat/completions", "/v1/chat/completions"),
        ("POST", "/v1/v1/embeddings/", "/v1/embeddings"),
    ],
)
def test_the_right_path_is_named(served: Served, method: str, path: str, right: str) -> None:
    reply = served.gateway.http.request(method, path, json=None if method == "GET" else {})
    assert reply.status_code == 404
    assert reply.json()["error"]["expected"] == right
    assert reply.json()["error"]["fix"] == f"set the client's base URL to {served.url}/v1"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("POST", f"/api/{name}") for name in ("chat", "generate", "embed", "embeddings", "show")),
        *(("GET", f"/api/{name}") for name in ("tags", "ps", "version")),
        ("POST", "/v1/api/chat"),
    ],
)
def test_ollamas_clients_are_told_in_their_own_format(served: Served, method: str, path: str) -> None:
    reply = served.gateway.http.request(method, path, json={} if method == "POST" else None)
    assert reply.status_code == 404
    text = reply.json()["error"]
    assert isinstance(text, str), "as Ollama's clients read it"
    assert f"{served.url}/v1" in text
    assert reply.json()["gridq_code"] == reply.headers["x-gridq-code"] == "request.not_found"


@pytest.mark.parametrize("base", ["/v1beta", "/v1", "/v1alpha", "/v1/v1beta"])
@pytest.mark.parametrize("call", ["generateContent", "streamGenerateContent", "countTokens", "embedContent"])
def test_googles_clients_are_told_in_their_own_format(served: Served, base: str, call: str) -> None:
    reply = served.gateway.http.post(f"{base}/models/gemini-2.5-flash:{call}", json={"contents": []})
    assert reply.status_code == 404
    error = reply.json()["error"]
    assert (error["code"], error["status"]) == (404, "NOT_FOUND")
    assert f"{served.url}/v1" in error["message"]


def test_a_model_with_a_colon_is_no_call_of_google(http: httpx.Client) -> None:
    reply = http.get("/v1/models/qwen3:latest")
    assert reply.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", ["/v1/complete", "/v1/models/gone", "/v1/files", "/v1/chat/completions"])
def test_anthropics_clients_get_their_format_at_every_path(http: httpx.Client, path: str) -> None:
    reply = http.post(path, content=b"{", headers={"anthropic-version": "2023-06-01"})
    assert reply.status_code in (400, 404, 405)
    assert reply.json()["type"] == "error"
    assert reply.json()["error"]["type"] in ("not_found_error", "invalid_request_error")


@pytest.mark.parametrize("name", ["authorization", "x-api-key", "api-key", "x-goog-api-key"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"model": "echo", "messages": HELLO}),
        ("/v1/messages", {"model": "echo", "max_tokens": 5, "messages": HELLO}),
        ("/v1/responses", {"model": "echo", "input": "so"}),
        ("/v1/embeddings", {"model": "embed", "input": "so"}),
    ],
)
def test_an_open_grid_takes_any_text_as_a_key_in_any_header(
    http: httpx.Client, name: str, path: str, body: dict[str, Any]
) -> None:
    text = "sk-anything"
    headers = {name: f"Bearer {text}" if name == "authorization" else text}
    assert http.post(path, json=body, headers=headers).status_code == 200


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
