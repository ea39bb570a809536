"""Client of an endpoint with the OpenAI API format: chat, completions, embeddings and the list of models."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from types import MappingProxyType
from typing import ClassVar
from urllib.parse import urlsplit

from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json
from workers.model_apis.api_request import OPENAI, RESPONSES
from workers.model_apis.http.api_client import ApiClient

DONE = "[DONE]"
STRICT_HOSTS = ("api.openai.com", ".openai.azure.com")
STRICT_PROVIDERS = ("openai", "azure")
"""Hosts and providers of the vendor's own API. It rejects unknown fields, and newer models `max_tokens`."""


class OpenAIClient(ApiClient):
    """Sends requests to one endpoint with the OpenAI API format."""

    api: ClassVar[str] = OPENAI
    name: ClassVar[str] = "OpenAI"

    serves_responses = False
    """True if the endpoint has Responses as well."""

    responses_by_model: Mapping[str, bool] = MappingProxyType({})
    """The same of single models, where it differs."""

    provider = ""
    """The name of its provider, if its table states one. Its address may be any, such as a private one."""

    @property
    def is_strict(self) -> bool:
        if self.provider:
            return self.provider in STRICT_PROVIDERS
        return (urlsplit(self.url).hostname or "").endswith(STRICT_HOSTS)

    def has_responses(self, model: str) -> bool:
        """Return whether the endpoint has Responses for `model`."""
        return self.responses_by_model.get(model, self.serves_responses)

    def make_auth_headers(self, key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"}

    def make_stream_body(self, path: str, body: dict[str, Json]) -> dict[str, Json]:
        if path == RESPONSES:
            return {**body, "stream": True}
        if self.rejects_usage_option:
            return {key: value for key, value in body.items() if key != "stream_options"} | {"stream": True}
        options = body.get("stream_options")
        options = {**(options if isinstance(options, dict) else {}), "include_usage": True}
        return {**body, "stream": True, "stream_options": options}

    def stream(self, path: str, body: dict[str, Json], context: StageContext) -> Generator[dict[str, Json]]:
        """Send a request and yield its chunks. A complete answer in place of a stream becomes one chunk."""
        with contextlib.closing(super().stream(path, body, context)) as chunks:
            for chunk in chunks:
                yield convert_to_chunk(chunk)

    def is_stream_end(self, text: str) -> bool:
        return text.strip() == DONE


def convert_to_chunk(answer: dict[str, Json]) -> dict[str, Json]:
    """Return a complete chat completion as one chunk. A chunk stays as it is."""
    choices = answer.get("choices")
    if not isinstance(choices, list) or not any(
        "message" in each for each in choices if isinstance(each, dict)
    ):
        return answer
    converted = []
    for choice in choices:
        message = dict(choice.get("message") or {})
        if message.get("tool_calls"):
            message["tool_calls"] = [{**call, "index": at} for at, call in enumerate(message["tool_calls"])]
        converted.append(
            {**{key: value for key, value in choice.items() if key != "message"}, "delta": message}
        )
    return {**answer, "object": "chat.completion.chunk", "choices": converted}
