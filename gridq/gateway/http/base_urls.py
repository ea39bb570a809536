"""Find out what a request to an unknown path meant: mostly a base URL with `/v1` missing or twice."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request

OPENAI_ENDPOINTS = (
    *("chat/completions", "completions", "embeddings"),
    *("responses/input_tokens", "responses", "models"),
)
ANTHROPIC_ENDPOINTS = ("messages/count_tokens", "messages")


@dataclass(frozen=True, slots=True)
class IntendedRoute:
    """A route of a model API, and the base URL with which the client would have called it."""

    path: str
    base_url: str


def find_intended_route(request: Request) -> IntendedRoute | None:
    """Return the route whose path the request's ends with; None if it is none of a model API.

    OpenAI's clients add `/chat/completions` and the like to their base URL, Anthropic's add `/v1/messages`.
    """
    path = request.url.path.rstrip("/")
    own = f"{request.url.scheme}://{request.url.netloc}"
    for endpoint in ANTHROPIC_ENDPOINTS:
        if path.endswith(f"/{endpoint}"):
            return IntendedRoute(f"/v1/{endpoint}", own)
    for endpoint in OPENAI_ENDPOINTS:
        if path.endswith(f"/{endpoint}"):
            is_anthropic = "anthropic-version" in request.headers
            return IntendedRoute(f"/v1/{endpoint}", own if is_anthropic else f"{own}/v1")
    return None
