"""Client of an endpoint with Google's API format: the Gemini API and Vertex AI.

Source: the API references of both. The Gemini API takes a key in `x-goog-api-key`, never in the URL. Vertex
AI, whose base URL ends in `/publishers/google`, takes an access token as a bearer token. A stream has a path
of its own, `:streamGenerateContent?alt=sse`. Each of its events is a complete answer with the next piece, and
only the finish reason marks the end. An error is `{"error": {"code", "message", "status", "details"}}`.
"""

from __future__ import annotations

import time
from typing import ClassVar
from urllib.parse import quote, urlsplit

from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json
from workers.model_apis.http.api_client import ApiClient
from workers.model_apis.model_kinds import ModelKind, find_kind

GOOGLE = "google"
USABLE_METHODS = frozenset({"generateContent", "embedContent"})


class GoogleClient(ApiClient):
    """Sends requests to one endpoint with Google's API format."""

    api: ClassVar[str] = GOOGLE
    name: ClassVar[str] = "Gemini"
    models_path: ClassVar[str] = "models?pageSize=1000"  # the default is 50
    usual_path: ClassVar[str] = "/v1beta, or in /publishers/google at Vertex AI"

    @property
    def is_strict(self) -> bool:
        """True for Vertex AI, which takes no ids of tool calls and has its own path for embeddings."""
        return "/publishers/" in urlsplit(self.url).path

    def make_auth_headers(self, key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"} if self.is_strict else {"x-goog-api-key": key}

    def make_stream_body(self, path: str, body: dict[str, Json]) -> dict[str, Json]:
        return body

    def list_models(self, seconds: float) -> dict[str, ModelKind]:
        context = StageContext(deadline=time.monotonic() + seconds)
        models = self._request_object("GET", self.models_path, None, context).get("models")
        if not isinstance(models, list):
            raise self.make_format_error("it lists no models")
        usable = (
            (item["name"].removeprefix("models/"), item)
            for item in models
            if isinstance(item, dict)
            and isinstance(item.get("name"), str)
            and USABLE_METHODS & set(item.get("supportedGenerationMethods") or USABLE_METHODS)
        )
        return {name: find_kind(name, item) for name, item in usable}


def make_method_path(model: str, name: str) -> str:
    """Return the path of a method of `model`."""
    return f"models/{quote(model, safe='')}:{name}"
