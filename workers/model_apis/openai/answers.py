"""Translate a chat completion and its chunks to a `message` and its events, as in Anthropic's Messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gridq.protocol.models import Json
from gridq.protocol.token_count import count_tokens
from workers.model_apis.identity.call_pieces import are_complete
from workers.model_apis.identity.fitting import make_id
from workers.model_apis.identity.origins import find_reasoning, make_signed_id
from workers.model_apis.message_assembly import parse_tool_input
from workers.model_apis.reasoning_marks import make_mark
from workers.model_apis.token_estimates import estimate_tokens
from workers.model_apis.usage import complete_usage, format_anthropic_usage, parse_openai_usage

STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}


def build_message(answer: dict[str, Json], request: dict[str, Json], origin: str = "") -> dict[str, Json]:
    """Translate a chat completion of `origin`, an endpoint with its model, to a `message`."""
    choice = answer["choices"][0]
    message = choice["message"]
    content: list[dict[str, Json]] = []
    field, reasoning = _get_reasoning(message, request)
    if reasoning:
        mark = make_mark(field, origin)
        content.append({"type": "thinking", "thinking": reasoning, "signature": mark})
    text = message.get("content") or message.get("refusal")
    if text:
        content.append({"type": "text", "text": text})
    for call in message.get("tool_calls") or ():
        function = call["function"]
        call_id = make_signed_id(call, "toolu")
        tool_input = parse_tool_input(function.get("arguments") or "")
        content.append({"type": "tool_use", "id": call_id, "name": function["name"], "input": tool_input})
    return {
        **_make_head(answer, request),
        "content": content,
        **_translate_stop(choice, request, any(block["type"] == "tool_use" for block in content)),
        "usage": translate_usage(
            complete_usage(answer.get("usage"), lambda: count_tokens(request), estimate_tokens(content))
        ),
    }


def _make_head(answer: dict[str, Json], request: dict[str, Json]) -> dict[str, Json]:
    return {
        "id": make_id("msg"),
        "type": "message",
        "role": "assistant",
        "model": answer.get("model") or request["model"],
    }


def _get_reasoning(message: dict[str, Json], request: dict[str, Json]) -> tuple[str, str]:
    """Return the field and the text of reasoning, both empty if the client asks for no thinking."""
    if (request.get("thinking") or {}).get("type", "disabled") == "disabled":
        return "", ""
    return find_reasoning(message)


def _translate_stop(
    choice: dict[str, Json], request: dict[str, Json], has_tool_calls: bool
) -> dict[str, Json]:
    """Return the `stop_reason` and `stop_sequence`. vLLM states the matched stop string in `stop_reason`."""
    matched = choice.get("stop_reason")
    if isinstance(matched, str) and matched in (request.get("stop_sequences") or ()):
        return {"stop_reason": "stop_sequence", "stop_sequence": matched}
    reason = STOP_REASONS.get(choice.get("finish_reason") or "stop", "end_turn")
    reason = "tool_use" if has_tool_calls and reason == "end_turn" else reason
    return {"stop_reason": reason, "stop_sequence": None}


def translate_usage(stated: Json) -> dict[str, Json]:
    """Translate a usage to Messages, which count cached input apart."""
    return format_anthropic_usage(parse_openai_usage(stated))


@dataclass(eq=False)
class Block:
    """A block of a message: its start, and the deltas that wait until it has started.

    `mark` stands in the place of a signature.
    """

    start: dict[str, Json]
    deferred: list[dict[str, Json]] = field(default_factory=list)
    arguments: str = ""
    mark: str = ""

    @property
    def is_finished(self) -> bool:
        """True if it can end: a tool call once its arguments are complete JSON, other blocks always."""
        return self.start["type"] != "tool_use" or are_complete(self.arguments)


class MessageEvents:
    """Translates the chunks of a chat completion to the events of a message.

    In a message one block ends before the next one starts, while a chat may interleave the pieces of several
    tool calls. So the pieces of other blocks wait until the arguments of the open call are complete, or the
    chat ends.
    """

    def __init__(self, request: dict[str, Json], origin: str = "") -> None:
        self._request = request
        self._origin = origin
        self._started = False
        self._blocks: deque[Block] = deque()  # the first one is open
        self._index = 0
        self._calls: dict[int, Block] = {}
        self._last_choice: dict[str, Json] = {}
        self._stated_usage: Json = None
        self._pieces = 0

    @cached_property
    def _prompt_tokens(self) -> int:
        return count_tokens(self._request)

    def add_chunk(self, chunk: dict[str, Json]) -> Iterable[dict[str, Json]]:
        """Yield the events for `chunk`. Raises ValueError if it continues a tool call that has ended."""
        if isinstance(chunk.get("usage"), dict):
            self._stated_usage = chunk["usage"]
        if not self._started:
            self._started = True
            head = {
                **_make_head(chunk, self._request),
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
            }
            # most endpoints state the usage at the end: until then the input is an estimate
            usage = complete_usage(self._stated_usage, lambda: self._prompt_tokens, 0, is_final=False)
            yield {"type": "message_start", "message": {**head, "usage": translate_usage(usage)}}
        choices = chunk.get("choices") or [{}]
        choice = choices[0]
        delta = choice.get("delta") or {}
        field, reasoning = _get_reasoning(delta, self._request)
        if reasoning:
            mark = make_mark(field, self._origin)
            yield from self._add_text("thinking", {"type": "thinking_delta", "thinking": reasoning}, mark)
        text = delta.get("content") or delta.get("refusal")
        if text:
            yield from self._add_text("text", {"type": "text_delta", "text": text})
        for at, call in enumerate(delta.get("tool_calls") or ()):
            yield from self._add_call(call, call.get("index", at))
        if choice.get("finish_reason"):
            self._last_choice = choice

    def _add_text(self, kind: str, delta: dict[str, Json], mark: str = "") -> Iterable[dict[str, Json]]:
        if not self._blocks or self._blocks[-1].start["type"] != kind:
            empty: dict[str, Any] = {"type": kind, kind: ""}
            if kind == "thinking":
                empty["signature"] = ""
            yield from self._open_block(Block(empty, mark=mark))
        yield from self._add_delta(self._blocks[-1], delta)

    def _add_call(self, call: dict[str, Json], index: int) -> Iterable[dict[str, Json]]:
        function = call.get("function") or {}
        if index not in self._calls:
            call_id = make_signed_id(call, "toolu")
            start = {"type": "tool_use", "id": call_id, "name": function["name"], "input": {}}
            self._calls[index] = Block(start)
            yield from self._open_block(self._calls[index])
        block, arguments = self._calls[index], function.get("arguments")
        if arguments:
            if block not in self._blocks:
                raise ValueError("it continues a tool call whose arguments were complete")
            block.arguments += arguments
            yield from self._add_delta(block, {"type": "input_json_delta", "partial_json": arguments})

    def _open_block(self, block: Block) -> Iterable[dict[str, Json]]:
        self._blocks.append(block)
        if block is self._blocks[0]:
            yield from self._start_block()
        yield from self._close_finished()

    def _add_delta(self, block: Block, delta: dict[str, Json]) -> Iterable[dict[str, Json]]:
        if block is not self._blocks[0]:
            block.deferred.append(delta)
            return
        yield self._make_delta(delta)
        yield from self._close_finished()

    def _close_finished(self) -> Iterable[dict[str, Json]]:
        """Close finished blocks and start the waiting ones behind them."""
        while len(self._blocks) > 1 and self._blocks[0].is_finished:
            yield from self._close_block()

    def _start_block(self) -> Iterable[dict[str, Json]]:
        block = self._blocks[0]
        yield {"type": "content_block_start", "index": self._index, "content_block": block.start}
        yield from map(self._make_delta, block.deferred)

    def _close_block(self) -> Iterable[dict[str, Json]]:
        """Close the open block and start the next one."""
        block = self._blocks.popleft()
        if block.mark:
            signed = {"type": "signature_delta", "signature": block.mark}
            yield {"type": "content_block_delta", "index": self._index, "delta": signed}
        yield {"type": "content_block_stop", "index": self._index}
        self._index += 1
        if self._blocks:
            yield from self._start_block()

    def _make_delta(self, delta: dict[str, Json]) -> dict[str, Json]:
        self._pieces += 1
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def end(self) -> Iterable[dict[str, Json]]:
        """Yield the last events, none if the chat did not reach its end."""
        if not self._last_choice:
            return
        while self._blocks:
            yield from self._close_block()
        stop = _translate_stop(self._last_choice, self._request, bool(self._calls))
        usage = complete_usage(self._stated_usage, lambda: self._prompt_tokens, self._pieces)
        yield {"type": "message_delta", "delta": stop, "usage": translate_usage(usage)}
        yield {"type": "message_stop"}
