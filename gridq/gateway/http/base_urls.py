"""Find out what a request to an unknown path meant: mostly a base URL with `/v1` missing or twice, or an API
that the grid does not speak.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from starlette.requests import Request

OPENAI_ENDPOINT = re.compile(
    r"/(chat/completions|completions|embeddings|responses/input_tokens|responses|models)/?$"
    r"|/(responses/resp_[^/]+(?:/cancel)?|models/[^/]+)/?$"
)
ANTHROPIC_ENDPOINT = re.compile(r"/(messages/count_tokens|messages)/?$")

OLLAMA_PATH = re.compile(r"/api/(?:chat|generate|tags|show|ps|version|embed|embeddings|pull)/?$")
GOOGLE_PATH = re.compile(
    r"/v1(?:beta|alpha)\d*/|:(?:generateContent|streamGenerateContent|countTokens|embedContent|batchEmbedContents)$"
)

ANTHROPIC_HEADER = "anthropic-version"
"""A header that Anthropic's clients send with every request."""


@dataclass(frozen=True, slots=True)
class IntendedRoute:
    """What a request meant: the path of the grid that serves it, and the base URL that leads there.

    `vendor` is the owner of an API that the grid does not speak, "" for OpenAI's and Anthropic's.
    """

    path: str
    base_url: str
    vendor: str = ""

    @property
    def fix(self) -> str:
        """What the client has to change."""
        fix = f"set the client's base URL to {self.base_url[:200]}"
        return f"use OpenAI's API instead of {self.vendor}'s: {fix}" if self.vendor else fix


def find_intended_route(request: Request) -> IntendedRoute | None:
    """Return what a request meant; None if it resembles no model API.

    OpenAI's clients add `/chat/completions` and the like to their base URL, Anthropic's add `/v1/messages`.
    """
    path = request.url.path
    own = f"{request.url.scheme}://{request.url.netloc}"
    vendor = find_vendor(path)
    if vendor:
        return IntendedRoute(path, f"{own}/v1", vendor)
    if found := ANTHROPIC_ENDPOINT.search(path):
        return IntendedRoute(f"/v1/{found[1]}", own)
    if found := OPENAI_ENDPOINT.search(path):
        is_anthropic = ANTHROPIC_HEADER in request.headers
        return IntendedRoute(f"/v1/{found[1] or found[2]}", own if is_anthropic else f"{own}/v1")
    return None


def find_vendor(path: str) -> str:
    """Return the vendor whose API has `path`, if it is one that the grid does not speak; else ""."""
    if GOOGLE_PATH.search(path):
        return "Google"
    return "Ollama" if OLLAMA_PATH.search(path) else ""
