"""What Google's API format answers, as a chat completion and its chunks."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable
from typing import Any

from gridq.errors import SeatUnavailable, StageError
from gridq.protocol.models import Json
from workers.model_apis.stages import tokens_of
from workers.model_apis.usage import as_openai, count, google_usage

FINISH_REASONS = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "SAFETY": "content_filter",
    "RECITATION": "content_filter",
    "LANGUAGE": "content_filter",
    "BLOCKLIST": "content_filter",
    "PROHIBITED_CONTENT": "content_filter",
    "SPII": "content_filter",
    "IMAGE_SAFETY": "content_filter",
    "MODEL_ARMOR": "content_filter",
}
BROKEN = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MALFORMED_RESPONSE"})
"""The model made a call that cannot be read: another try may do better."""


def check(answer: dict[str, Json]) -> None:
    """StageError: the prompt was blocked. SeatUnavailable: a candidate ended in what is no answer."""
    why = (answer.get("promptFeedback") or {}).get("blockReason")
    if why and not answer.get("candidates"):
        details = {"status": 400, "endpoint_code": "content_filter", "reason": f"blockReason {why}"}
        raise StageError("The endpoint refused the prompt: its filters blocked it", details)
    for candidate in answer.get("candidates") or ():
        if candidate.get("finishReason") in BROKEN:
            raise SeatUnavailable(
                "The model made a call of a tool that cannot be read", {"reason": candidate["finishReason"]}
            )


def completion(answer: dict[str, Json], asked: dict[str, Json]) -> dict[str, Json]:
    """The chat completion that an answer is. ValueError: it has no candidates."""
    check(answer)
    if not answer.get("candidates"):
        raise ValueError("not one")
    choices = []
    for at, candidate in enumerate(answer["candidates"]):
        told: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
        calls: list[dict[str, Json]] = []
        for delta in map(_delta, _parts_of(candidate)):
            calls += delta.pop("tool_calls", [])
            for key, value in delta.items():
                told[key] = (told.get(key) or type(value)()) + value
        if calls:
            told["tool_calls"] = calls
        reason = _reason(candidate, bool(calls)) or "stop"
        index = candidate.get("index", at)
        choices.append({"index": index, "message": told, "logprobs": None, "finish_reason": reason})
    return {
        **_head(answer, asked, "chat.completion"),
        "choices": choices,
        "usage": _usage(answer.get("usageMetadata")),
    }


class ContentChunks:
    """The chunks of a chat completion, from the events of a stream. Each event says what was used so far, and
    a chunk of its own says it on: of a stream that breaks off it is what is known.
    """

    def __init__(self, asked: dict[str, Json]) -> None:
        self._asked = asked
        self._head: dict[str, Json] = {}
        self._calls: dict[int, int] = {}
        self._begun: set[int] = set()

    def add(self, event: dict[str, Json]) -> Iterable[dict[str, Json]]:
        """The chunks that `event` brings. StageError, SeatUnavailable: see `check`."""
        check(event)
        self._head = self._head or _head(event, self._asked, "chat.completion.chunk")
        for at, candidate in enumerate(event.get("candidates") or ()):
            index = candidate.get("index", at)
            if index not in self._begun:
                self._begun.add(index)
                yield self._chunk(index, {"role": "assistant", "content": ""})
            for part in _parts_of(candidate):
                delta = _delta(part)
                for call in delta.get("tool_calls", ()):
                    call["index"] = self._calls.get(index, 0)
                    self._calls[index] = call["index"] + 1
                if delta:
                    yield self._chunk(index, delta)
            reason = _reason(candidate, index in self._calls)
            if reason is not None:
                yield self._chunk(index, {}, reason)
        used = _usage(event.get("usageMetadata"))
        if used is not None:
            yield {**self._head, "choices": [], "usage": used}

    def _chunk(self, index: int, delta: dict[str, Json], finish: str | None = None) -> dict[str, Json]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**self._head, "choices": [choice]}


def embeddings(answer: dict[str, Json], asked: dict[str, Json]) -> dict[str, Json]:
    """The list of embeddings that an answer is, of the Gemini API or of Vertex AI's `predict`. Where it does
    not say what it used, that is counted by rule of thumb.
    """
    told: list[Any]
    if "predictions" in answer:
        told = [each["embeddings"] for each in answer["predictions"]]
        counts = [count((each.get("statistics") or {}).get("token_count")) for each in told]
        used = sum(counts)
    else:
        told = answer["embeddings"]
        used = count((answer.get("usageMetadata") or {}).get("promptTokenCount"))
    data = [{"object": "embedding", "index": at, "embedding": each["values"]} for at, each in enumerate(told)]
    used = used or tokens_of(asked["input"])
    usage = {"prompt_tokens": used, "total_tokens": used}
    return {"object": "list", "model": asked["model"], "data": data, "usage": usage}


def _head(answer: dict[str, Json], asked: dict[str, Json], made: str) -> dict[str, Json]:
    return {
        "id": f"chatcmpl-{answer.get('responseId') or uuid.uuid4().hex}",
        "object": made,
        "created": int(time.time()),
        "model": answer.get("modelVersion") or asked["model"],
    }


def _usage(stated: Json) -> dict[str, Json] | None:
    return as_openai(google_usage(stated)) if isinstance(stated, dict) else None


def _parts_of(candidate: dict[str, Json]) -> list[dict[str, Json]]:
    found = (candidate.get("content") or {}).get("parts")
    return found if isinstance(found, list) else []


def _delta(part: dict[str, Json]) -> dict[str, Any]:
    """What a part adds to a message: thinking, text, a call, a picture (as OpenRouter's `images`)."""
    if isinstance(part.get("text"), str):
        name = "reasoning_content" if part.get("thought") else "content"
        return {name: part["text"]} if part["text"] else {}
    if isinstance(part.get("functionCall"), dict):
        told = part["functionCall"]
        function = {"name": told["name"], "arguments": json.dumps(told.get("args") or {}, ensure_ascii=False)}
        call = {"id": told.get("id") or f"call_{uuid.uuid4().hex}", "type": "function", "function": function}
        if part.get("thoughtSignature"):
            call["extra_content"] = {"google": {"thought_signature": part["thoughtSignature"]}}
        return {"tool_calls": [call]}
    if isinstance(part.get("inlineData"), dict):
        told = part["inlineData"]
        url = f"data:{told['mimeType']};base64,{told['data']}"
        return {"images": [{"type": "image_url", "image_url": {"url": url}}]}
    return {}


def _reason(candidate: dict[str, Json], called: bool) -> str | None:
    told = candidate.get("finishReason")
    if not told or told == "FINISH_REASON_UNSPECIFIED":
        return None
    reason = FINISH_REASONS.get(told, "stop")
    return "tool_calls" if called and reason == "stop" else reason
