"""Answers as they come in, event by event or whole, put together to what their API format gives without streaming.

An endpoint that states no usage is counted by rule of thumb: the request's characters, and the pieces or the
characters of its answer.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

from gridq.protocol.models import Json, Usage
from gridq.protocol.token_count import count_tokens
from workers.model_apis.request import COMPLETIONS, Asked
from workers.model_apis.stages import CHARACTERS_A_TOKEN, characters, tokens_of
from workers.model_apis.usage import anthropic_usage, count, filled, openai_usage

SAID_ONCE = frozenset({"role", "id", "type", "index", "name"})
"""Fields of a delta that are not continued by the next one."""


class Whole(ABC):
    """One answer in the API format that was asked."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.pieces = 0

    @abstractmethod
    def take(self, answer: dict[str, Json]) -> None:
        """Take a whole answer in; ValueError in words where it is none."""

    @abstractmethod
    def add(self, event: dict[str, Json]) -> bool:
        """Take an event of a stream in; whether it says something that the client will read."""

    @abstractmethod
    def answer(self) -> dict[str, Json]:
        """The answer so far, with its usage."""

    @property
    @abstractmethod
    def complete(self) -> bool:
        """Whether the stream came to its end."""

    @abstractmethod
    def spent(self) -> Usage:
        """What was used so far."""


class Chunks(Whole):
    """The OpenAI API format: `chat.completion` and its chunks, `text_completion`."""

    def __init__(self, asked: Asked) -> None:
        super().__init__(asked)
        self.usage: dict[str, Json] | None = None
        self._head: dict[str, Json] = {}
        self._choices: dict[int, dict[str, Any]] = {}

    def take(self, answer: dict[str, Json]) -> None:
        choices = answer.get("choices")
        if (
            not isinstance(choices, list)
            or not choices
            or not all(isinstance(each, dict) for each in choices)
        ):
            raise ValueError("its answer has no choices")
        if isinstance(answer.get("usage"), dict):
            self.usage = answer["usage"]
        self._head = {key: value for key, value in answer.items() if key != "choices"}
        self._choices = dict(enumerate(choices))
        if any(map(_says, choices)):
            self.pieces = sum(map(characters, choices)) // CHARACTERS_A_TOKEN + 1

    def add(self, event: dict[str, Json]) -> bool:
        for key, value in event.items():
            if value is not None:
                self._head[key] = value
        if isinstance(event.get("usage"), dict):
            self.usage = event["usage"] or self.usage
        choices = event.get("choices")
        if not isinstance(choices, list):
            return False
        says = False
        for choice in choices:
            if isinstance(choice, dict):
                says = self._add_choice(choice) or says
        self.pieces += says
        return says

    def _add_choice(self, choice: dict[str, Json]) -> bool:
        index = choice.get("index")
        index = index if isinstance(index, int) else 0
        known = self._choices.setdefault(index, {"index": index, "finish_reason": None})
        says = bool(choice.get("finish_reason"))
        for key, value in choice.items():
            if key == "delta" and isinstance(value, dict):
                message = known.setdefault("message", {"role": "assistant", "content": None})
                says = any(value[field] for field in value if field != "role") or says
                _merge(message, value)
            elif key == "text" and isinstance(value, str):
                known["text"] = known.get("text", "") + value
                says = bool(value) or says
            elif key == "logprobs" and isinstance(value, dict):
                if known.get("logprobs") is None:
                    known["logprobs"] = {}
                _merge(known["logprobs"], value)
            elif value is not None or key not in known:
                known[key] = value
        return says

    @property
    def complete(self) -> bool:
        return bool(self._choices) and all(each.get("finish_reason") for each in self._choices.values())

    def head(self) -> dict[str, Json]:
        """What every chunk begins with: id, object, created, model and the like."""
        return {
            key: value for key, value in self._head.items() if key not in ("choices", "obfuscation", "usage")
        }

    def answer(self) -> dict[str, Json]:
        made = "text_completion" if self.asked.path == COMPLETIONS else "chat.completion"
        choices = [self._choices[index] for index in sorted(self._choices)]
        for choice in choices:
            for call in choice.get("message", {}).get("tool_calls") or ():
                call.pop("index", None)
        return {**self.head(), "object": made, "choices": choices, "usage": self.stated()}

    def stated(self) -> dict[str, Json]:
        """The usage as the endpoint stated it, what it left out by rule of thumb."""
        return filled(self.usage, lambda: self._prompt, self.pieces)

    @cached_property
    def _prompt(self) -> int:
        return tokens_of(self.asked.body)

    def spent(self) -> Usage:
        return openai_usage(self.stated(), self._head.get("service_tier"))


class Events(Whole):
    """The Anthropic API format: a `message` and its events."""

    def __init__(self, asked: Asked) -> None:
        super().__init__(asked)
        self._message: dict[str, Any] = {}
        self._usage: dict[str, Json] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._inputs: dict[int, str] = {}
        self._complete = False

    def take(self, answer: dict[str, Json]) -> None:
        if not isinstance(answer.get("content"), list):
            raise ValueError("its answer has no content")
        self._message = dict(answer)
        self._blocks = dict(enumerate(answer["content"]))
        if isinstance(answer.get("usage"), dict):
            self._usage = answer["usage"]
        self.pieces = characters(answer["content"]) // CHARACTERS_A_TOKEN + 1

    def add(self, event: dict[str, Json]) -> bool:
        says = False
        match event.get("type"):
            case "message_start":
                self._message = dict(event.get("message") or {})
                self._usage = dict(self._message.get("usage") or {})
            case "content_block_start":
                block = dict(event.get("content_block") or {})
                self._blocks[_index(event)] = block
                says = block.get("type") not in ("text", "thinking")
            case "content_block_delta":
                says = self._continue(_index(event), event.get("delta") or {})
            case "content_block_stop":
                self._finish(_index(event))
            case "message_delta":
                self._message.update(event.get("delta") or {})
                stated = event.get("usage") or {}
                self._usage.update({key: value for key, value in stated.items() if value is not None})
                says = True
            case "message_stop":
                self._complete = says = True
        self.pieces += says and event["type"] == "content_block_delta"
        return says

    def _continue(self, index: int, delta: dict[str, Json]) -> bool:
        block = self._blocks.setdefault(index, {"type": "text", "text": ""})
        match delta.get("type"):
            case "text_delta":
                block["text"] = block.get("text", "") + delta.get("text", "")
            case "input_json_delta":
                self._inputs[index] = self._inputs.get(index, "") + delta.get("partial_json", "")
            case "thinking_delta":
                block["thinking"] = block.get("thinking", "") + delta.get("thinking", "")
            case "signature_delta":
                block["signature"] = delta.get("signature", "")
            case "citations_delta":
                block["citations"] = [*(block.get("citations") or ()), delta.get("citation")]
        return True

    def _finish(self, index: int) -> None:
        told = self._inputs.pop(index, "")
        if told and index in self._blocks:
            self._blocks[index]["input"] = tool_input(told)

    @property
    def complete(self) -> bool:
        return self._complete

    def answer(self) -> dict[str, Json]:
        for index in list(self._inputs):
            self._finish(index)
        content = [self._blocks[index] for index in sorted(self._blocks)]
        return {**self._message, "content": content, "usage": self.stated()}

    def stated(self) -> dict[str, Json]:
        """The usage as the endpoint stated it, what it left out by rule of thumb."""
        usage = dict(self._usage)
        if not anthropic_usage(usage).tokens_in:
            usage["input_tokens"] = self._prompt
        if not self._told_output():
            usage["output_tokens"] = self.pieces
        return usage

    def _told_output(self) -> bool:
        # the number in message_start is a beginning; only message_delta or a whole answer tells the end
        told = count(self._usage.get("output_tokens"))
        return bool(told) and (self._message.get("stop_reason") is not None or told > self.pieces)

    @cached_property
    def _prompt(self) -> int:
        return count_tokens(self.asked.body)

    def spent(self) -> Usage:
        return anthropic_usage(self.stated())


def tool_input(text: str) -> dict[str, Json]:
    """A tool's arguments. What is no JSON object stands under INVALID_JSON, as Anthropic advises."""
    if not text.strip():
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"INVALID_JSON": text}


def _says(choice: dict[str, Any]) -> bool:
    """Whether a whole choice holds something of the model's."""
    message = choice.get("message")
    return bool(choice.get("text")) or (
        isinstance(message, dict) and any(message[field] for field in message if field != "role")
    )


def _index(event: dict[str, Json]) -> int:
    index = event.get("index")
    return index if isinstance(index, int) else 0


def _merge(known: dict[str, Any], part: dict[str, Json]) -> None:
    """Continue a message's fields by those of a delta: texts and lists grow, indexed parts by their index."""
    for key, value in part.items():
        before = known.get(key)
        if value is None:
            known.setdefault(key, None)
        elif isinstance(value, str) and isinstance(before, str) and key not in SAID_ONCE:
            known[key] = before + value
        elif isinstance(value, dict):
            known[key] = before if isinstance(before, dict) else {}
            _merge(known[key], value)
        elif isinstance(value, list):
            known[key] = before if isinstance(before, list) else []
            _merge_list(known[key], value)
        elif not (key in SAID_ONCE and before and not value):
            known[key] = value


def _merge_list(known: list[Any], parts: list[Json]) -> None:
    for part in parts:
        index = part.get("index") if isinstance(part, dict) else None
        if not isinstance(index, int):
            known.append(part)
            continue
        place = next((each for each in known if isinstance(each, dict) and each.get("index") == index), None)
        if place is None:
            place = {}
            known.append(place)
        _merge(place, part)
