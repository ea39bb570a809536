"""A client that speaks the OpenAI API format at a seat that speaks Anthropic's Messages.

The table in `workers.model_apis.openai.from_messages`, read from right to left. `max_tokens`, which Messages
must have, is 4,096 where the client sets none; a `temperature` above 1, the most that Messages takes, is 1.
`seed`, the penalties, `logit_bias` and the like are left out; what has no counterpart and would change the
answer is refused: `n` above 1, `logprobs`, `response_format` json_object, audio, and the paths `completions`
and `embeddings`.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from gridq.errors import SeatUnavailable
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json
from workers.model_apis.request import CHAT, MESSAGES, ODD, OPENAI, translated, wrong
from workers.model_apis.usage import anthropic_usage, as_openai

if TYPE_CHECKING:
    from workers.model_apis.forwarding import Speaker

DEFAULT_MAX_TOKENS = 4096
FINISH_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
TOOL_CHOICES = {"auto": "auto", "required": "any", "none": "none"}


class ChatAsMessages:
    """Speaks the OpenAI API format to who asks, the Anthropic API format to `inner`."""

    api = OPENAI
    strict = False

    def __init__(self, inner: Speaker) -> None:
        self._inner = inner

    def post(self, path: str, body: dict[str, Json], context: StageContext) -> dict[str, Json]:
        answer = self._inner.post(MESSAGES, translated(messages_body, path, body), context)
        try:
            return completion(answer, body)
        except ODD:
            raise self.malformed("its answer has no content") from None

    def stream(self, path: str, body: dict[str, Json], context: StageContext) -> Generator[dict[str, Json]]:
        told = CompletionChunks(body)
        asked = translated(messages_body, path, body)
        with contextlib.closing(self._inner.stream(MESSAGES, asked, context)) as events:
            try:
                for event in events:
                    yield from told.add(event)
            except ODD:
                raise self.malformed("an event of its stream is not of the API format") from None

    def malformed(self, reason: str) -> SeatUnavailable:
        return self._inner.malformed(reason)


def messages_body(path: str, body: dict[str, Json]) -> dict[str, Json]:
    """The Messages request for a chat request. StageError names the field that has no counterpart."""
    if path != CHAT:
        raise wrong("path", f"{CHAT}: a seat of the Anthropic API format has no {path}")
    if (body.get("n") or 1) != 1:
        raise wrong("n", "1: a seat of the Anthropic API format gives one answer", "leave 'n' out")
    if body.get("logprobs"):
        raise wrong(
            "logprobs", "false: a seat of the Anthropic API format states none", "leave 'logprobs' out"
        )
    system, messages = _split(body["messages"])
    limit = body.get("max_completion_tokens") or body.get("max_tokens") or DEFAULT_MAX_TOKENS
    asked: dict[str, Json] = {"model": body["model"], "max_tokens": limit, "messages": messages}
    if system:
        asked["system"] = system
    if body.get("temperature") is not None:
        asked["temperature"] = min(1, body["temperature"])
    for field in ("top_p", "top_k", "thinking"):
        if body.get(field) is not None:
            asked[field] = body[field]
    if body.get("stop"):
        asked["stop_sequences"] = [body["stop"]] if isinstance(body["stop"], str) else body["stop"]
    if isinstance(body.get("user"), str):
        asked["metadata"] = {"user_id": body["user"]}
    asked |= _tools(body)
    wanted = body.get("response_format") or {"type": "text"}
    if wanted["type"] == "json_schema":
        schema = (wanted.get("json_schema") or {}).get("schema")
        asked["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
    elif wanted["type"] != "text":
        raise wrong("response_format.type", "text or json_schema at a seat of the Anthropic API format")
    return asked


def _split(messages: list[dict[str, Json]]) -> tuple[str, list[dict[str, Json]]]:
    """The system text, and the rest as user and assistant in turns."""
    system: list[str] = []
    turns: list[dict[str, Json]] = []
    for at, message in enumerate(messages):
        place = f"messages[{at}]"
        match message["role"]:
            case "system" | "developer":
                system.append("".join(part["text"] for part in _texts(message.get("content"), place)))
                continue
            case "user":
                role, blocks = "user", _blocks(message.get("content"), f"{place}.content")
            case "tool":
                role, blocks = "user", [_result(message, place)]
            case "assistant":
                role, blocks = "assistant", _said(message, place)
            case _:
                raise wrong(f"{place}.role", "system, developer, user, assistant or tool")
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks  # results of one turn's calls must stand in one message
        elif blocks:
            turns.append({"role": role, "content": blocks})
    if not turns:
        raise wrong("messages", "at least one message of a user")
    return "\n\n".join(filter(None, system)), turns


def _texts(content: Json, place: str) -> list[dict[str, Json]]:
    blocks = _blocks(content, f"{place}.content")
    if any(block["type"] != "text" for block in blocks):
        raise wrong(f"{place}.content", "text")
    return blocks


def _blocks(content: Json, place: str) -> list[dict[str, Json]]:
    if not isinstance(content, list):
        return [{"type": "text", "text": content}] if content else []
    return [_block(part, f"{place}[{at}]") for at, part in enumerate(content) if part.get("text") != ""]


def _block(part: dict[str, Json], place: str) -> dict[str, Json]:
    match part["type"]:
        case "text" | "refusal" if isinstance(part.get(part["type"]), str):
            return {"type": "text", "text": part[part["type"]]}
        case "image_url":
            told = part.get("image_url")
            url = told.get("url") if isinstance(told, dict) else told
            if isinstance(url, str):
                return {"type": "image", "source": _source(url, f"{place}.image_url.url")}
        case "file":
            told = part.get("file") or {}
            if isinstance(told.get("file_data"), str):
                source = _source(told["file_data"], f"{place}.file.file_data")
                return {"type": "document", "source": source, "title": told.get("filename") or "document"}
    raise wrong(place, "text, image_url or file with file_data at a seat of the Anthropic API format")


def _source(url: str, place: str) -> dict[str, Json]:
    if not url.startswith("data:"):
        return {"type": "url", "url": url}
    kind, found, data = url.removeprefix("data:").partition(";base64,")
    if not found:
        raise wrong(place, "a URL, or data:<type>;base64,<data>")
    return {"type": "base64", "media_type": kind, "data": data}


def _result(message: dict[str, Json], place: str) -> dict[str, Json]:
    if not isinstance(message.get("tool_call_id"), str):
        raise wrong(f"{place}.tool_call_id", "the id of the call that this answers")
    content = _texts(message.get("content"), place)
    return {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": content}


def _said(message: dict[str, Json], place: str) -> list[dict[str, Json]]:
    blocks = _blocks(message.get("content"), f"{place}.content")
    for at, call in enumerate(message.get("tool_calls") or ()):
        where = f"{place}.tool_calls[{at}].function"
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise wrong(where, "an object with name and arguments")
        try:
            told = json.loads(function.get("arguments") or "{}")
        except (TypeError, ValueError):
            told = None
        if not isinstance(told, dict):
            raise wrong(f"{where}.arguments", "a JSON object as text")
        blocks.append({"type": "tool_use", "id": call.get("id"), "name": function["name"], "input": told})
    return blocks


def _tools(body: dict[str, Json]) -> dict[str, Json]:
    asked: dict[str, Json] = {}
    tools = []
    for at, tool in enumerate(body.get("tools") or ()):
        function = tool.get("function")
        if tool["type"] != "function" or not isinstance(function, dict) or not function.get("name"):
            raise wrong(f"tools[{at}]", "a tool of the type function with a name")
        schema = function.get("parameters") or {"type": "object", "properties": {}}
        told = {"name": function["name"], "input_schema": schema}
        tools.append(told | {key: function[key] for key in ("description",) if function.get(key)})
    if not tools:
        return asked
    choice = body.get("tool_choice") or "auto"
    wanted: dict[str, Json]
    if isinstance(choice, dict):
        name = (choice.get("function") or {}).get("name")
        if not isinstance(name, str):
            raise wrong("tool_choice.function.name", "a tool's name")
        wanted = {"type": "tool", "name": name}
    elif choice in TOOL_CHOICES:
        wanted = {"type": TOOL_CHOICES[choice]}
    else:
        raise wrong("tool_choice", "auto, required, none or a function")
    if body.get("parallel_tool_calls") is False and wanted["type"] != "none":
        wanted["disable_parallel_tool_use"] = True
    return {"tools": tools, "tool_choice": wanted}


def completion(answer: dict[str, Json], asked: dict[str, Json]) -> dict[str, Json]:
    """The chat completion that a `message` is."""
    told: dict[str, Json] = {"role": "assistant", "content": None, "refusal": None}
    calls = []
    for block in answer["content"]:
        match block["type"]:
            case "text":
                told["content"] = (told["content"] or "") + block["text"]
            case "thinking":
                told["reasoning_content"] = told.get("reasoning_content", "") + block["thinking"]
            case "tool_use":
                arguments = json.dumps(block["input"], ensure_ascii=False)
                function = {"name": block["name"], "arguments": arguments}
                calls.append({"id": block["id"], "type": "function", "function": function})
    if calls:
        told["tool_calls"] = calls
    reason = FINISH_REASONS.get(answer.get("stop_reason") or "end_turn", "stop")
    return {
        **_head(answer, asked, "chat.completion"),
        "choices": [{"index": 0, "message": told, "logprobs": None, "finish_reason": reason}],
        "usage": usage(answer.get("usage")),
    }


def _head(answer: dict[str, Json], asked: dict[str, Json], made: str) -> dict[str, Json]:
    return {
        "id": f"chatcmpl-{answer.get('id') or 'answer'}",
        "object": made,
        "created": int(time.time()),
        "model": answer.get("model") or asked["model"],
    }


def usage(stated: Json) -> dict[str, Json] | None:
    """The usage in the OpenAI API format's terms: input that came from the cache is part of the prompt."""
    return as_openai(anthropic_usage(stated)) if isinstance(stated, dict) else None


class CompletionChunks:
    """The chunks of a chat completion, from a message's events."""

    def __init__(self, asked: dict[str, Json]) -> None:
        self._asked = asked
        self._head: dict[str, Json] = {}
        self._calls: dict[int, int] = {}
        self._usage: dict[str, Any] = {}

    def add(self, event: dict[str, Json]) -> list[dict[str, Json]]:
        """The chunks that `event` brings."""
        match event["type"]:
            case "message_start":
                message = event["message"]
                self._head = _head(message, self._asked, "chat.completion.chunk")
                self._usage = dict(message.get("usage") or {})
                return [self._chunk({"role": "assistant", "content": ""})]
            case "content_block_start" if event["content_block"]["type"] == "tool_use":
                block, index = event["content_block"], len(self._calls)
                self._calls[event["index"]] = index
                call = {"index": index, "id": block["id"], "type": "function"}
                function = {"name": block["name"], "arguments": ""}
                return [self._chunk({"tool_calls": [{**call, "function": function}]})]
            case "content_block_start" if event["content_block"].get("text"):
                return [self._chunk({"content": event["content_block"]["text"]})]
            case "content_block_delta":
                return self._continue(event["index"], event["delta"])
            case "message_delta":
                stated = event.get("usage") or {}
                self._usage.update({key: value for key, value in stated.items() if value is not None})
                reason = FINISH_REASONS.get(event["delta"].get("stop_reason") or "end_turn", "stop")
                last = {**self._head, "choices": [], "usage": usage(self._usage)}
                return [self._chunk({}, reason), last]
        return []

    def _continue(self, index: int, delta: dict[str, Json]) -> list[dict[str, Json]]:
        match delta["type"]:
            case "text_delta":
                return [self._chunk({"content": delta["text"]})]
            case "thinking_delta":
                return [self._chunk({"reasoning_content": delta["thinking"]})]
            case "input_json_delta" if index in self._calls and delta["partial_json"]:
                function = {"arguments": delta["partial_json"]}
                return [self._chunk({"tool_calls": [{"index": self._calls[index], "function": function}]})]
        return []

    def _chunk(self, delta: dict[str, Json], finish: str | None = None) -> dict[str, Json]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**self._head, "choices": [choice]}
