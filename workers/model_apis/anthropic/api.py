"""The Anthropic-shaped API format at an endpoint: messages and the list of models.

Facts: the vendor's API reference. The key goes in `x-api-key`, the version of the API format in
`anthropic-version`; an error is `{"type": "error", "error": {"type", "message"}}` with the statuses of
`faults`, 529 for an overloaded endpoint; in a stream it comes as an event of its own.
"""

from __future__ import annotations

from typing import ClassVar

from gridq.protocol.models import Json
from workers.model_apis.http.endpoint import EndpointApi
from workers.model_apis.request import ANTHROPIC

VERSION = "2023-06-01"


class AnthropicApi(EndpointApi):
    """The calls to one endpoint that speaks the Anthropic API format."""

    api: ClassVar[str] = ANTHROPIC
    name: ClassVar[str] = "Anthropic"
    listing: ClassVar[str] = "models?limit=1000"  # else the first twenty
    asks: ClassVar[dict[str, str]] = {"anthropic-version": VERSION}

    def login(self, key: str) -> dict[str, str]:
        return {"x-api-key": key}

    def streamed(self, body: dict[str, Json]) -> dict[str, Json]:
        return {**body, "stream": True}
