"""Assemble a streamed answer into the one that its API format returns without streaming.

If an endpoint states no usage, it is estimated from the characters of the request and the pieces or
characters of the answer.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

from gridq.protocol.models import Json, Usage
from gridq.protocol.token_count import count_tokens
from workers.model_apis.api_request import COMPLETIONS, ApiRequest
from workers.model_apis.token_estimates import CHARACTERS_PER_TOKEN, count_characters, estimate_tokens
from workers.model_apis.usage import complete_usage, parse_anthropic_usage, parse_count, parse_openai_usage

ATOMIC_FIELDS = frozenset({"role", "id", "type", "index", "name"})
"""Fields of a delta that the next delta does not continue."""


class AnswerAssembler(ABC):
    """One answer in the API format of the request."""

    def __init__(self, request: ApiRequest) -> None:
        self.request = request
        self.pieces = 0

    @abstractmethod
    def add_answer(self, answer: dict[str, Json]) -> None:
        """Take a complete answer. Raises ValueError if it has no content."""

    @abstractmethod
    def add_event(self, event: dict[str, Json]) -> bool:
        """Take one event of a stream. Return whether it has content for the client."""

    @abstractmethod
    def build_answer(self) -> dict[str, Json]:
        """Return the answer so far, with its usage."""

    @property
    @abstractmethod
    def is_complete(self) -> bool:
        """True once the stream has reached its end."""

    @abstractmethod
    def compute_usage(self) -> Usage:
        """Return the usage so far."""


class ChatAssembler(AnswerAssembler):
    """The OpenAI API format: `chat.completion` and its chunks, `text_completion`."""

    def __init__(self, request: ApiRequest) -> None:
        super().__init__(request)
        self.stated_usage: dict[str, Json] | None = None
        self._head: dict[str, Json] = {}
        self._choices: dict[int, dict[str, Any]] = {}

    def add_answer(self, answer: dict[str, Json]) -> None:
        choices = answer.get("choices")
        if (
            not isinstance(choices, list)
            or not choices
            or not all(isinstance(each, dict) for each in choices)
        ):
            raise ValueError("its answer has no choices")
        if isinstance(answer.get("usage"), dict):
            self.stated_usage = answer["usage"]
        self._head = {key: value for key, value in answer.items() if key != "choices"}
        self._choices = dict(enumerate(choices))
        if any(map(_has_content, choices)):
            self.pieces = sum(map(count_characters, choices)) // CHARACTERS_PER_TOKEN + 1

    def add_event(self, event: dict[str, Json]) -> bool:
        for key, value in event.items():
            if value is not None:
                self._head[key] = value
        if isinstance(event.get("usage"), dict):
            self.stated_usage = event["usage"] or self.stated_usage
        choices = event.get("choices")
        if not isinstance(choices, list):
            return False
        has_content = False
        for choice in choices:
            if isinstance(choice, dict):
                has_content = self._add_choice(choice) or has_content
        self.pieces += has_content
        return has_content

    def _add_choice(self, choice: dict[str, Json]) -> bool:
        index = choice.get("index")
        index = index if isinstance(index, int) else 0
        merged = self._choices.setdefault(index, {"index": index, "finish_reason": None})
        has_content = bool(choice.get("finish_reason"))
        for key, value in choice.items():
            if key == "delta" and isinstance(value, dict):
                message = merged.setdefault("message", {"role": "assistant", "content": None})
                has_content = any(value[field] for field in value if field != "role") or has_content
                _merge(message, value)
            elif key == "text" and isinstance(value, str):
                merged["text"] = merged.get("text", "") + value
                has_content = bool(value) or has_content
            elif key == "logprobs" and isinstance(value, dict):
                if merged.get("logprobs") is None:
                    merged["logprobs"] = {}
                _merge(merged["logprobs"], value)
            elif value is not None or key not in merged:
                merged[key] = value
        return has_content

    @property
    def is_complete(self) -> bool:
        return bool(self._choices) and all(each.get("finish_reason") for each in self._choices.values())

    def build_head(self) -> dict[str, Json]:
        """Return the fields that every chunk starts with: id, object, created, model and the like."""
        return {
            key: value for key, value in self._head.items() if key not in ("choices", "obfuscation", "usage")
        }

    def build_answer(self) -> dict[str, Json]:
        kind = "text_completion" if self.request.path == COMPLETIONS else "chat.completion"
        choices = [self._choices[index] for index in sorted(self._choices)]
        for choice in choices:
            for call in choice.get("message", {}).get("tool_calls") or ():
                call.pop("index", None)
        return {**self.build_head(), "object": kind, "choices": choices, "usage": self.build_usage()}

    def build_usage(self) -> dict[str, Json]:
        """Return the usage as the endpoint stated it, with estimates for what it left out."""
        return complete_usage(self.stated_usage, lambda: self._prompt_tokens, self.pieces)

    @cached_property
    def _prompt_tokens(self) -> int:
        return estimate_tokens(self.request.body)

    def compute_usage(self) -> Usage:
        return parse_openai_usage(self.build_usage(), self._head.get("service_tier"))


class MessageAssembler(AnswerAssembler):
    """The Anthropic API format: a `message` and its events."""

    def __init__(self, request: ApiRequest) -> None:
        super().__init__(request)
        self._message: dict[str, Any] = {}
        self._stated_usage: dict[str, Json] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._tool_inputs: dict[int, str] = {}
        self._is_complete = False

    def add_answer(self, answer: dict[str, Json]) -> None:
        if not isinstance(answer.get("content"), list):
            raise ValueError("its answer has no content")
        self._message = dict(answer)
        self._blocks = dict(enumerate(answer["content"]))
        if isinstance(answer.get("usage"), dict):
            self._stated_usage = answer["usage"]
        self.pieces = count_characters(answer["content"]) // CHARACTERS_PER_TOKEN + 1

    def add_event(self, event: dict[str, Json]) -> bool:
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
                has_content = True
            case "message_stop":
                self._is_complete = has_content = True
        self.pieces += has_content and event["type"] == "content_block_delta"
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
        return self._is_complete

    def build_answer(self) -> dict[str, Json]:
        for index in list(self._tool_inputs):
            self._finish_block(index)
        content = [self._blocks[index] for index in sorted(self._blocks)]
        return {**self._message, "content": content, "usage": self.build_usage()}

    def build_usage(self) -> dict[str, Json]:
        """Return the usage as the endpoint stated it, with estimates for what it left out."""
        usage = dict(self._stated_usage)
        if not parse_anthropic_usage(usage).tokens_in:
            usage["input_tokens"] = self._prompt_tokens
        if not self._is_output_stated():
            usage["output_tokens"] = self.pieces
        return usage

    def _is_output_stated(self) -> bool:
        # message_start states a preliminary number; message_delta or a complete answer has the final one
        stated = parse_count(self._stated_usage.get("output_tokens"))
        return bool(stated) and (self._message.get("stop_reason") is not None or stated > self.pieces)

    @cached_property
    def _prompt_tokens(self) -> int:
        return count_tokens(self.request.body)

    def compute_usage(self) -> Usage:
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


def _has_content(choice: dict[str, Any]) -> bool:
    """Return whether a complete choice holds any output of the model."""
    message = choice.get("message")
    return bool(choice.get("text")) or (
        isinstance(message, dict) and any(message[field] for field in message if field != "role")
    )


def _get_index(event: dict[str, Json]) -> int:
    index = event.get("index")
    return index if isinstance(index, int) else 0


def _merge(merged: dict[str, Any], delta: dict[str, Json]) -> None:
    """Merge a delta into a message: strings and lists grow, list items with an index merge by index."""
    for key, value in delta.items():
        before = merged.get(key)
        if value is None:
            merged.setdefault(key, None)
        elif isinstance(value, str) and isinstance(before, str) and key not in ATOMIC_FIELDS:
            merged[key] = before + value
        elif isinstance(value, dict):
            merged[key] = before if isinstance(before, dict) else {}
            _merge(merged[key], value)
        elif isinstance(value, list):
            merged[key] = before if isinstance(before, list) else []
            _merge_list(merged[key], value)
        elif not (key in ATOMIC_FIELDS and before and not value):
            merged[key] = value


def _merge_list(merged: list[Any], items: list[Json]) -> None:
    for item in items:
        index = item.get("index") if isinstance(item, dict) else None
        if not isinstance(index, int):
            merged.append(item)
            continue
        target = next(
            (each for each in merged if isinstance(each, dict) and each.get("index") == index), None
        )
        if target is None:
            target = {}
            merged.append(target)
        _merge(target, item)
