"""A chat completion and its chunks as a `message` and its events, as Anthropic's Messages gives them."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gridq.protocol.models import Json
from gridq.protocol.token_count import count_tokens
from workers.model_apis.usage import as_anthropic, openai_usage
from workers.model_apis.whole_answers import tool_input

STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
REASONING = ("reasoning_content", "reasoning")
"""Where OpenAI-shaped endpoints put a model's thinking; the vendor's own does not send it."""


def message(answer: dict[str, Json], asked: dict[str, Json]) -> dict[str, Json]:
    """The `message` that a chat completion is."""
    choice = answer["choices"][0]
    told = choice["message"]
    content: list[dict[str, Json]] = []
    reasoning = _reasoning(told, asked)
    if reasoning:
        content.append({"type": "thinking", "thinking": reasoning, "signature": ""})
    text = told.get("content") or told.get("refusal")
    if text:
        content.append({"type": "text", "text": text})
    for at, call in enumerate(told.get("tool_calls") or ()):
        function = call["function"]
        name, called = call.get("id") or f"toolu_{answer.get('id', '')}_{at}", function.get("arguments") or ""
        content.append(
            {"type": "tool_use", "id": name, "name": function["name"], "input": tool_input(called)}
        )
    return {
        **_head(answer, asked),
        "content": content,
        **_stop(choice, asked, any(block["type"] == "tool_use" for block in content)),
        "usage": usage(answer.get("usage")),
    }


def _head(answer: dict[str, Json], asked: dict[str, Json]) -> dict[str, Json]:
    name = answer.get("id") or "answer"
    return {
        "id": f"msg_{name}",
        "type": "message",
        "role": "assistant",
        "model": answer.get("model") or asked["model"],
    }


def _reasoning(told: dict[str, Json], asked: dict[str, Json]) -> str:
    """The model's thinking in a message or a delta, where the client asked for thinking."""
    if (asked.get("thinking") or {}).get("type", "disabled") == "disabled":
        return ""
    return next((told[key] for key in REASONING if isinstance(told.get(key), str)), "")


def _stop(choice: dict[str, Json], asked: dict[str, Json], called: bool) -> dict[str, Json]:
    """Why the answer ended. `stop_reason` of a choice is vLLM's: the stop text that was met."""
    met = choice.get("stop_reason")
    if isinstance(met, str) and met in (asked.get("stop_sequences") or ()):
        return {"stop_reason": "stop_sequence", "stop_sequence": met}
    reason = STOP_REASONS.get(choice.get("finish_reason") or "stop", "end_turn")
    return {"stop_reason": "tool_use" if called and reason == "end_turn" else reason, "stop_sequence": None}


def usage(stated: Json) -> dict[str, Json]:
    """The usage in Messages' terms, where input that came from the cache is counted apart."""
    return as_anthropic(openai_usage(stated))


@dataclass(eq=False)
class Block:
    """One block of a message: how it begins, and the deltas that wait until it does."""

    start: dict[str, Json]
    held: list[dict[str, Json]] = field(default_factory=list)
    arguments: str = ""

    @property
    def over(self) -> bool:
        """Whether it is at its end once another block has begun: a call is when its arguments are whole."""
        if self.start["type"] != "tool_use":
            return True
        if not self.arguments.rstrip().endswith("}"):
            return False
        try:
            json.loads(self.arguments)
        except ValueError:
            return False
        return True


class MessageEvents:
    """The events of a message, from a chat's chunks.

    In a message one block ends before the next begins; a chat may give the pieces of several calls in turns.
    So what comes of other blocks while a call is under way waits until its arguments are whole, or the chat
    ends.
    """

    def __init__(self, asked: dict[str, Json]) -> None:
        self._asked = asked
        self._begun = False
        self._blocks: deque[Block] = deque()  # the first is open
        self._ended = 0
        self._calls: dict[int, Block] = {}
        self._last: dict[str, Json] = {}
        self._usage: Json = None
        self._pieces = 0

    def add(self, chunk: dict[str, Json]) -> Iterable[dict[str, Json]]:
        """The events that `chunk` brings. ValueError: it goes on with a call that was over."""
        if isinstance(chunk.get("usage"), dict):
            self._usage = chunk["usage"]
        if not self._begun:
            self._begun = True
            head = {**_head(chunk, self._asked), "content": [], "stop_reason": None, "stop_sequence": None}
            yield {"type": "message_start", "message": {**head, "usage": usage(self._usage)}}
        choices = chunk.get("choices") or [{}]
        choice = choices[0]
        delta = choice.get("delta") or {}
        reasoning = _reasoning(delta, self._asked)
        if reasoning:
            yield from self._say("thinking", {"type": "thinking_delta", "thinking": reasoning})
        text = delta.get("content") or delta.get("refusal")
        if text:
            yield from self._say("text", {"type": "text_delta", "text": text})
        for at, call in enumerate(delta.get("tool_calls") or ()):
            yield from self._call(call, call.get("index", at), chunk)
        if choice.get("finish_reason"):
            self._last = choice

    def _say(self, kind: str, delta: dict[str, Json]) -> Iterable[dict[str, Json]]:
        if not self._blocks or self._blocks[-1].start["type"] != kind:
            empty: dict[str, Any] = {"type": kind, kind: ""}
            if kind == "thinking":
                empty["signature"] = ""
            yield from self._begin(Block(empty))
        yield from self._continue(self._blocks[-1], delta)

    def _call(self, call: dict[str, Json], index: int, chunk: dict[str, Json]) -> Iterable[dict[str, Json]]:
        function = call.get("function") or {}
        if index not in self._calls:
            name = call.get("id") or f"toolu_{chunk.get('id', '')}_{index}"
            start = {"type": "tool_use", "id": name, "name": function["name"], "input": {}}
            self._calls[index] = Block(start)
            yield from self._begin(self._calls[index])
        block, arguments = self._calls[index], function.get("arguments")
        if arguments:
            if block not in self._blocks:
                raise ValueError("it goes on with a call whose arguments were whole")
            block.arguments += arguments
            yield from self._continue(block, {"type": "input_json_delta", "partial_json": arguments})

    def _begin(self, block: Block) -> Iterable[dict[str, Json]]:
        self._blocks.append(block)
        if block is self._blocks[0]:
            yield from self._start()
        yield from self._advance()

    def _continue(self, block: Block, delta: dict[str, Json]) -> Iterable[dict[str, Json]]:
        if block is not self._blocks[0]:
            block.held.append(delta)
            return
        yield self._delta(delta)
        yield from self._advance()

    def _advance(self) -> Iterable[dict[str, Json]]:
        """On to the blocks that wait, as far as those before them are over."""
        while len(self._blocks) > 1 and self._blocks[0].over:
            yield from self._stop()

    def _start(self) -> Iterable[dict[str, Json]]:
        block = self._blocks[0]
        yield {"type": "content_block_start", "index": self._ended, "content_block": block.start}
        yield from map(self._delta, block.held)

    def _stop(self) -> Iterable[dict[str, Json]]:
        """End the open block; the next one begins."""
        self._blocks.popleft()
        yield {"type": "content_block_stop", "index": self._ended}
        self._ended += 1
        if self._blocks:
            yield from self._start()

    def _delta(self, delta: dict[str, Json]) -> dict[str, Json]:
        self._pieces += 1
        return {"type": "content_block_delta", "index": self._ended, "delta": delta}

    def end(self) -> Iterable[dict[str, Json]]:
        """The last events; none where the chat did not come to its end."""
        if not self._last:
            return
        while self._blocks:
            yield from self._stop()
        stop = _stop(self._last, self._asked, bool(self._calls))
        stated = usage(self._usage)
        if self._usage is None:
            stated |= {"input_tokens": count_tokens(self._asked), "output_tokens": self._pieces}
        yield {"type": "message_delta", "delta": stop, "usage": stated}
        yield {"type": "message_stop"}
