"""Assemble a streamed answer of the Anthropic API format into the one that it returns without streaming."""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any

from gridq.protocol.models import Json, Usage
from gridq.protocol.token_count import count_tokens
from workers.model_apis.token_estimates import CHARACTERS_PER_TOKEN, count_characters
from workers.model_apis.usage import is_count, parse_anthropic_usage, parse_count


class MessageAssembler:
    """Assembles a `message` of the Anthropic API format, complete or event by event.

    `body` is the body of the request, from which missing usage is estimated.
    """

    def __init__(self, body: dict[str, Json]) -> None:
        self._body = body
        self._pieces = 0
        self._message: dict[str, Any] = {}
        self._stated_usage: dict[str, Json] = {}
        self._final_usage: frozenset[str] = frozenset()  # what is stated at the end, where 0 is 0
        self._blocks: dict[int, dict[str, Any]] = {}
        self._tool_inputs: dict[int, str] = {}
        self._is_complete = False

    def add_answer(self, answer: dict[str, Json]) -> None:
        """Take the complete answer. Raises ValueError if it has no content."""
        if not isinstance(answer.get("content"), list):
            raise ValueError("its answer has no content")
        self._message = dict(answer)
        self._blocks = dict(enumerate(answer["content"]))
        if isinstance(answer.get("usage"), dict):
            self._stated_usage = answer["usage"]
            self._final_usage = _list_counts(answer["usage"])
        self._pieces = count_characters(answer["content"]) // CHARACTERS_PER_TOKEN + 1

    def add_event(self, event: dict[str, Json]) -> bool:
        """Take one event of a stream. Return whether it has content for the client."""
        has_content = False
        match event.get("type"):
            case "message_start":
                self._message = dict(event.get("message") or {})
                self._stated_usage = dict(self._message.get("usage") or {})
            case "content_block_start":
                block = dict(event.get("content_block") or {})
                self._blocks[_get_index(event)] = block
                has_content = block.get("type") not in ("text", "thinking")
            case "content_block_delta":
                has_content = self._continue_block(_get_index(event), event.get("delta") or {})
            case "content_block_stop":
                self._finish_block(_get_index(event))
            case "message_delta":
                self._message.update(event.get("delta") or {})
                stated = event.get("usage") or {}
                self._stated_usage.update({key: value for key, value in stated.items() if value is not None})
                self._final_usage |= _list_counts(stated)
                has_content = True
            case "message_stop":
                self._is_complete = has_content = True
        self._pieces += has_content and event["type"] == "content_block_delta"
        return has_content

    def _continue_block(self, index: int, delta: dict[str, Json]) -> bool:
        block = self._blocks.setdefault(index, {"type": "text", "text": ""})
        match delta.get("type"):
            case "text_delta":
                block["text"] = block.get("text", "") + delta.get("text", "")
            case "input_json_delta":
                self._tool_inputs[index] = self._tool_inputs.get(index, "") + delta.get("partial_json", "")
            case "thinking_delta":
                block["thinking"] = block.get("thinking", "") + delta.get("thinking", "")
            case "signature_delta":
                block["signature"] = delta.get("signature", "")
            case "citations_delta":
                block["citations"] = [*(block.get("citations") or ()), delta.get("citation")]
        return True

    def _finish_block(self, index: int) -> None:
        tool_input = self._tool_inputs.pop(index, "")
        if tool_input and index in self._blocks:
            self._blocks[index]["input"] = parse_tool_input(tool_input)

    @property
    def is_complete(self) -> bool:
        """True once the stream has reached its end."""
        return self._is_complete

    def build_answer(self) -> dict[str, Json]:
        """Return the answer so far, with its usage."""
        for index in list(self._tool_inputs):
            self._finish_block(index)
        content = [self._blocks[index] for index in sorted(self._blocks)]
        return {**self._message, "content": content, "usage": self.build_usage()}

    def build_usage(self) -> dict[str, Json]:
        """Return the usage as the endpoint stated it, with estimates for what it left out."""
        usage = dict(self._stated_usage)
        if not parse_anthropic_usage(usage).tokens_in and "input_tokens" not in self._final_usage:
            usage["input_tokens"] = self._prompt_tokens
        if not self._is_output_stated():
            usage["output_tokens"] = self._pieces
        return usage

    def _is_output_stated(self) -> bool:
        # message_start states a preliminary number; message_delta or a complete answer has the final one
        stated = parse_count(self._stated_usage.get("output_tokens"))
        return "output_tokens" in self._final_usage or stated > self._pieces

    @cached_property
    def _prompt_tokens(self) -> int:
        return count_tokens(self._body)

    def compute_usage(self) -> Usage:
        """Return the usage so far."""
        return parse_anthropic_usage(self.build_usage())


def parse_tool_input(text: str) -> dict[str, Json]:
    """Return the arguments of a tool call. Text that is no JSON object goes under INVALID_JSON, as Anthropic
    recommends.
    """
    if not text.strip():
        return {}
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    return parsed if isinstance(parsed, dict) else {"INVALID_JSON": text}


def _list_counts(usage: dict[str, Json]) -> frozenset[str]:
    """Return the fields of `usage` that state a number of tokens."""
    return frozenset(name for name, value in usage.items() if is_count(value))


def _get_index(event: dict[str, Json]) -> int:
    index = event.get("index")
    return index if isinstance(index, int) else 0
