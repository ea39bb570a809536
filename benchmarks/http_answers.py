"""Build the answers of the benchmark's endpoint in three API formats.

Streams begin as those of real endpoints do: OpenAI, vLLM and llama.cpp first send a chunk with the role and
no text, and Responses and Messages send several events before the first text.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

TOKENS = 8
TEXT = "It is as it was said to be."
INPUT_TOKENS = 60

Event = dict[str, Any]

_CHAT = {"id": "chatcmpl-bench", "created": 1_700_000_000, "model": "bench"}
_CHAT_USAGE = {
    "prompt_tokens": INPUT_TOKENS,
    "completion_tokens": TOKENS,
    "total_tokens": INPUT_TOKENS + TOKENS,
}
_MESSAGE = {
    "id": "msg_bench",
    "type": "message",
    "role": "assistant",
    "model": "bench",
    "stop_sequence": None,
}
_MESSAGE_USAGE = {"input_tokens": INPUT_TOKENS, "output_tokens": TOKENS}
_RESPONSE_USAGE = {
    "input_tokens": INPUT_TOKENS,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens": TOKENS,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": INPUT_TOKENS + TOKENS,
}
_PLACE = {"item_id": "msg_bench", "output_index": 0, "content_index": 0}


@dataclass(frozen=True)
class AnswerFormat:
    """The answers of one API format.

    `build_answer(text)` returns a whole answer. A stream has the events of `begin()`, one of
    `build_token(text)` for each token, and those of `end(text)` with the whole text. `has_usage_option` is
    true if the last event of `end` is sent only on request. `names_events` is true if each event is sent
    with its type as its name, else the data `[DONE]` ends the stream.
    """

    build_answer: Callable[[str], Event]
    begin: Callable[[], list[Event]]
    build_token: Callable[[str], Event]
    end: Callable[[str], list[Event]]
    has_usage_option: bool = False
    names_events: bool = True


def _build_completion(text: str) -> Event:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return {**_CHAT, "object": "chat.completion", "choices": [choice], "usage": _CHAT_USAGE}


def _build_chunk(delta: Event, finish: str | None = None) -> Event:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    return {**_CHAT, "object": "chat.completion.chunk", "choices": choices}


def _end_chat(text: str) -> list[Event]:
    usage = {**_CHAT, "object": "chat.completion.chunk", "choices": [], "usage": _CHAT_USAGE}
    return [_build_chunk({}, "stop"), usage]


def _build_text_part(text: str) -> Event:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _build_item(text: str) -> Event:
    message = {"id": "msg_bench", "type": "message", "role": "assistant", "status": "completed"}
    return {**message, "content": [_build_text_part(text)]}


def _build_response(text: str) -> Event:
    return {
        "id": "resp_bench",
        "object": "response",
        "created_at": 1_700_000_000,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": "bench",
        "output": [_build_item(text)],
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": _RESPONSE_USAGE,
    }


def _begin_response() -> list[Event]:
    response = {**_build_response(""), "status": "in_progress", "output": [], "usage": None}
    item = {**_build_item(""), "status": "in_progress", "content": []}
    return [
        {"type": "response.created", "response": response},
        {"type": "response.in_progress", "response": response},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.content_part.added", **_PLACE, "part": _build_text_part("")},
    ]


def _end_response(text: str) -> list[Event]:
    return [
        {"type": "response.output_text.done", **_PLACE, "text": text, "logprobs": []},
        {"type": "response.content_part.done", **_PLACE, "part": _build_text_part(text)},
        {"type": "response.output_item.done", "output_index": 0, "item": _build_item(text)},
        {"type": "response.completed", "response": _build_response(text)},
    ]


def _build_message(text: str) -> Event:
    content = [{"type": "text", "text": text}]
    return {**_MESSAGE, "content": content, "stop_reason": "end_turn", "usage": _MESSAGE_USAGE}


def _begin_message() -> list[Event]:
    usage = {**_MESSAGE_USAGE, "output_tokens": 1}
    return [
        {
            "type": "message_start",
            "message": {**_MESSAGE, "content": [], "stop_reason": None, "usage": usage},
        },
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    ]


def _end_message(text: str) -> list[Event]:
    stop = {"stop_reason": "end_turn", "stop_sequence": None}
    return [
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": stop, "usage": {"output_tokens": TOKENS}},
        {"type": "message_stop"},
    ]


FORMATS: dict[str, AnswerFormat] = {
    "chat/completions": AnswerFormat(
        _build_completion,
        lambda: [_build_chunk({"role": "assistant", "content": ""})],
        lambda text: _build_chunk({"content": text}),
        _end_chat,
        has_usage_option=True,
        names_events=False,
    ),
    "responses": AnswerFormat(
        _build_response,
        _begin_response,
        lambda text: {"type": "response.output_text.delta", **_PLACE, "delta": text, "logprobs": []},
        _end_response,
    ),
    "messages": AnswerFormat(
        _build_message,
        _begin_message,
        lambda text: {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": text},
        },
        _end_message,
    ),
}
"""The format of each path below `/v1/`."""


def encode(value: Any) -> bytes:
    """Return a value as JSON."""
    return json.dumps(value, separators=(",", ":")).encode()


def encode_response(body: bytes) -> bytes:
    """Return a whole HTTP response."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
STREAM_END = b"0\r\n\r\n"


class EventStream:
    """Encodes the events of one streamed answer as they are sent over HTTP."""

    def __init__(self, answer_format: AnswerFormat, *, usage: bool) -> None:
        self._format = answer_format
        self._usage = usage or not answer_format.has_usage_option
        self._number = 0
        self._text = ""

    def begin(self) -> bytes:
        """Return the head and the events before the first token."""
        return STREAM_HEAD + b"".join(map(self._encode, self._format.begin()))

    def add_token(self, text: str) -> bytes:
        """Return the event of one token."""
        self._text += text
        return self._encode(self._format.build_token(text))

    def end(self) -> bytes:
        """Return the last events."""
        events = self._format.end(self._text)
        sent = b"".join(map(self._encode, events if self._usage else events[:-1]))
        done = b"" if self._format.names_events else _encode_event(b"[DONE]")
        return sent + done + STREAM_END

    def _encode(self, event: Event) -> bytes:
        if event.get("type", "").startswith("response."):
            event = {"type": event["type"], "sequence_number": self._number, **event}
            self._number += 1
        return _encode_event(encode(event), event["type"] if self._format.names_events else "")


def _encode_event(data: bytes, name: str = "") -> bytes:
    named = b"event: %b\n" % name.encode() if name else b""
    text = b"%bdata: %b\n\n" % (named, data)
    return b"%x\r\n%b\r\n" % (len(text), text)
