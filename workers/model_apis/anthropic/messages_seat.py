"""Serve clients of Anthropic's Messages from a seat that has Messages itself.

Ids are the grid's own, and thinking that no vendor signed is left out. Signatures of other endpoints than
Anthropic's own name their origin, because Anthropic would reject them. Its own stay as they are, and it
leaves out by itself what a model must not read of another.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any
from urllib.parse import urlsplit

from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json
from workers.model_apis.anthropic.thinking import settle_thinking
from workers.model_apis.api_request import ANTHROPIC, translate_request
from workers.model_apis.backend import Backend, TranslatingBackend, parse_answer
from workers.model_apis.identity.fitting import ANTHROPIC_ID, CallIds, make_call_id, make_id
from workers.model_apis.identity.origins import name_origin
from workers.model_apis.reasoning_marks import mark_block, mark_content, restore_block

VENDOR_HOST = "api.anthropic.com"


class MessagesSeat(TranslatingBackend):
    """A backend of the Anthropic API format that sends its requests to `seat`, of the same format."""

    api = ANTHROPIC

    def __init__(self, seat: Backend) -> None:
        super().__init__(seat)
        self.is_strict = seat.is_strict
        self._seat = seat

    def post(self, path: str, body: dict[str, Json], context: StageContext) -> dict[str, Json]:
        origin = self._name_origin(body)
        answer = self._inner.post(path, translate_request(_fit_request, body, origin), context)
        return parse_answer(self, _identify_answer, answer, origin)

    def stream(self, path: str, body: dict[str, Json], context: StageContext) -> Generator[dict[str, Json]]:
        origin = self._name_origin(body)
        request = translate_request(_fit_request, body, origin)
        yield from self._translate_stream(
            path, request, context, lambda event: [_identify_event(event, origin)]
        )

    def _name_origin(self, body: dict[str, Json]) -> str:
        """Return the origin that signatures name, "" for Anthropic's own: it knows them by itself."""
        is_vendor = urlsplit(getattr(self._seat, "url", "")).hostname == VENDOR_HOST
        return "" if is_vendor else name_origin(body["model"], self._seat)


def _fit_request(body: dict[str, Json], origin: str) -> dict[str, Json]:
    """Return the request with the thinking and the ids of tool calls that the seat takes."""
    ids = CallIds(ANTHROPIC_ID)
    messages = [_fit_message(message, ids, origin) for message in body["messages"]]
    return settle_thinking({**body, "messages": messages})


def _fit_message(message: dict[str, Json], ids: CallIds, origin: str) -> dict[str, Json]:
    if not isinstance(message.get("content"), list):
        return message
    blocks: list[Json] = []
    for block in message["content"]:
        match block:
            case {"type": "tool_use"}:
                blocks.append({**block, "id": ids.add_call(block.get("id"))})
            case {"type": "tool_result", "tool_use_id": str(call_id)}:
                blocks.append({**block, "tool_use_id": ids.find_result(call_id)})
            case {"type": "thinking" | "redacted_thinking"} if origin:
                blocks.append(restore_block(block, origin))
            case _:
                blocks.append(block)
    return {**message, "content": blocks}


def _identify_block(block: Json, origin: str) -> Json:
    match block:
        case {"type": "tool_use"}:
            return {**block, "id": make_call_id(block.get("id"), "toolu")}
        case {"type": "thinking" | "redacted_thinking"} if origin:
            return mark_block(block, origin)
    return block


def _identify_answer(answer: dict[str, Json], origin: str) -> dict[str, Json]:
    identified: dict[str, Any] = {**answer, "id": make_id("msg")}
    if isinstance(answer.get("content"), list):
        identified["content"] = [_identify_block(block, origin) for block in answer["content"]]
    return identified


def _identify_event(event: dict[str, Json], origin: str) -> dict[str, Json]:
    match event:
        case {"type": "message_start", "message": dict(message)}:
            return {**event, "message": {**message, "id": make_id("msg")}}
        case {"type": "content_block_start", "content_block": block}:
            return {**event, "content_block": _identify_block(block, origin)}
        case {
            "type": "content_block_delta",
            "delta": {"type": "signature_delta", "signature": str(signature)},
        }:
            if origin and signature:
                return {**event, "delta": {**event["delta"], "signature": mark_content(signature, origin)}}
    return event
