"""Serve clients of OpenAI's Responses from a seat that has Responses itself: the request goes as it came.

What the grid decides is set: `model`, `stream`, and `store` false, because what a vendor stores belongs to
the seat's account and only that seat could read it. `background` is the grid's own, and is not passed on.
Items of reasoning with neither `encrypted_content` nor `content` are left out: a vendor that stores nothing
cannot know them, and rejects them. Ask for `include: ["reasoning.encrypted_content"]` to keep them. The
others go without their null fields, which xAI rejects. `encrypted_content` names the model and the account
that it is for, in front of the vendor's own. At any other it is left out, which nobody could decrypt, and so
are the ids of the texts and calls behind it, by which the vendor would look for it.

Answers and events come back as they came, but for that, the response's id, `store` and `background`, and the
`sequence_number`, which the grid counts itself: endpoints leave it out, or start anew.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import count
from typing import Any

from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json
from workers.model_apis.api_request import RESPONSES, translate_request
from workers.model_apis.backend import TranslatingBackend, parse_answer
from workers.model_apis.fields.responses import RESPONSES_TO_RESPONSES
from workers.model_apis.fields.table import Drop, ignore
from workers.model_apis.identity.fitting import RESPONSES_ID, CallIds
from workers.model_apis.identity.origins import name_origin
from workers.model_apis.openai.client import OpenAIClient
from workers.model_apis.reasoning_marks import find_content, is_marked, mark_content

REASONING = "reasoning"
WRITTEN = frozenset({"message", "function_call", "custom_tool_call"})
"""Items of a model that depend on the reasoning before them."""


class ResponsesSeat(TranslatingBackend):
    """A backend of OpenAI's Responses that sends its requests to the same path of its endpoint, `seat`."""

    api = RESPONSES

    def __init__(self, seat: OpenAIClient, response_id: str) -> None:
        super().__init__(seat)
        self._seat = seat
        self._response_id = response_id

    def post(self, path: str, body: dict[str, Json], context: StageContext) -> dict[str, Json]:
        request, origin = self._prepare(body, context.drop_field)
        answer = self._inner.post(path, request, context)
        return parse_answer(self, self._identify, answer, body, origin)

    def stream(self, path: str, body: dict[str, Json], context: StageContext) -> Generator[dict[str, Json]]:
        request, origin = self._prepare(body, context.drop_field)
        numbers = count()

        def identify(event: dict[str, Json]) -> list[dict[str, Json]]:
            fields: dict[str, Any] = {"type": event.get("type"), "sequence_number": next(numbers)}
            fields |= {name: event[name] for name in event if name not in fields}
            if isinstance(fields.get("response"), dict):
                fields["response"] = self._identify(fields["response"], body, origin)
            if isinstance(fields.get("item"), dict):
                fields["item"] = _mark_item(fields["item"], origin)
            return [fields]

        yield from self._translate_stream(path, request, context, identify)

    def _prepare(self, body: dict[str, Json], drop: Drop) -> tuple[dict[str, Json], str]:
        """Return the request for the endpoint, and the origin of what it answers."""
        origin = name_origin(body["model"], self._seat, self._seat.hash_key())
        return translate_request(prepare_request, body, origin, drop), origin

    def _identify(self, response: dict[str, Json], body: dict[str, Json], origin: str) -> dict[str, Json]:
        """Return `response` with what it is in the grid."""
        own = {"id": self._response_id, "store": False, "background": bool(body.get("background"))}
        if isinstance(response.get("output"), list):
            own["output"] = [_mark_item(item, origin) for item in response["output"]]
        return {**response, **own}


def prepare_request(body: dict[str, Json], origin: str = "", drop: Drop = ignore) -> dict[str, Json]:
    """Return the body for an endpoint that stores nothing, whose model's origin is `origin`.

    `drop` is told what is left out.
    """
    request, stated = RESPONSES_TO_RESPONSES.split(body, drop)
    items = stated["input"]
    request["input"] = _prepare_items(items, origin) if isinstance(items, list) else items
    return {**request, "store": False}


def _prepare_items(items: list[dict[str, Json]], origin: str) -> list[dict[str, Json]]:
    """Return the items as they are sent."""
    prepared = []
    ids = CallIds(RESPONSES_ID)
    lacks_reasoning = False
    for item in items:
        kind, kept = item.get("type"), item
        if kind == REASONING:
            kept = _prepare_reasoning(item, origin)
            lacks_reasoning = lacks_reasoning or not kept
        elif lacks_reasoning and kind in WRITTEN and item.get("role", "assistant") == "assistant":
            kept = {name: value for name, value in item.items() if name != "id"}
        else:
            lacks_reasoning = False
        if isinstance(kept.get("call_id"), str):
            fit = ids.find_result if str(kind).endswith("_output") else ids.add_call
            kept = {**kept, "call_id": fit(kept["call_id"])}
        if kept:
            prepared.append(kept)
    return prepared


def _prepare_reasoning(item: dict[str, Json], origin: str) -> dict[str, Json]:
    """Return an item of reasoning as it is sent, empty if it is not."""
    kept = {name: value for name, value in item.items() if value is not None}
    if is_marked(item):
        content = find_content(item, origin)
        if content is None:
            return {}
        kept["encrypted_content"] = content
    return kept if kept.get("encrypted_content") or kept.get("content") else {}


def _mark_item(item: Json, origin: str) -> Json:
    """Return an item of the output, whose encrypted reasoning names its origin."""
    if not isinstance(item, dict) or item.get("type") != REASONING or not item.get("encrypted_content"):
        return item
    return {**item, "encrypted_content": mark_content(item["encrypted_content"], origin)}
