"""Answers of fake vendors, in each API format."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

ProtocolModel = Literal["openai", "anthropic", "google", "claude", "codex"]
PIECES = 4


@dataclass(frozen=True)
class Used:
    """The tokens of one call. `cached` and `written` are part of `tokens_in`, `reasoning` of `tokens_out`."""

    tokens_in: int
    tokens_out: int
    cached: int = 0
    written: int = 0
    reasoning: int = 0


def refusal(api: ProtocolModel, status: int) -> dict[str, Any]:
    """Return an error of the API format."""
    words = f"refused with {status}"
    if api == "anthropic":
        kind = "invalid_request_error" if status == 400 else "api_error"
        return {"type": "error", "error": {"type": kind, "message": words}}
    if api == "google":
        kind = "INVALID_ARGUMENT" if status == 400 else "UNAVAILABLE"
        return {"error": {"code": status, "message": words, "status": kind}}
    return {"error": {"message": words, "code": None}}


def _openai(text: str, used: Used, micro: int | None) -> dict[str, Any]:
    usage = {
        "prompt_tokens": used.tokens_in,
        "completion_tokens": used.tokens_out,
        "total_tokens": used.tokens_in + used.tokens_out,
        "prompt_tokens_details": {"cached_tokens": used.cached},
        "completion_tokens_details": {"reasoning_tokens": used.reasoning},
    }
    message = {"role": "assistant", "content": text}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1764288000,
        "model": "the-real-name",
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        "usage": usage,
    }


def _messages(used: Used) -> dict[str, int]:
    return {
        "input_tokens": used.tokens_in - used.cached - used.written,
        "cache_read_input_tokens": used.cached,
        "cache_creation_input_tokens": used.written,
        "output_tokens": used.tokens_out,
    }


def _anthropic(text: str, used: Used, micro: int | None) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "the-real-name",
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": _messages(used),
    }


def _google(text: str, used: Used, micro: int | None) -> dict[str, Any]:
    usage = {
        "promptTokenCount": used.tokens_in,
        "cachedContentTokenCount": used.cached,
        "candidatesTokenCount": used.tokens_out - used.reasoning,
        "thoughtsTokenCount": used.reasoning,
        "totalTokenCount": used.tokens_in + used.tokens_out,
    }
    content = {"parts": [{"text": text}], "role": "model"}
    candidate = {"content": content, "index": 0, "finishReason": "STOP"}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "1", "responseId": "r_1"}


def _claude(text: str, used: Used, micro: int | None) -> dict[str, Any]:
    result = {"type": "result", "subtype": "success", "is_error": False, "result": text, "session_id": "s-1"}
    cost = {"total_cost_usd": (micro or 0) / 1_000_000, "usage": _messages(used)}
    return {"lines": [result | cost | {"stop_reason": "end_turn"}]}


def _codex(text: str, used: Used, micro: int | None) -> dict[str, Any]:
    usage = {
        "input_tokens": used.tokens_in,
        "cached_input_tokens": used.cached,
        "output_tokens": used.tokens_out,
        "reasoning_output_tokens": used.reasoning,
    }
    message = {"id": "item_1", "type": "agent_message", "text": text}
    return {
        "lines": [{"type": "item.completed", "item": message}, {"type": "turn.completed", "usage": usage}]
    }


ANSWERS: dict[ProtocolModel, Callable[[str, Used, int | None], dict[str, Any]]] = {
    "openai": _openai,
    "anthropic": _anthropic,
    "google": _google,
    "claude": _claude,
    "codex": _codex,
}
"""By API format: a function that makes a whole answer from its text, tokens and micro-dollars."""


def _pieces(text: str) -> list[str]:
    size = -(-len(text) // PIECES)
    return [text[at : at + size] for at in range(0, len(text), size)]


def _event(data: dict[str, Any]) -> str:
    head = f"event: {data['type']}\n" if "type" in data else ""
    return f"{head}data: {json.dumps(data)}\n\n"


def _openai_stream(text: str, used: Used) -> Iterator[str]:
    whole = _openai(text, used, None)
    head = {name: whole[name] for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}

    def delta(finish: str | None = None, **content: str) -> str:
        return _event({**head, "choices": [{"index": 0, "delta": content, "finish_reason": finish}]})

    yield delta(role="assistant")
    for piece in _pieces(text):
        yield delta(content=piece)
    yield delta("stop")
    yield _event({**head, "choices": [], "usage": whole["usage"]})
    yield "data: [DONE]\n\n"


def _anthropic_stream(text: str, used: Used) -> Iterator[str]:
    whole = _anthropic(text, used, None)
    usage = {**whole["usage"], "output_tokens": 1}
    begun = {**whole, "content": [], "stop_reason": None, "usage": usage}
    yield _event({"type": "message_start", "message": begun})
    yield _event({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
    for piece in _pieces(text):
        delta = {"type": "text_delta", "text": piece}
        yield _event({"type": "content_block_delta", "index": 0, "delta": delta})
    yield _event({"type": "content_block_stop", "index": 0})
    stop = {"stop_reason": "end_turn", "stop_sequence": None}
    yield _event({"type": "message_delta", "delta": stop, "usage": {"output_tokens": used.tokens_out}})
    yield _event({"type": "message_stop"})


def _google_stream(text: str, used: Used) -> Iterator[str]:
    whole = _google(text, used, None)
    for piece in _pieces(text):
        content = {"parts": [{"text": piece}], "role": "model"}
        yield _event({"candidates": [{"content": content, "index": 0}], "responseId": "r_1"})
    last = {"content": {"parts": [{"text": ""}], "role": "model"}, "index": 0, "finishReason": "STOP"}
    yield _event({**whole, "candidates": [last]})


STREAMS: dict[ProtocolModel, Callable[[str, Used], Iterator[str]]] = {
    "openai": _openai_stream,
    "anthropic": _anthropic_stream,
    "google": _google_stream,
}
"""By API format: a function that yields the events of an answer, its usage included."""
