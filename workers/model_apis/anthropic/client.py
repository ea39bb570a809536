"""Client of an endpoint with the Anthropic API format: messages and the list of models.

Source: the vendor's API reference. The key goes in `x-api-key` and the version of the API in
`anthropic-version`. An error is `{"type": "error", "error": {"type", "message"}}`, in a stream an event of
its own. `workers.model_apis.http.failures` lists the statuses, among them 529 for an overloaded endpoint.
"""

from __future__ import annotations

import time
from typing import Any, ClassVar
from urllib.parse import quote

from gridq.errors import GridError
from gridq.profiles.profile import StageContext
from gridq.protocol.betas import ANY_BETA
from gridq.protocol.models import Json
from workers.model_apis.anthropic.claude_models import find_claude_model
from workers.model_apis.api_request import ANTHROPIC
from workers.model_apis.http.api_client import ApiClient

VERSION = "2023-06-01"
BETAS = "anthropic_beta"
"""The field of a body that becomes the header `anthropic-beta`."""

FALLBACK_MAX_TOKENS = 8192
"""The longest answer of a model that neither its endpoint nor the table of Anthropic's models states."""

LOOKUP_SECONDS = 5.0
RETRY_SECONDS = 600.0
"""The time until an endpoint that stated nothing of a model is asked again."""


class AnthropicClient(ApiClient):
    """Sends requests to one endpoint with the Anthropic API format."""

    api: ClassVar[str] = ANTHROPIC
    name: ClassVar[str] = "Anthropic"
    models_path: ClassVar[str] = "models?limit=1000"  # the default is 20
    default_headers: ClassVar[dict[str, str]] = {"anthropic-version": VERSION}

    allowed_betas: tuple[str, ...] = (ANY_BETA,)
    """The betas that clients may use, as in `gridq.protocol.betas`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._entries: dict[str, tuple[dict[str, Json], float]] = {}
        """By model: its entry, and until when that is cached."""

    def find_max_tokens(self, model: str) -> int:
        """Return the longest answer of `model` in tokens: by its entry at the endpoint, else by the table."""
        stated = self._find_entry(model).get("max_tokens")
        if isinstance(stated, int) and stated > 0:
            return stated
        known = find_claude_model(model)
        return FALLBACK_MAX_TOKENS if known is None else known.max_tokens

    def find_capabilities(self, model: str) -> Json:
        """Return what the endpoint states that `model` can do, None if it does not."""
        return self._find_entry(model).get("capabilities")

    def _find_entry(self, model: str) -> dict[str, Json]:
        """Return the endpoint's entry of `model`, empty if it has none."""
        entry, expires = self._entries.get(model, ({}, 0.0))
        if time.monotonic() < expires:
            return entry
        context = StageContext(deadline=time.monotonic() + LOOKUP_SECONDS)
        try:
            entry = self._request_object("GET", f"models/{quote(model, safe='')}", None, context)
        except GridError:
            entry = {}
        seconds = float("inf") if entry.get("max_tokens") else RETRY_SECONDS
        self._entries[model] = (entry, time.monotonic() + seconds)
        return entry

    def make_auth_headers(self, key: str) -> dict[str, str]:
        return {"x-api-key": key}

    def split_headers(self, body: dict[str, Json]) -> tuple[dict[str, Json], dict[str, str]]:
        betas = body.get(BETAS) or ()
        sent = {name: value for name, value in body.items() if name != BETAS}
        return sent, {"anthropic-beta": ",".join(betas)} if betas else {}

    def make_stream_body(self, path: str, body: dict[str, Json]) -> dict[str, Json]:
        return {**body, "stream": True}
