"""Google's API format at an endpoint: `generateContent`, embeddings and the list of models, of the Gemini API and
of Vertex AI.

Facts: the API references of both. The Gemini API takes a key in `x-goog-api-key`, never in the URL; Vertex
AI, whose base URL ends in `/publishers/google`, an access token as a bearer. A stream is asked for at a path
of its own, `:streamGenerateContent?alt=sse`, and each of its events is a whole answer of the next piece;
nothing marks the end but the reason why it ended. An error is `{"error": {"code", "message", "status",
"details"}}`.
"""

from __future__ import annotations

import time
from typing import ClassVar
from urllib.parse import quote, urlsplit

from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json
from workers.model_apis.http.endpoint import EndpointApi

GOOGLE = "google"
ASKED = frozenset({"generateContent", "embedContent"})


class GoogleApi(EndpointApi):
    """The calls to one endpoint that speaks Google's API format."""

    api: ClassVar[str] = GOOGLE
    name: ClassVar[str] = "Gemini"
    listing: ClassVar[str] = "models?pageSize=1000"  # else the first fifty
    ending: ClassVar[str] = "/v1beta, at Vertex AI in /publishers/google"

    @property
    def strict(self) -> bool:
        """Whether it is Vertex AI, which takes no ids of calls and has embeddings at a path of its own."""
        return "/publishers/" in urlsplit(self.url).path

    def login(self, key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"} if self.strict else {"x-goog-api-key": key}

    def streamed(self, body: dict[str, Json]) -> dict[str, Json]:
        return body

    def models(self, seconds: float) -> list[str]:
        context = StageContext(deadline=time.monotonic() + seconds)
        listed = self._whole("GET", self.listing, None, context).get("models")
        if not isinstance(listed, list):
            raise self.malformed("it lists no models")
        return [
            item["name"].removeprefix("models/")
            for item in listed
            if isinstance(item, dict)
            and isinstance(item.get("name"), str)
            and ASKED & set(item.get("supportedGenerationMethods") or ASKED)
        ]


def method(model: str, name: str) -> str:
    """The path of a method of `model`."""
    return f"models/{quote(model, safe='')}:{name}"
