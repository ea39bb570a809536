"""Client of an endpoint with the Anthropic API format: messages and the list of models.

Source: the vendor's API reference. The key goes in `x-api-key` and the version of the API in
`anthropic-version`. An error is `{"type": "error", "error": {"type", "message"}}`, in a stream an event of
its own. `workers.model_apis.http.failures` lists the statuses, among them 529 for an overloaded endpoint.
"""

from __future__ import annotations

from typing import ClassVar

from gridq.protocol.models import Json
from workers.model_apis.api_request import ANTHROPIC
from workers.model_apis.http.api_client import ApiClient

VERSION = "2023-06-01"


class AnthropicClient(ApiClient):
    """Sends requests to one endpoint with the Anthropic API format."""

    api: ClassVar[str] = ANTHROPIC
    name: ClassVar[str] = "Anthropic"
    models_path: ClassVar[str] = "models?limit=1000"  # the default is 20
    default_headers: ClassVar[dict[str, str]] = {"anthropic-version": VERSION}

    def make_auth_headers(self, key: str) -> dict[str, str]:
        return {"x-api-key": key}

    def make_stream_body(self, path: str, body: dict[str, Json]) -> dict[str, Json]:
        return {**body, "stream": True}
