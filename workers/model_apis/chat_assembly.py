"""Assemble a streamed answer of the OpenAI API format into the one that it returns without streaming."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from gridq.protocol.models import Json, Usage
from workers.model_apis.api_request import COMPLETIONS
from workers.model_apis.token_estimates import estimate_tokens
from workers.model_apis.usage import complete_usage, parse_openai_usage

ATOMIC_FIELDS = frozenset({"role", "id", "type", "index", "name"})
"""Fields of a delta that the next delta does not continue."""


class ChatAssembler:
    """Assembles a chat completion or a text completion, complete or chunk by chunk.

    Each piece of a tool call has an index, as `identity.chat` gives it.
    `body` is the body of the request. Usage that the endpoint does not state is estimated from the request's
    characters, and from the characters of a complete answer or the pieces of a streamed one.
    """

    def __init__(self, path: str, body: dict[str, Json]) -> None:
        self._path = path
        self._body = body
        self._pieces = 0
        self._stated_usage: dict[str, Json] | None = None
        self._head: dict[str, Json] = {}
        self._choices: dict[int, dict[str, Any]] = {}

    def add_answer(self, answer: dict[str, Json]) -> None:
        """Take the complete answer. Raises ValueError if it has no choices."""
        choices = answer.get("choices")
        if (
            not isinstance(choices, list)
            or not choices
            or not all(isinstance(each, dict) for each in choices)
        ):
            raise ValueError("its answer has no choices")
        if isinstance(answer.get("usage"), dict):
            self._stated_usage = answer["usage"]
        self._head = {key: value for key, value in answer.items() if key != "choices"}
        self._choices = dict(enumerate(choices))
        output = [part for choice in choices for part in _list_output(choice)]
        self._pieces = estimate_tokens(output) if output else 0

    def add_event(self, event: dict[str, Json]) -> bool:
        """Take one chunk of a stream. Return whether it has content for the client."""
        for key, value in event.items():
            if value is not None:
                self._head[key] = value
        if isinstance(event.get("usage"), dict):
            self._stated_usage = event["usage"] or self._stated_usage
        choices = event.get("choices")
        if not isinstance(choices, list):
            return False
        choices = [choice for choice in choices if isinstance(choice, dict)]
        has_output = any(map(_list_output, choices))
        self._pieces += has_output
        for choice in choices:
            self._add_choice(choice)
        return has_output or any(choice.get("finish_reason") for choice in choices)

    def _add_choice(self, choice: dict[str, Json]) -> None:
        index = choice.get("index")
        index = index if isinstance(index, int) else 0
        merged = self._choices.setdefault(index, {"index": index, "finish_reason": None})
        for key, value in choice.items():
            if key == "delta" and isinstance(value, dict):
                _merge(merged.setdefault("message", {"role": "assistant", "content": None}), value)
            elif key == "text" and isinstance(value, str):
                merged["text"] = merged.get("text", "") + value
            elif key == "logprobs" and isinstance(value, dict):
                if merged.get("logprobs") is None:
                    merged["logprobs"] = {}
                _merge(merged["logprobs"], value)
            elif value is not None or key not in merged:
                merged[key] = value

    @property
    def is_complete(self) -> bool:
        """True once the stream has reached its end."""
        return bool(self._choices) and all(each.get("finish_reason") for each in self._choices.values())

    def build_head(self) -> dict[str, Json]:
        """Return the fields that every chunk starts with: id, object, created, model and the like."""
        return {
            key: value for key, value in self._head.items() if key not in ("choices", "obfuscation", "usage")
        }

    def build_answer(self) -> dict[str, Json]:
        """Return the answer so far, with its usage."""
        kind = "text_completion" if self._path == COMPLETIONS else "chat.completion"
        choices = [self._choices[index] for index in sorted(self._choices)]
        for choice in choices:
            for call in choice.get("message", {}).get("tool_calls") or ():
                call.pop("index", None)
                call["type"] = call.get("type") or "function"
        return {**self.build_head(), "object": kind, "choices": choices, "usage": self.build_usage()}

    def build_usage(self) -> dict[str, Json]:
        """Return the usage as the endpoint stated it, with estimates for what it left out."""
        return complete_usage(
            self._stated_usage,
            lambda: self._prompt_tokens if self._choices else 0,
            self._pieces,
            is_final=self.is_complete,
        )

    @cached_property
    def _prompt_tokens(self) -> int:
        return estimate_tokens(self._body)

    def compute_usage(self) -> Usage:
        """Return the usage so far."""
        return parse_openai_usage(self.build_usage(), self._head.get("service_tier"))


def _list_output(choice: dict[str, Json]) -> list[Json]:
    """Return the parts of a choice that the model wrote: text, reasoning, tool calls."""
    message = choice.get("delta") or choice.get("message") or {}
    parts = [choice.get("text"), *(message[field] for field in message if field != "role")]
    return [part for part in parts if part]


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
            merge_list(merged[key], value)
        elif not (key in ATOMIC_FIELDS and before and not value):
            merged[key] = value


def merge_list(merged: list[Any], items: list[Json]) -> None:
    """Merge the items of a delta into those of a message: by their index, items without one are added."""
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
