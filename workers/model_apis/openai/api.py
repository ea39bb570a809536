"""The OpenAI-shaped API format at an endpoint: chat, completions, embeddings and the list of models."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import ClassVar
from urllib.parse import urlsplit

from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json
from workers.model_apis.http.endpoint import EndpointApi
from workers.model_apis.request import OPENAI

DONE = "[DONE]"
STRICT_HOSTS = ("api.openai.com", ".openai.azure.com")
"""Where the vendor's own API answers: it refuses unknown fields, and its newer models `max_tokens`."""


class OpenAIApi(EndpointApi):
    """The calls to one endpoint that speaks the OpenAI API format."""

    api: ClassVar[str] = OPENAI
    name: ClassVar[str] = "OpenAI"

    @property
    def strict(self) -> bool:
        return (urlsplit(self.url).hostname or "").endswith(STRICT_HOSTS)

    def login(self, key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"}

    def streamed(self, body: dict[str, Json]) -> dict[str, Json]:
        if self.usage_unrequested:
            return {key: value for key, value in body.items() if key != "stream_options"} | {"stream": True}
        options = body.get("stream_options")
        options = {**(options if isinstance(options, dict) else {}), "include_usage": True}
        return {**body, "stream": True, "stream_options": options}

    def stream(self, path: str, body: dict[str, Json], context: StageContext) -> Generator[dict[str, Json]]:
        """As for every endpoint; an answer that came whole, unasked, is told as one chunk."""
        with contextlib.closing(super().stream(path, body, context)) as chunks:
            for chunk in chunks:
                yield as_chunk(chunk)

    def ended(self, text: str) -> bool:
        return text.strip() == DONE


def as_chunk(answer: dict[str, Json]) -> dict[str, Json]:
    """A whole chat completion as its one chunk; what is a chunk already stays as it is."""
    choices = answer.get("choices")
    if not isinstance(choices, list) or not any(
        "message" in each for each in choices if isinstance(each, dict)
    ):
        return answer
    told = []
    for choice in choices:
        message = dict(choice.get("message") or {})
        if message.get("tool_calls"):
            message["tool_calls"] = [{"index": at, **call} for at, call in enumerate(message["tool_calls"])]
        told.append({**{key: value for key, value in choice.items() if key != "message"}, "delta": message})
    return {**answer, "object": "chat.completion.chunk", "choices": told}
