"""Serve clients of OpenAI's Responses from a seat that has Responses itself: the request goes as it came.

What the grid decides is set: `model`, `stream`, and `store` false, because what a vendor stores belongs to
the seat's account and only that seat could read it. `background` is the grid's own, and is not passed on.
Items of reasoning with neither `encrypted_content` nor `content` are left out: a vendor that stores nothing
cannot know them, and rejects them. Ask for `include: ["reasoning.encrypted_content"]` to keep them. The
others go without their null fields, which xAI rejects.

Answers and events come back as they came, but for the response's id, `store` and `background`, and the
`sequence_number`, which the grid counts itself: endpoints leave it out, or start anew.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json
from workers.model_apis.api_request import RESPONSES
from workers.model_apis.backend import Backend, TranslatingBackend

OWN_FIELDS = ("background", "background_options")


class ResponsesSeat(TranslatingBackend):
    """A backend of OpenAI's Responses that sends its requests to the same path of `inner`'s endpoint."""

    api = RESPONSES

    def __init__(self, inner: Backend, response_id: str) -> None:
        super().__init__(inner)
        self._response_id = response_id

    def post(self, path: str, body: dict[str, Json], context: StageContext) -> dict[str, Json]:
        return self._identify(self._inner.post(path, prepare_request(body), context), body)

    def stream(self, path: str, body: dict[str, Json], context: StageContext) -> Generator[dict[str, Json]]:
        with contextlib.closing(self._inner.stream(path, prepare_request(body), context)) as events:
            for number, event in enumerate(events):
                fields: dict[str, Any] = {"type": event.get("type"), "sequence_number": number}
                fields |= {name: event[name] for name in event if name not in fields}
                if isinstance(fields.get("response"), dict):
                    fields["response"] = self._identify(fields["response"], body)
                yield fields

    def _identify(self, response: dict[str, Json], body: dict[str, Json]) -> dict[str, Json]:
        """Return `response` with what it is in the grid."""
        own = {"id": self._response_id, "store": False, "background": bool(body.get("background"))}
        return {**response, **own}


def prepare_request(body: dict[str, Json]) -> dict[str, Json]:
    """Return the body for an endpoint that stores nothing."""
    request = {name: value for name, value in body.items() if name not in OWN_FIELDS}
    if isinstance(request["input"], list):
        request["input"] = [*filter(None, map(_prepare_item, request["input"]))]
    return {**request, "store": False}


def _prepare_item(item: dict[str, Json]) -> dict[str, Json] | None:
    """Return the item as it is sent, None if it is not."""
    if item.get("type") != "reasoning":
        return item
    if not item.get("encrypted_content") and not item.get("content"):
        return None
    return {name: value for name, value in item.items() if value is not None}
