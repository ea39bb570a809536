"""Translate the answers of Google's API format to a chat completion and its chunks.

Google's models cannot be told to make one call at a time. If the request does not take several
(`parallel_tool_calls` false), the first call is kept: its model makes the others again once it has the
result. Their ids are made by `workers.model_apis.identity`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

from gridq.errors import SeatUnavailable, StageError
from gridq.protocol.models import Json
from workers.model_apis.token_estimates import estimate_tokens
from workers.model_apis.usage import format_openai_usage, is_count, parse_count, parse_google_usage

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
UNREADABLE_CALLS = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MALFORMED_RESPONSE"})
"""Finish reasons of a tool call that cannot be parsed. Another attempt may succeed."""


def raise_for_refusal(answer: dict[str, Json]) -> None:
    """Raise StageError if the prompt was blocked, SeatUnavailable if a candidate has no usable answer."""
    reason = (answer.get("promptFeedback") or {}).get("blockReason")
    if reason and not answer.get("candidates"):
        details = {"status": 400, "endpoint_code": "content_filter", "reason": f"blockReason {reason}"}
        raise StageError("The endpoint's filters blocked the prompt", details)
    for candidate in answer.get("candidates") or ():
        if candidate.get("finishReason") in UNREADABLE_CALLS:
            raise SeatUnavailable(
                "The model made a tool call that cannot be parsed", {"reason": candidate["finishReason"]}
            )


def wants_one_call(request: dict[str, Json]) -> bool:
    """Return whether an answer to a chat request may have only one tool call."""
    return request.get("parallel_tool_calls") is False


def build_completion(answer: dict[str, Json], request: dict[str, Json]) -> dict[str, Json]:
    """Translate an answer to a chat completion. Raises ValueError if it has no candidates."""
    raise_for_refusal(answer)
    if not answer.get("candidates"):
        raise ValueError("its answer has no candidates")
    choices = []
    for at, candidate in enumerate(answer["candidates"]):
        message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
        calls: list[dict[str, Json]] = []
        for delta in map(_translate_part, _get_parts(candidate)):
            calls += delta.pop("tool_calls", [])
            for key, value in delta.items():
                message[key] = (message.get(key) or type(value)()) + value
        if calls:
            message["tool_calls"] = calls[:1] if wants_one_call(request) else calls
        reason = _translate_reason(candidate, bool(calls)) or "stop"
        index = candidate.get("index", at)
        choices.append({"index": index, "message": message, "logprobs": None, "finish_reason": reason})
    return {
        **_make_head(answer, request, "chat.completion"),
        "choices": choices,
        "usage": _translate_usage(answer.get("usageMetadata")),
    }


class ContentChunks:
    """Translates the events of a stream to the chunks of a chat completion.

    Each event states the usage so far, which goes out first, as a chunk of its own, so that it is known when
    the answer begins and if the stream breaks off.
    """

    def __init__(self, request: dict[str, Json]) -> None:
        self._request = request
        self._head: dict[str, Json] = {}
        self._wants_one_call = wants_one_call(request)
        self._call_counts: dict[int, int] = {}
        self._started: set[int] = set()

    def add_event(self, event: dict[str, Json]) -> Iterable[dict[str, Json]]:
        """Yield the chunks for `event`. Raises the errors of `raise_for_refusal`."""
        raise_for_refusal(event)
        self._head = self._head or _make_head(event, self._request, "chat.completion.chunk")
        usage = _translate_usage(event.get("usageMetadata"))
        if usage is not None:
            yield {**self._head, "choices": [], "usage": usage}
        for at, candidate in enumerate(event.get("candidates") or ()):
            index = candidate.get("index", at)
            if index not in self._started:
                self._started.add(index)
                yield self._make_chunk(index, {"role": "assistant", "content": ""})
            for part in _get_parts(candidate):
                delta = _translate_part(part)
                if "tool_calls" in delta and self._wants_one_call and index in self._call_counts:
                    continue
                for call in delta.get("tool_calls", ()):
                    call["index"] = self._call_counts.get(index, 0)
                    self._call_counts[index] = call["index"] + 1
                if delta:
                    yield self._make_chunk(index, delta)
            reason = _translate_reason(candidate, index in self._call_counts)
            if reason is not None:
                yield self._make_chunk(index, {}, reason)

    def _make_chunk(self, index: int, delta: dict[str, Json], finish: str | None = None) -> dict[str, Json]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**self._head, "choices": [choice]}


def build_embeddings(answer: dict[str, Json], request: dict[str, Json]) -> dict[str, Json]:
    """Translate an answer of the Gemini API, or of Vertex AI's `predict`, to a list of embeddings.

    Estimates the tokens if the answer does not state them.
    """
    items: list[Any]
    if "predictions" in answer:
        items = [each["embeddings"] for each in answer["predictions"]]
        tokens = sum(parse_count((each.get("statistics") or {}).get("token_count")) for each in items)
    else:
        items = answer["embeddings"]
        tokens = parse_count((answer.get("usageMetadata") or {}).get("promptTokenCount"))
    data = [
        {"object": "embedding", "index": index, "embedding": item["values"]}
        for index, item in enumerate(items)
    ]
    tokens = tokens or estimate_tokens(request["input"])
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "model": request["model"], "data": data, "usage": usage}


def _make_head(answer: dict[str, Json], request: dict[str, Json], kind: str) -> dict[str, Json]:
    return {
        "object": kind,
        "created": int(time.time()),
        "model": answer.get("modelVersion") or request["model"],
    }


def _translate_usage(stated: Json) -> dict[str, Json] | None:
    """Translate a usage. What it does not state is left out, so that it can be estimated."""
    if not isinstance(stated, dict):
        return None
    usage = format_openai_usage(parse_google_usage(stated))
    if not is_count(stated.get("promptTokenCount")):
        del usage["prompt_tokens"], usage["total_tokens"]
    if not is_count(stated.get("candidatesTokenCount")) and not is_count(stated.get("thoughtsTokenCount")):
        del usage["completion_tokens"]
        usage.pop("total_tokens", None)
    return usage


def _get_parts(candidate: dict[str, Json]) -> list[dict[str, Json]]:
    parts = (candidate.get("content") or {}).get("parts")
    return parts if isinstance(parts, list) else []


def _translate_part(part: dict[str, Json]) -> dict[str, Any]:
    """Translate a part to a delta: reasoning, text, a tool call, or an image (in OpenRouter's `images`)."""
    if isinstance(part.get("text"), str):
        name = "reasoning_content" if part.get("thought") else "content"
        return {name: part["text"]} if part["text"] else {}
    if isinstance(part.get("functionCall"), dict):
        called = part["functionCall"]
        arguments = json.dumps(called.get("args") or {}, ensure_ascii=False)
        function = {"name": called["name"], "arguments": arguments}
        call = {
            "id": called.get("id"),
            "type": "function",
            "function": function,
        }
        if part.get("thoughtSignature"):
            call["extra_content"] = {"google": {"thought_signature": part["thoughtSignature"]}}
        return {"tool_calls": [call]}
    if isinstance(part.get("inlineData"), dict):
        image = part["inlineData"]
        url = f"data:{image['mimeType']};base64,{image['data']}"
        return {"images": [{"type": "image_url", "image_url": {"url": url}}]}
    return {}


def _translate_reason(candidate: dict[str, Json], has_tool_calls: bool) -> str | None:
    stated = candidate.get("finishReason")
    if not stated or stated == "FINISH_REASON_UNSPECIFIED":
        return None
    reason = FINISH_REASONS.get(stated, "stop")
    return "tool_calls" if has_tool_calls and reason == "stop" else reason
