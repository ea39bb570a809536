"""Serve clients of the OpenAI API format from a seat with Anthropic's Messages.

The table of fields is `workers.model_apis.fields.chat.CHAT_TO_MESSAGES`; the paths `completions` and
`embeddings` are refused. `max_tokens`, which Messages require, is the model's longest answer if the request
states none, and larger than a thinking budget. Texts and stop sequences of white space, which Messages
reject, are left out. `cache_control` of messages, parts and tools is passed on. A JSON schema is fitted; any
JSON object, or a schema with a free map, is asked for in words. Signed thinking is in `reasoning_details`,
and comes back from there. Data URLs become pictures, PDF or plain text.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json
from workers.model_apis.anthropic.claude_models import ClaudeModel, find_claude_model
from workers.model_apis.anthropic.client import FALLBACK_MAX_TOKENS, AnthropicClient
from workers.model_apis.anthropic.json_text import JsonText, make_instruction
from workers.model_apis.anthropic.schemas import fit_schema
from workers.model_apis.anthropic.thinking import (
    THINKING,
    add_effort,
    make_detail,
    read_details,
    settle_thinking,
)
from workers.model_apis.api_request import (
    CHAT,
    MESSAGES,
    OPENAI,
    make_field_error,
    make_path_error,
    translate_request,
)
from workers.model_apis.backend import TranslatingBackend, parse_answer
from workers.model_apis.data_urls import PDF, PICTURES, DataUrl, is_data_url, parse_data_url, parse_file_data
from workers.model_apis.fields.chat import AT_ANTHROPIC, CHAT_TO_MESSAGES, drop_message_hints
from workers.model_apis.fields.table import Drop, ignore
from workers.model_apis.identity.fitting import shorten_user
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
TOOL_CHOICES = {"auto": "auto", "required": "any", "none": "none"}
MAX_STRICT_TOOLS = 20
"""The tools of one request that may be `strict`."""


@dataclass(frozen=True)
class AnswerFormat:
    """The JSON that a chat asks for.

    `schema` is that of structured output, fitted, None if there is none. `instruction` asks for JSON that no
    structured output can describe, any object or one with a free map; else it is empty.
    """

    schema: Json = None
    instruction: str = ""


class ChatToMessages(TranslatingBackend):
    """A backend of the OpenAI API format that sends its requests to `inner`, of the Anthropic API format."""

    api = OPENAI

    def post(self, path: str, body: dict[str, Json], context: StageContext) -> dict[str, Json]:
        request, answer_format = self._translate(path, body, context.drop_field)
        answer = self._inner.post(MESSAGES, request, context)
        completion = parse_answer(self, build_completion, answer, body)
        if answer_format.instruction:
            message, fence = completion["choices"][0]["message"], JsonText()
            message["content"] = fence.add(message["content"] or "") + fence.end() or None
        return completion

    def stream(self, path: str, body: dict[str, Json], context: StageContext) -> Generator[dict[str, Json]]:
        request, answer_format = self._translate(path, body, context.drop_field)
        chunks = CompletionChunks(body, is_plain_json=bool(answer_format.instruction))
        yield from self._translate_stream(MESSAGES, request, context, chunks.add_event)

    def _translate(
        self, path: str, body: dict[str, Json], drop: Drop
    ) -> tuple[dict[str, Json], AnswerFormat]:
        def translate() -> tuple[dict[str, Json], AnswerFormat]:
            request, answer_format = translate_to_messages(path, body, drop)
            return self._complete(request, body, drop), answer_format

        return translate_request(translate)

    def _complete(self, request: dict[str, Json], body: dict[str, Json], drop: Drop) -> dict[str, Json]:
        """Return the request with what depends on its model: the longest answer and how much it thinks."""
        client = self._inner if isinstance(self._inner, AnthropicClient) else None
        if "max_tokens" not in request:
            limit = client.find_max_tokens(body["model"]) if client else FALLBACK_MAX_TOKENS
            budget = (request.get("thinking") or {}).get("budget_tokens")
            if isinstance(budget, int) and budget >= limit:  # it has to be smaller
                limit += budget
            request["max_tokens"] = limit
        effort = body.get("reasoning_effort")
        if isinstance(effort, str):
            capabilities = client.find_capabilities(body["model"]) if client else None
            request = _add_effort(request, effort, capabilities, drop)
        settled = settle_thinking(request, is_translated=True)
        if "thinking" in request and "thinking" not in settled:
            drop("thinking" if "thinking" in body else "reasoning_effort")
        return settled


def _add_effort(request: dict[str, Json], effort: str, capabilities: Json, drop: Drop) -> dict[str, Json]:
    """Return the request with an effort of OpenAI's. `drop` is told if its model has no such effort."""
    fitted = add_effort(request, effort, capabilities)
    thinking = fitted.get("thinking") or {}
    level = (fitted.get("output_config") or {}).get("effort")
    is_off = effort == "none" and thinking.get("type") not in ("adaptive", "enabled") and level is None
    is_budget = level is None and thinking.get("type") == "enabled"
    if not (is_off or is_budget or level == {"minimal": "low"}.get(effort, effort)):
        drop("reasoning_effort")
    return fitted


def translate_to_messages(
    path: str, body: dict[str, Json], drop: Drop = ignore
) -> tuple[dict[str, Json], AnswerFormat]:
    """Translate a chat request to Messages, without `max_tokens` if it states none, and without its effort.

    Return it, and the JSON that it asks for. `drop` is told what is left out. Raises StageError naming a
    field that has no counterpart.
    """
    if path != CHAT:
        raise make_path_error(path, AT_ANTHROPIC)
    kept, stated = CHAT_TO_MESSAGES.split(body, drop)
    answer_format = _read_answer_format(stated.get("response_format") or {"type": "text"}, drop)
    model = find_claude_model(str(body["model"]))
    system, messages = _split_messages(stated["messages"])
    drop_message_hints(stated["messages"], drop)
    if answer_format.instruction:
        system.append({"type": "text", "text": answer_format.instruction})
    request: dict[str, Json] = {**kept, "messages": messages}
    for field in ("max_tokens", "max_completion_tokens"):
        if field in stated:
            request["max_tokens"] = stated[field]
    if any("cache_control" in block for block in system):
        request["system"] = system
    elif system:
        request["system"] = "\n\n".join(block["text"] for block in system)
    _fit_sampling(request, stated, model, drop)
    stops = _select_stops(stated.get("stop"), drop)
    if stops:
        request["stop_sequences"] = stops
    user = stated.get("user") or stated.get("safety_identifier")
    if isinstance(user, str):
        request["metadata"] = {"user_id": shorten_user(user, "user_id")}
    request |= _translate_tools(stated, model, drop)
    if answer_format.schema is not None:
        request["output_config"] = {"format": {"type": "json_schema", "schema": answer_format.schema}}
    return request, answer_format


def _read_answer_format(response_format: dict[str, Json], drop: Drop) -> AnswerFormat:
    """Return the JSON that a chat asks for. `drop` is told the bounds of its schema that became words.

    Raises StageError for other forms than text and JSON.
    """
    match response_format["type"]:
        case "text":
            return AnswerFormat()
        case "json_object":
            return AnswerFormat(instruction=make_instruction(None))
        case "json_schema":
            schema = (response_format.get("json_schema") or {}).get("schema")
            if not isinstance(schema, dict):
                raise make_field_error("response_format.json_schema.schema", "an object")
            fitted = fit_schema(schema, "response_format.json_schema.schema", drop)
            if fitted is None:
                drop("response_format.json_schema.strict")
                return AnswerFormat(instruction=make_instruction(schema))
            return AnswerFormat(schema=fitted)
    raise make_field_error("response_format.type", f"text, json_object or json_schema {AT_ANTHROPIC}")


def _select_stops(stop: Json, drop: Drop) -> list[str]:
    """Return the stop sequences that Messages take, which are not those of white space."""
    stops = [stop] if isinstance(stop, str) else stop or []
    for at, each in enumerate(stops):
        if each and not each.strip():
            drop("stop" if isinstance(stop, str) else f"stop[{at}]")
    return [each for each in stops if each.strip()]


def _fit_sampling(
    request: dict[str, Json], stated: dict[str, Json], model: ClaudeModel | None, drop: Drop
) -> None:
    """Add the `temperature`, `top_p` and `top_k` that the model takes.

    Newer models take none, the others no `top_p` beside a temperature. A `temperature` above 1, the maximum
    of Messages, becomes 1.
    """
    takes_any = model is None or model.takes_sampling
    for name in ("temperature", "top_p", "top_k"):
        value = stated.get(name)
        if value is None:
            continue
        is_second = name == "top_p" and model is not None and stated.get("temperature") is not None
        if not takes_any or is_second:
            if name == "top_k" or value != 1:
                drop(name)
        elif name == "temperature" and value > 1:
            drop(name)
            request[name] = 1
        else:
            request[name] = value


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
            if isinstance(url, str) and not is_data_url(url):
                return {"type": "image", "source": {"type": "url", "url": url}}
            if isinstance(url, str):
                where = f"{place}.image_url.url"
                return _make_media(parse_data_url(url, where), where, "document")
        case "file":
            file = part.get("file") or {}
            if isinstance(file.get("file_data"), str):
                where = f"{place}.file.file_data"
                parsed = parse_file_data(file["file_data"], file.get("filename"), where)
                return _make_media(parsed, where, file.get("filename") or "document")
    raise make_field_error(place, f"text, image_url or file with file_data {AT_ANTHROPIC}")


def _make_media(parsed: DataUrl, place: str, title: str) -> dict[str, Json]:
    """Return the block of a picture or a document. Messages take some pictures, PDF and plain text."""
    source = {"type": "base64", "media_type": parsed.media_type, "data": parsed.data}
    if parsed.media_type in PICTURES:
        return {"type": "image", "source": source}
    if parsed.media_type == PDF:
        return {"type": "document", "source": source, "title": title}
    if parsed.media_type.startswith("text/") or parsed.media_type == "application/json":
        text = {"type": "text", "media_type": "text/plain", "data": parsed.decode_text()}
        return {"type": "document", "source": text, "title": title}
    types = ", ".join(sorted(PICTURES))
    raise make_field_error(place, f"{types}, {PDF} or text {AT_ANTHROPIC}")


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


def _translate_tools(body: dict[str, Json], model: ClaudeModel | None, drop: Drop) -> dict[str, Json]:
    tools: list[dict[str, Json]] = []
    strict_left = MAX_STRICT_TOOLS if model is not None and model.takes_strict_tools else 0
    for at, tool in enumerate(body.get("tools") or ()):
        function = tool.get("function")
        if tool["type"] != "function" or not isinstance(function, dict) or not function.get("name"):
            raise make_field_error(f"tools[{at}]", "a tool of type function with a name")
        schema = function.get("parameters") or {"type": "object", "properties": {}}
        translated = {"name": function["name"], "input_schema": schema}
        translated |= {key: function[key] for key in ("description",) if function.get(key)}
        if function.get("strict"):
            where = f"tools[{at}].function"
            fitted = fit_schema(schema, f"{where}.parameters", drop) if strict_left else None
            if fitted is None:
                drop(f"{where}.strict")
            else:
                strict_left -= 1
                translated |= {"input_schema": fitted, "strict": True}
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

    def __init__(self, request: dict[str, Json], *, is_plain_json: bool = False) -> None:
        """Set `is_plain_json` if JSON was asked for in words: then a code fence around it is left out."""
        self._request = request
        self._json = JsonText() if is_plain_json else None
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
