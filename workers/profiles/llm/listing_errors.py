"""Explain to a seat's owner why its endpoint lists no models: a wrong URL, or a key of another vendor."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gridq.errors import GridError, SeatDegraded
from workers.profiles.llm.capability import LlmSeat
from workers.profiles.llm.providers import PROVIDERS

KEY_FORMS = {"sk-ant-": "anthropic", "AIza": "google"}
"""The start of a key, and the API format of its vendor. The keys of all others have no form of their own."""

DECLARE = "if it has no list, declare its models in its table"

_BASE_END = {"openai": "/v1", "anthropic": "/v1", "google": "/v1beta"}
_ENDPOINTS = re.compile(r"/(chat/completions|completions|embeddings|responses|messages|models)$")


@dataclass(frozen=True, slots=True)
class ListingError:
    """The reason why an endpoint lists no models. `url`: the one to try instead, empty if it seems right."""

    text: str
    url: str = ""


def explain_listing_error(seat: LlmSeat, key: str | None, error: GridError) -> ListingError:
    """Return the error's message and its fix: what is wrong in the seat's table if that can be told."""
    url = suggest_url(seat)
    if error.details.get("status") in (404, 405) and url != seat.url.rstrip("/"):
        text = f'{error.message}; the url usually ends in {_BASE_END[seat.api]}: try url = "{url}"'
        return ListingError(text, url)
    return ListingError(_explain_other_error(seat, key, error))


def _explain_other_error(seat: LlmSeat, key: str | None, error: GridError) -> str:
    if isinstance(error, SeatDegraded) and key is not None:
        vendor = next((api for start, api in KEY_FORMS.items() if key.startswith(start)), seat.api)
        if vendor != seat.api:
            return f'{error.message}; it has the form of a key for api = "{vendor}", not "{seat.api}"'
    if isinstance(error, SeatDegraded):
        return f"{error.message}; {error.details['fix']}" if "fix" in error.details else error.message
    return f"{error.message}; {DECLARE}"


def is_url_unusual(seat: LlmSeat) -> bool:
    """Return whether the seat's URL is neither its provider's own nor what a base URL usually is."""
    url = seat.url.rstrip("/")
    provider = PROVIDERS.get(seat.provider or "")
    return url != suggest_url(seat) and (provider is None or url != (provider.url or "").rstrip("/"))


def suggest_url(seat: LlmSeat) -> str:
    """Return the seat's URL as a base URL usually is: without an endpoint's path, and with its `/v1` once."""
    end = _BASE_END[seat.api]
    url = _ENDPOINTS.sub("", seat.url.rstrip("/"))
    while url.endswith(end):
        url = url.removesuffix(end).rstrip("/")
    return url + end
