"""Serve clients of Anthropic's Messages from a seat that has Messages itself.

Ids are the grid's own, and thinking that no vendor signed is left out.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json
from workers.model_apis.anthropic.thinking import settle_thinking
from workers.model_apis.api_request import ANTHROPIC, translate_request
from workers.model_apis.backend import Backend, TranslatingBackend, parse_answer
from workers.model_apis.identity.fitting import ANTHROPIC_ID, CallIds, make_call_id, make_id


class MessagesSeat(TranslatingBackend):
    """A backend of the Anthropic API format that sends its requests to `inner`, of the same format."""

    api = ANTHROPIC

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.is_strict = inner.is_strict

    def post(self, path: str, body: dict[str, Json], context: StageContext) -> dict[str, Json]:
        answer = self._inner.post(path, translate_request(_fit_request, body), context)
        return parse_answer(self, _identify_answer, answer)

    def stream(self, path: str, body: dict[str, Json], context: StageContext) -> Generator[dict[str, Json]]:
        request = translate_request(_fit_request, body)
        yield from self._translate_stream(path, request, context, lambda event: [_identify_event(event)])


def _fit_request(body: dict[str, Json]) -> dict[str, Json]:
    """Return the request with the thinking and the ids of tool calls that the seat takes."""
    ids = CallIds(ANTHROPIC_ID)
    messages = [_fit_message(message, ids) for message in body["messages"]]
    return settle_thinking({**body, "messages": messages})


def _fit_message(message: dict[str, Json], ids: CallIds) -> dict[str, Json]:
    if not isinstance(message.get("content"), list):
        return message
    blocks: list[Json] = []
    for block in message["content"]:
        match block:
            case {"type": "tool_use"}:
                blocks.append({**block, "id": ids.add_call(block.get("id"))})
            case {"type": "tool_result", "tool_use_id": str(call_id)}:
                blocks.append({**block, "tool_use_id": ids.find_result(call_id)})
            case _:
                blocks.append(block)
    return {**message, "content": blocks}


def _identify_block(block: Json) -> Json:
    if isinstance(block, dict) and block.get("type") == "tool_use":
        return {**block, "id": make_call_id(block.get("id"), "toolu")}
    return block


def _identify_answer(answer: dict[str, Json]) -> dict[str, Json]:
    identified: dict[str, Any] = {**answer, "id": make_id("msg")}
    if isinstance(answer.get("content"), list):
        identified["content"] = [_identify_block(block) for block in answer["content"]]
    return identified


def _identify_event(event: dict[str, Json]) -> dict[str, Json]:
    match event:
        case {"type": "message_start", "message": dict(message)}:
            return {**event, "message": {**message, "id": make_id("msg")}}
        case {"type": "content_block_start", "content_block": block}:
            return {**event, "content_block": _identify_block(block)}
    return event
