"""Serve clients of the OpenAI API format from a seat with Anthropic's Messages.

See the table in `workers.model_apis.openai.from_messages`, from right to left. `max_tokens`, which Messages
require, is the model's longest answer if the request states none, and larger than a thinking budget. A
`temperature` above 1, the maximum of Messages, becomes 1. Texts and stop sequences of white space, which
Messages reject, are left out. `seed`, the penalties, `logit_bias` and the like are dropped. A field that has
no counterpart and would change the answer is rejected: `n` above 1, `logprobs`, `web_search_options`, audio,
and the paths `completions` and `embeddings`. `cache_control` of messages, parts and tools
is passed on. A JSON schema is fitted; any JSON object, or a schema with a free map, is asked for in words.
Signed thinking is in `reasoning_details`, and comes back from
there. Data URLs become pictures, PDF or plain text.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from typing import Any

from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json
from workers.model_apis.anthropic.client import FALLBACK_MAX_TOKENS, AnthropicClient
from workers.model_apis.anthropic.json_text import JsonText, make_instruction
from workers.model_apis.anthropic.schemas import fit_schema, is_closed
from workers.model_apis.anthropic.thinking import THINKING, make_detail, read_details, settle_thinking
from workers.model_apis.api_request import (
    CHAT,
    MESSAGES,
    OPENAI,
    make_field_error,
    translate_request,
)
from workers.model_apis.backend import TranslatingBackend, parse_answer
from workers.model_apis.data_urls import is_data_url, parse_data_url
from workers.model_apis.identity.fitting import make_completion_id, shorten_user
from workers.model_apis.usage import format_openai_usage, is_count, parse_anthropic_usage

FINISH_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
AT_ANTHROPIC = "at a seat of the Anthropic API format"
UNSUPPORTED = ("logprobs", "audio", "web_search_options")
IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
"""The pictures that Messages take."""

TOOL_CHOICES = {"auto": "auto", "required": "any", "none": "none"}


class ChatToMessages(TranslatingBackend):
    """A backend of the OpenAI API format that sends its requests to `inner`, of the Anthropic API format."""

    api = OPENAI

    def post(self, path: str, body: dict[str, Json], context: StageContext) -> dict[str, Json]:
        answer = self._inner.post(MESSAGES, self._translate(path, body), context)
        completion = parse_answer(self, build_completion, answer, body)
        if wants_plain_json(body):
            message, fence = completion["choices"][0]["message"], JsonText()
            message["content"] = fence.add(message["content"] or "") + fence.end() or None
        return completion

    def stream(self, path: str, body: dict[str, Json], context: StageContext) -> Generator[dict[str, Json]]:
        request = self._translate(path, body)
        chunks = CompletionChunks(body)
        yield from self._translate_stream(MESSAGES, request, context, chunks.add_event)

    def _translate(self, path: str, body: dict[str, Json]) -> dict[str, Json]:
        request = translate_request(translate_to_messages, path, body)
        request = settle_thinking(request, is_translated=True)
        if "max_tokens" not in request:
            limit = FALLBACK_MAX_TOKENS
            if isinstance(self._inner, AnthropicClient):
                limit = self._inner.find_max_tokens(body["model"])
            budget = (request.get("thinking") or {}).get("budget_tokens")
            if isinstance(budget, int) and budget >= limit:  # it has to be smaller
                limit += budget
            request["max_tokens"] = limit
        return request


def translate_to_messages(path: str, body: dict[str, Json]) -> dict[str, Json]:
    """Translate a chat request to Messages, without `max_tokens` if it states none.

    Raises StageError naming a field that has no counterpart.
    """
    if path != CHAT:
        raise make_field_error("path", f"{CHAT}: a seat of the Anthropic API format has no {path}")
    if (body.get("n") or 1) != 1:
        raise make_field_error("n", "1: a seat of the Anthropic API format returns one answer", "remove 'n'")
    for field in UNSUPPORTED:
        if body.get(field):
            raise make_field_error(field, f"absent {AT_ANTHROPIC}", f"remove {field!r}")
    if any(each != "text" for each in body.get("modalities") or ()):
        raise make_field_error("modalities", f"text {AT_ANTHROPIC}")
    system, messages = _split_messages(body["messages"])
    if wants_plain_json(body):
        system.append({"type": "text", "text": make_instruction(_find_schema(body))})
    request: dict[str, Json] = {"model": body["model"], "messages": messages}
    for field in ("max_tokens", "max_completion_tokens"):
        if body.get(field) is not None:
            request["max_tokens"] = body[field]
    if any("cache_control" in block for block in system):
        request["system"] = system
    elif system:
        request["system"] = "\n\n".join(block["text"] for block in system)
    if isinstance(body.get("cache_control"), dict):
        request["cache_control"] = body["cache_control"]
    if body.get("temperature") is not None:
        request["temperature"] = min(1, body["temperature"])
    for field in ("top_p", "top_k", "thinking"):
        if body.get(field) is not None:
            request[field] = body[field]
    stops = [body["stop"]] if isinstance(body.get("stop"), str) else body.get("stop") or []
    stops = [stop for stop in stops if stop.strip()]  # Messages reject others
    if stops:
        request["stop_sequences"] = stops
    if isinstance(body.get("user"), str):
        request["metadata"] = {"user_id": shorten_user(body["user"], "user_id")}
    request |= _translate_tools(body)
    schema = _find_schema(body)
    if is_closed(schema) and schema is not None:
        request["output_config"] = {"format": {"type": "json_schema", "schema": fit_schema(schema)}}
    return request


def _find_schema(body: dict[str, Json]) -> Json:
    """Return the schema of the answer, None for text or any JSON. Raises StageError for other forms."""
    response_format = body.get("response_format") or {"type": "text"}
    if response_format["type"] == "json_schema":
        schema = (response_format.get("json_schema") or {}).get("schema")
        if not isinstance(schema, dict):
            raise make_field_error("response_format.json_schema.schema", "an object")
        return schema
    if response_format["type"] not in ("text", "json_object"):
        expected = f"text, json_object or json_schema {AT_ANTHROPIC}"
        raise make_field_error("response_format.type", expected)
    return None


def wants_plain_json(body: dict[str, Json]) -> bool:
    """Return whether the answer is JSON that no structured output can describe: any object, or a free map."""
    kind = (body.get("response_format") or {}).get("type")
    return kind == "json_object" or not is_closed(_find_schema(body))


def _split_messages(messages: list[dict[str, Json]]) -> tuple[list[dict[str, Json]], list[dict[str, Json]]]:
    """Return the blocks of the system text, and the other messages as turns of user and assistant."""
    system: list[dict[str, Json]] = []
    turns: list[dict[str, Json]] = []
    for at, message in enumerate(messages):
        place = f"messages[{at}]"
        match message["role"]:
            case "system" | "developer":
                system += _join_system(
                    _add_cache_control(_translate_text(message.get("content"), place), message)
                )
                continue
            case "user":
                role, blocks = "user", _translate_content(message.get("content"), f"{place}.content")
                _add_cache_control(blocks, message)
            case "tool":
                role, blocks = "user", [_translate_tool_result(message, place)]
                _add_cache_control(blocks, message)
            case "assistant":
                role, blocks = "assistant", _translate_assistant(message, place)
                _add_cache_control(blocks, message)
            case _:
                raise make_field_error(f"{place}.role", "system, developer, user, assistant or tool")
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks  # all tool results of one turn must be in one message
        elif blocks:
            turns.append({"role": role, "content": blocks})
    if not turns:
        raise make_field_error("messages", "at least one user message")
    last = turns[-1]["content"][-1]
    if turns[-1]["role"] == "assistant" and last["type"] == "text":  # Messages reject white space at its end
        last["text"] = last["text"].rstrip()
    return system, turns


def _add_cache_control(blocks: list[dict[str, Json]], source: dict[str, Json]) -> list[dict[str, Json]]:
    """Set the last block to be cached if its source says so."""
    if blocks and isinstance(source.get("cache_control"), dict):
        blocks[-1]["cache_control"] = source["cache_control"]
    return blocks


def _join_system(blocks: list[dict[str, Json]]) -> list[dict[str, Json]]:
    """Return the parts of one message as one block, unless some of them are to be cached."""
    if not blocks or any("cache_control" in block for block in blocks):
        return blocks
    return [{"type": "text", "text": "".join(block["text"] for block in blocks)}]


def _translate_text(content: Json, place: str) -> list[dict[str, Json]]:
    blocks = _translate_content(content, f"{place}.content")
    if any(block["type"] != "text" for block in blocks):
        raise make_field_error(f"{place}.content", "text")
    return blocks


def _translate_content(content: Json, place: str) -> list[dict[str, Json]]:
    """Return the blocks of a content. Texts of white space, which Messages reject, are left out."""
    if not isinstance(content, list):
        return [{"type": "text", "text": content}] if content and content.strip() else []
    blocks = [
        _add_cache_control([_translate_part(part, f"{place}[{at}]")], part)[0]
        for at, part in enumerate(content)
    ]
    return [block for block in blocks if block["type"] != "text" or block["text"].strip()]


def _translate_part(part: dict[str, Json], place: str) -> dict[str, Json]:
    match part["type"]:
        case "text" | "refusal" if isinstance(part.get(part["type"]), str):
            return {"type": "text", "text": part[part["type"]]}
        case "image_url":
            image = part.get("image_url")
            url = image.get("url") if isinstance(image, dict) else image
            if isinstance(url, str):
                return _make_media(url, f"{place}.image_url.url", "document")
        case "file":
            file = part.get("file") or {}
            if isinstance(file.get("file_data"), str):
                title = file.get("filename") or "document"
                return _make_media(file["file_data"], f"{place}.file.file_data", title)
    raise make_field_error(
        place, "text, image_url or file with file_data at a seat of the Anthropic API format"
    )


def _make_media(url: str, place: str, title: str) -> dict[str, Json]:
    """Return the block of a picture or a document. Messages take some pictures, PDF and plain text."""
    if not is_data_url(url):
        return {"type": "image", "source": {"type": "url", "url": url}}
    parsed = parse_data_url(url, place)
    source = {"type": "base64", "media_type": parsed.media_type, "data": parsed.data}
    if parsed.media_type in IMAGE_TYPES:
        return {"type": "image", "source": source}
    if parsed.media_type == "application/pdf":
        return {"type": "document", "source": source, "title": title}
    if parsed.media_type.startswith("text/") or parsed.media_type == "application/json":
        text = {"type": "text", "media_type": "text/plain", "data": parsed.decode_text()}
        return {"type": "document", "source": text, "title": title}
    types = ", ".join(sorted(IMAGE_TYPES))
    raise make_field_error(place, f"{types}, application/pdf or text {AT_ANTHROPIC}")


def _translate_tool_result(message: dict[str, Json], place: str) -> dict[str, Json]:
    if not isinstance(message.get("tool_call_id"), str):
        raise make_field_error(f"{place}.tool_call_id", "the id of the tool call that this message answers")
    content = _translate_text(message.get("content"), place)
    return {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": content}


def _translate_assistant(message: dict[str, Json], place: str) -> list[dict[str, Json]]:
    blocks = [*read_details(message), *_translate_content(message.get("content"), f"{place}.content")]
    for at, call in enumerate(message.get("tool_calls") or ()):
        where = f"{place}.tool_calls[{at}].function"
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise make_field_error(where, "an object with name and arguments")
        try:
            arguments = json.loads(function.get("arguments") or "{}")
        except (TypeError, ValueError):
            arguments = None
        if not isinstance(arguments, dict):
            raise make_field_error(f"{where}.arguments", "a JSON object as a string")
        blocks.append(
            {"type": "tool_use", "id": call.get("id"), "name": function["name"], "input": arguments}
        )
    return blocks


def _translate_tools(body: dict[str, Json]) -> dict[str, Json]:
    tools = []
    for at, tool in enumerate(body.get("tools") or ()):
        function = tool.get("function")
        if tool["type"] != "function" or not isinstance(function, dict) or not function.get("name"):
            raise make_field_error(f"tools[{at}]", "a tool of type function with a name")
        schema = function.get("parameters") or {"type": "object", "properties": {}}
        translated = {"name": function["name"], "input_schema": schema}
        translated |= {key: function[key] for key in ("description",) if function.get(key)}
        tools.append(translated)
        _add_cache_control([translated], function)
        _add_cache_control([translated], tool)
    if not tools:
        return {}
    choice = body.get("tool_choice") or "auto"
    tool_choice: dict[str, Json]
    if isinstance(choice, dict):
        name = (choice.get("function") or {}).get("name")
        if not isinstance(name, str):
            raise make_field_error("tool_choice.function.name", "a tool's name")
        tool_choice = {"type": "tool", "name": name}
    elif choice in TOOL_CHOICES:
        tool_choice = {"type": TOOL_CHOICES[choice]}
    else:
        raise make_field_error("tool_choice", "auto, required, none or a function")
    if body.get("parallel_tool_calls") is False and tool_choice["type"] != "none":
        tool_choice["disable_parallel_tool_use"] = True
    return {"tools": tools, "tool_choice": tool_choice}


def build_completion(answer: dict[str, Json], request: dict[str, Json]) -> dict[str, Json]:
    """Translate a `message` to a chat completion."""
    message: dict[str, Json] = {"role": "assistant", "content": None, "refusal": None}
    calls = []
    details: list[dict[str, Json]] = []
    for block in answer["content"]:
        detail = make_detail(block, len(details))
        if detail is not None:
            details.append(detail)
        match block["type"]:
            case "text":
                message["content"] = (message["content"] or "") + block["text"]
            case "thinking":
                message["reasoning_content"] = message.get("reasoning_content", "") + block["thinking"]
            case "tool_use":
                arguments = json.dumps(block["input"], ensure_ascii=False)
                function = {"name": block["name"], "arguments": arguments}
                calls.append({"id": block.get("id"), "type": "function", "function": function})
    if details:
        message["reasoning_details"] = details
    if calls:
        message["tool_calls"] = calls
    reason = FINISH_REASONS.get(answer.get("stop_reason") or "end_turn", "stop")
    return {
        **_make_head(answer, request, "chat.completion"),
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": reason}],
        "usage": translate_usage(answer.get("usage")),
    }


def _make_head(answer: dict[str, Json], request: dict[str, Json], kind: str) -> dict[str, Json]:
    return {
        "id": make_completion_id(),
        "object": kind,
        "created": int(time.time()),
        "model": answer.get("model") or request["model"],
    }


def translate_usage(stated: Json) -> dict[str, Json] | None:
    """Translate a usage to the OpenAI API format, which counts cached input as part of the prompt.

    What it does not state is left out, so that it can be estimated.
    """
    if not isinstance(stated, dict):
        return None
    usage = format_openai_usage(parse_anthropic_usage(stated))
    if not usage["prompt_tokens"] and not is_count(stated.get("input_tokens")):
        del usage["prompt_tokens"], usage["total_tokens"]
    if not is_count(stated.get("output_tokens")):
        del usage["completion_tokens"]
        usage.pop("total_tokens", None)
    return usage


class CompletionChunks:
    """Translates the events of a message to the chunks of a chat completion."""

    def __init__(self, request: dict[str, Json]) -> None:
        self._request = request
        self._json = JsonText() if wants_plain_json(request) else None
        self._head: dict[str, Json] = {}
        self._call_indexes: dict[int, int] = {}
        self._detail_indexes: dict[int, int] = {}
        self._usage: dict[str, Any] = {}

    def add_event(self, event: dict[str, Json]) -> list[dict[str, Json]]:
        match event["type"]:
            case "message_start":
                message = event["message"]
                self._head = _make_head(message, self._request, "chat.completion.chunk")
                self._usage = dict(message.get("usage") or {})
                return [self._make_chunk({"role": "assistant", "content": ""})]
            case "content_block_start" if event["content_block"]["type"] == "tool_use":
                block, index = event["content_block"], len(self._call_indexes)
                self._call_indexes[event["index"]] = index
                call = {"index": index, "id": block.get("id"), "type": "function"}
                function = {"name": block["name"], "arguments": ""}
                return [self._make_chunk({"tool_calls": [{**call, "function": function}]})]
            case "content_block_start" if event["content_block"]["type"] in THINKING:
                number = self._detail_indexes[event["index"]] = len(self._detail_indexes)
                detail = make_detail(event["content_block"], number)
                return [self._make_chunk({"reasoning_details": [detail]})]
            case "content_block_start" if event["content_block"].get("text"):
                return self._make_text(event["content_block"]["text"])
            case "content_block_delta":
                return self._continue_block(event["index"], event["delta"])
            case "message_delta":
                stated = event.get("usage") or {}
                self._usage.update({key: value for key, value in stated.items() if value is not None})
                reason = FINISH_REASONS.get(event["delta"].get("stop_reason") or "end_turn", "stop")
                last = {**self._head, "choices": [], "usage": translate_usage(self._usage)}
                rest = self._json.end() if self._json else ""
                rest_chunks = [self._make_chunk({"content": rest})] if rest else []
                return [*rest_chunks, self._make_chunk({}, reason), last]
        return []

    def _continue_block(self, index: int, delta: dict[str, Json]) -> list[dict[str, Json]]:
        match delta["type"]:
            case "text_delta":
                return self._make_text(delta["text"])
            case "thinking_delta":
                detail = self._make_detail(index, "text", delta["thinking"])
                return [self._make_chunk({"reasoning_content": delta["thinking"], **detail})]
            case "signature_delta" if index in self._detail_indexes and delta["signature"]:
                return [self._make_chunk(self._make_detail(index, "signature", delta["signature"]))]
            case "input_json_delta" if index in self._call_indexes and delta["partial_json"]:
                function = {"arguments": delta["partial_json"]}
                return [
                    self._make_chunk(
                        {"tool_calls": [{"index": self._call_indexes[index], "function": function}]}
                    )
                ]
        return []

    def _make_text(self, text: str) -> list[dict[str, Json]]:
        text = self._json.add(text) if self._json else text
        return [self._make_chunk({"content": text})] if text else []

    def _make_detail(self, index: int, name: str, value: Json) -> dict[str, Json]:
        if index not in self._detail_indexes:
            return {}
        detail = {"index": self._detail_indexes[index], "type": "reasoning.text", name: value}
        return {"reasoning_details": [detail]}

    def _make_chunk(self, delta: dict[str, Json], finish: str | None = None) -> dict[str, Json]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**self._head, "choices": [choice]}
