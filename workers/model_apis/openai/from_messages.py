"""A client that speaks Anthropic's Messages at a seat that speaks the OpenAI API format.

| Messages | chat/completions |
|---|---|
| `system` (text or blocks) | the first message, role system |
| text, image, document blocks | text, image_url, file parts |
| `tool_use`, `tool_result` blocks | `tool_calls`, messages of the role tool, which go first |
| `tools`, `tool_choice` auto, any, tool, none | `tools`, `tool_choice` auto, required, a function, none |
| `disable_parallel_tool_use` | `parallel_tool_calls` false |
| `max_tokens` | `max_tokens`, at OpenAI's own API `max_completion_tokens` |
| `stop_sequences`, `metadata.user_id` | `stop`, `user` |
| `output_config.format` json_schema | `response_format` json_schema |
| `temperature`, `top_p`, `top_k` (not at OpenAI's own API) | the same |

Left out: `cache_control`, earlier thinking, `thinking` itself (an answer's reasoning comes as thinking where
it was asked for), `output_config.effort`, `service_tier` and other fields. What has no counterpart and would
change the answer is refused: the vendor's own server tools and their blocks.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator
from typing import TYPE_CHECKING

from gridq.errors import SeatUnavailable
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json
from workers.model_apis.openai.answers import MessageEvents, build_message
from workers.model_apis.api_request import ANTHROPIC, CHAT, SHAPE_ERRORS, OPENAI, translate_request, make_field_error

if TYPE_CHECKING:
    from workers.model_apis.forwarding import Backend

TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class MessagesToChat:
    """Speaks the Anthropic API format to who asks, the OpenAI API format to `inner`."""

    api = ANTHROPIC
    strict = False

    def __init__(self, inner: Backend, *, thinks: bool = False) -> None:
        """`thinks`: `inner` takes `thinking` as Messages has it."""
        assert inner.api == OPENAI
        self._inner = inner
        self._thinks = thinks

    def post(self, path: str, body: dict[str, Json], context: StageContext) -> dict[str, Json]:
        answer = self._inner.post(CHAT, self._chat(body), context)
        try:
            return build_message(answer, body)
        except SHAPE_ERRORS:
            raise self.malformed("its answer has no choices") from None

    def stream(self, path: str, body: dict[str, Json], context: StageContext) -> Generator[dict[str, Json]]:
        told = MessageEvents(body)
        with contextlib.closing(self._inner.stream(CHAT, self._chat(body), context)) as chunks:
            try:
                for chunk in chunks:
                    yield from told.add(chunk)
                yield from told.end()
            except SHAPE_ERRORS:
                raise self.malformed("a chunk of its stream is not of the API format") from None

    def malformed(self, reason: str) -> SeatUnavailable:
        return self._inner.malformed(reason)

    def _chat(self, body: dict[str, Json]) -> dict[str, Json]:
        asked = translate_request(translate_to_chat, body, self._inner.strict)
        if not self._thinks:
            return asked
        effort = (body.get("output_config") or {}).get("effort")
        told = {"thinking": body.get("thinking"), "reasoning_effort": effort}
        return asked | {key: value for key, value in told.items() if value is not None}


def translate_to_chat(body: dict[str, Json], strict: bool = False) -> dict[str, Json]:
    """The chat request for a Messages request; `strict`: for the vendor's own API.

    StageError names the field that has no counterpart.
    """
    limit = "max_completion_tokens" if strict else "max_tokens"
    asked: dict[str, Json] = {
        "model": body["model"],
        "messages": _messages(body),
        limit: body["max_tokens"],
    }
    for field in ("temperature", "top_p") if strict else ("temperature", "top_p", "top_k"):
        if body.get(field) is not None:
            asked[field] = body[field]
    if body.get("stop_sequences"):
        asked["stop"] = body["stop_sequences"]
    user = (body.get("metadata") or {}).get("user_id")
    if isinstance(user, str):
        asked["user"] = user
    if body.get("tools"):
        asked["tools"] = [_tool(tool, f"tools[{at}]") for at, tool in enumerate(body["tools"])]
        asked |= _tool_choice(body.get("tool_choice") or {"type": "auto"})
    wanted = (body.get("output_config") or {}).get("format") or body.get("output_format")
    if isinstance(wanted, dict) and wanted.get("type") == "json_schema":
        schema = {"name": "answer", "schema": wanted.get("schema"), "strict": True}
        asked["response_format"] = {"type": "json_schema", "json_schema": schema}
    return asked


def _messages(body: dict[str, Json]) -> list[dict[str, Json]]:
    messages: list[dict[str, Json]] = []
    if body.get("system"):
        messages.append({"role": "system", "content": _plain(body["system"], "system")})
    for at, told in enumerate(body["messages"]):
        place, content = f"messages[{at}]", told.get("content")
        match told["role"]:
            case "user":
                messages += _user(content, f"{place}.content")
            case "assistant":
                messages.append(_assistant(content, f"{place}.content"))
            case "system":
                messages.append({"role": "system", "content": _plain(content, f"{place}.content")})
            case _:
                raise make_field_error(f"{place}.role", "'user' or 'assistant'")
    return messages


def _plain(content: Json, place: str) -> str:
    """A text, or the text of text blocks."""
    if isinstance(content, str):
        return content
    for at, block in enumerate(content or ()):
        if block["type"] != "text" or not isinstance(block.get("text"), str):
            raise make_field_error(f"{place}[{at}]", "a block of text")
    return "\n\n".join(block["text"] for block in content or ())


def _user(content: Json, place: str) -> list[dict[str, Json]]:
    if not isinstance(content, list):
        return [{"role": "user", "content": content or ""}]
    results: list[dict[str, Json]] = []
    parts: list[dict[str, Json]] = []
    for at, block in enumerate(content):
        where = f"{place}[{at}]"
        if block["type"] != "tool_result":
            parts += _parts(block, where)
            continue
        if not isinstance(block.get("tool_use_id"), str):
            raise make_field_error(f"{where}.tool_use_id", "a text")
        text, pictures = _result(block, where)
        results.append({"role": "tool", "tool_call_id": block["tool_use_id"], "content": text})
        parts += pictures
    if parts and all(part["type"] == "text" for part in parts):
        # a plain text is understood by every endpoint, a list of parts by most
        return [*results, {"role": "user", "content": "\n\n".join(part["text"] for part in parts)}]
    return [*results, {"role": "user", "content": parts}] if parts or not results else results


def _result(block: dict[str, Json], place: str) -> tuple[str, list[dict[str, Json]]]:
    """A tool's result: its text, and its pictures, which the OpenAI API format takes in a user's message only."""
    content = block.get("content")
    if isinstance(content, list):
        parts = [part for at, each in enumerate(content) for part in _parts(each, f"{place}.content[{at}]")]
    else:
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else []
    text = "\n\n".join(part["text"] for part in parts if part["type"] == "text")
    if block.get("is_error"):
        text = f"Error: {text}" if text else "Error"
    return text, [part for part in parts if part["type"] != "text"]


def _parts(block: Json, place: str) -> list[dict[str, Json]]:
    """The parts of a user's message that a block becomes."""
    kind = block.get("type") if isinstance(block, dict) else None
    source = (block.get("source") or {}) if isinstance(block, dict) else {}
    match kind:
        case "text":
            if not isinstance(block.get("text"), str):
                raise make_field_error(f"{place}.text", "a text")
            return [{"type": "text", "text": block["text"]}]
        case "image":
            return [{"type": "image_url", "image_url": {"url": _url(source, f"{place}.source")}}]
        case "document":
            return _document(block, source, place)
        case "search_result":
            inner = _plain(block.get("content"), f"{place}.content")
            return [{"type": "text", "text": f"{block.get('title', '')}\n{block.get('source', '')}\n{inner}"}]
    raise make_field_error(f"{place}.type", "text, image, document or tool_result at a seat of the OpenAI API format")


def _url(source: Json, place: str) -> str:
    match source.get("type") if isinstance(source, dict) else None:
        case "base64" if isinstance(source.get("data"), str):
            return f"data:{source.get('media_type', 'image/png')};base64,{source['data']}"
        case "url" if isinstance(source.get("url"), str):
            return str(source["url"])
    raise make_field_error(place, "a base64 or url source at a seat of the OpenAI API format")


def _document(block: dict[str, Json], source: dict[str, Json], place: str) -> list[dict[str, Json]]:
    title = block.get("title") or "document"
    match source.get("type"):
        case "text" if isinstance(source.get("data"), str):
            return [{"type": "text", "text": f"{title}\n\n{source['data']}"}]
        case "content":
            told = source.get("content")
            if isinstance(told, str):
                return [{"type": "text", "text": f"{title}\n\n{told}"}]
            blocks = enumerate(told or ())
            return [part for at, each in blocks for part in _parts(each, f"{place}.source.content[{at}]")]
        case "base64":
            data = _url({"media_type": "application/pdf", **source}, f"{place}.source")
            return [{"type": "file", "file": {"filename": f"{title}.pdf", "file_data": data}}]
    raise make_field_error(f"{place}.source", "a text, content or base64 source at a seat of the OpenAI API format")


def _assistant(content: Json, place: str) -> dict[str, Json]:
    texts: list[str] = []
    calls: list[dict[str, Json]] = []
    for at, block in enumerate(
        [{"type": "text", "text": content}] if isinstance(content, str) else content or ()
    ):
        match block["type"]:
            case "text":
                texts.append(block.get("text") or "")
            case "tool_use":
                if not isinstance(block.get("id"), str) or not isinstance(block.get("name"), str):
                    raise make_field_error(f"{place}[{at}]", "a tool_use block with id, name and input")
                arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
                function = {"name": block["name"], "arguments": arguments}
                calls.append({"id": block["id"], "type": "function", "function": function})
            case "thinking" | "redacted_thinking":
                pass  # its signature is of use to the vendor's own models only
            case _:
                raise make_field_error(f"{place}[{at}].type", "text or tool_use at a seat of the OpenAI API format")
    told: dict[str, Json] = {"role": "assistant", "content": "".join(texts)}
    if calls:
        told |= {"content": told["content"] or None, "tool_calls": calls}
    return told


def _tool(tool: dict[str, Json], place: str) -> dict[str, Json]:
    if tool.get("type") not in (None, "custom"):
        raise make_field_error(f"{place}.type", "custom: the vendor's own tools need a seat of its API format")
    if not isinstance(tool.get("name"), str) or not isinstance(tool.get("input_schema"), dict):
        raise make_field_error(place, "a tool with name and input_schema")
    function = {"name": tool["name"], "parameters": tool["input_schema"]}
    function |= {key: tool[key] for key in ("description", "strict") if tool.get(key) is not None}
    return {"type": "function", "function": function}


def _tool_choice(choice: dict[str, Json]) -> dict[str, Json]:
    asked: dict[str, Json] = {}
    if choice["type"] == "tool":
        if not isinstance(choice.get("name"), str):
            raise make_field_error("tool_choice.name", "a tool's name")
        asked["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
    elif choice["type"] in TOOL_CHOICES:
        asked["tool_choice"] = TOOL_CHOICES[choice["type"]]
    else:
        raise make_field_error("tool_choice.type", "auto, any, tool or none")
    if choice.get("disable_parallel_tool_use"):
        asked["parallel_tool_calls"] = False
    return asked
