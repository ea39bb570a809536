"""The OpenAI-shaped wire at an endpoint: chat, completions, embeddings and the list of models."""

from __future__ import annotations

from typing import ClassVar

from gridq.protocol import Json
from workers.wires.asked import OPENAI
from workers.wires.remote import SILENCE_SECONDS, RemoteWire

DONE = "[DONE]"


class OpenAIWire(RemoteWire):
    """The calls to one endpoint that speaks the OpenAI wire."""

    wire: ClassVar[str] = OPENAI
    name: ClassVar[str] = "OpenAI"

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        headers: dict[str, str] | None = None,
        silence: float = SILENCE_SECONDS,
    ) -> None:
        login = {"Authorization": f"Bearer {key}"} if key else {}
        super().__init__(url, key, {**(headers or {}), **login}, silence)

    def streamed(self, body: dict[str, Json]) -> dict[str, Json]:
        options = body.get("stream_options")
        options = {**(options if isinstance(options, dict) else {}), "include_usage": True}
        return {**body, "stream": True, "stream_options": options}

    def ended(self, text: str) -> bool:
        return text.strip() == DONE
