"""Serve clients of Anthropic's Messages from a seat with the OpenAI API format.

| Messages | chat/completions |
|---|---|
| text, image, document blocks | text, image_url, file parts |
| `tool_use`, `tool_result` blocks | `tool_calls`, messages with the role tool, which go first |
| `tool_choice` auto, any, tool, none | auto, required, a function, none |
| `disable_parallel_tool_use` | `parallel_tool_calls` false |

The tables of the fields are in `workers.model_apis.fields.messages`. Earlier thinking goes back to the
endpoint and model that sent it, in the field where it was; thinking of other models is left out, and so is
`cache_control` of blocks. The answer's reasoning becomes thinking if the client asked for it.
"""

from __future__ import annotations

import json
from collections.abc import Generator

from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json
from workers.model_apis.api_request import (
    ANTHROPIC,
    CHAT,
    OPENAI,
    make_field_error,
    translate_request,
)
from workers.model_apis.backend import Backend, TranslatingBackend, parse_answer
from workers.model_apis.context_wrappers import RenamingContext
from workers.model_apis.data_urls import PDF, check_picture, parse_data_url
from workers.model_apis.fields.messages import (
    AT_OPENAI,
    CLIENT_NAMES,
    MESSAGES_TO_CHAT,
    MESSAGES_TO_GOOGLE,
    MESSAGES_TO_OPENAI,
    OUTPUT_HINTS,
    THINKING_HINTS,
    TOOL_HINTS,
    drop_block_hints,
)
from workers.model_apis.fields.table import Drop, FieldTable, add_inner_hints, ignore, rename_errors
from workers.model_apis.identity.fitting import shorten_user, split_signature
from workers.model_apis.identity.origins import name_origin, split_signed_id
from workers.model_apis.openai.answers import MessageEvents, build_message
from workers.model_apis.openai.schemas import is_strict_schema
from workers.model_apis.reasoning_marks import find_field

TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
MAX_STOPS = 4
"""The stop sequences that OpenAI's own API takes."""


class MessagesToChat(TranslatingBackend):
    """A backend of the Anthropic API format that sends its requests to `inner`, of the OpenAI API format."""

    api = ANTHROPIC

    def __init__(self, inner: Backend, seat: Backend, *, accepts_thinking: bool = False) -> None:
        """Set `accepts_thinking` if `inner` takes the `thinking` field of Messages, and their effort.

        `seat` is the backend that the requests reach at last, which gets its own reasoning back.
        """
        assert inner.api == OPENAI
        super().__init__(inner)
        self._seat = seat
        self._accepts_thinking = accepts_thinking

    def post(self, path: str, body: dict[str, Json], context: StageContext) -> dict[str, Json]:
        request = self._translate(body, context.drop_field)
        with rename_errors(CLIENT_NAMES):
            answer = self._inner.post(CHAT, request, RenamingContext(context, CLIENT_NAMES))
        return parse_answer(self, build_message, answer, body, name_origin(body["model"], self._seat))

    def stream(self, path: str, body: dict[str, Json], context: StageContext) -> Generator[dict[str, Json]]:
        events = MessageEvents(body, name_origin(body["model"], self._seat))
        request, renaming = self._translate(body, context.drop_field), RenamingContext(context, CLIENT_NAMES)
        with rename_errors(CLIENT_NAMES):
            yield from self._translate_stream(CHAT, request, renaming, events.add_chunk)
        yield from parse_answer(self, list, events.end())

    def _translate(self, body: dict[str, Json], drop: Drop) -> dict[str, Json]:
        table = MESSAGES_TO_OPENAI if self._inner.is_strict else MESSAGES_TO_CHAT
        if self._accepts_thinking:
            table = MESSAGES_TO_GOOGLE
        origin = name_origin(body["model"], self._seat)
        request = translate_request(translate_to_chat, body, table, origin, drop)
        if not self._accepts_thinking:
            return request
        effort = (body.get("output_config") or {}).get("effort")
        fields = {"thinking": body.get("thinking"), "reasoning_effort": effort}
        return request | {key: value for key, value in fields.items() if value is not None}


def translate_to_chat(
    body: dict[str, Json],
    table: FieldTable = MESSAGES_TO_CHAT,
    origin: str = "",
    drop: Drop = ignore,
) -> dict[str, Json]:
    """Translate a Messages request to chat, by the table of its target.

    `origin` is the endpoint with its model, which gets its own reasoning back. `drop` is told what is left
    out. Raises StageError naming a field that has no counterpart.
    """
    kept, stated = table.split(body, drop)
    if not stated["max_tokens"]:  # it fills the vendor's cache and answers nothing
        raise make_field_error("max_tokens", f"an integer of at least 1 {AT_OPENAI}")
    is_strict = table is MESSAGES_TO_OPENAI
    request: dict[str, Json] = {
        **kept,
        "messages": _translate_messages(stated, origin),
        "max_completion_tokens" if is_strict else "max_tokens": stated["max_tokens"],
    }
    drop_block_hints(stated["messages"], drop)
    stops = [*filter(None, stated.get("stop_sequences") or ())]
    if is_strict and len(stops) > MAX_STOPS:
        raise make_field_error("stop_sequences", f"at most {MAX_STOPS} sequences at OpenAI's API")
    if stops:
        request["stop"] = stops
    user = (stated.get("metadata") or {}).get("user_id")
    if isinstance(user, str):
        request["user"] = shorten_user(user, "user")
    if stated.get("tools"):
        tools = enumerate(stated["tools"])
        request["tools"] = [_translate_tool(tool, f"tools[{at}]", drop) for at, tool in tools]
        request |= _translate_tool_choice(stated.get("tool_choice") or {"type": "auto"})
    config = stated.get("output_config") or {}
    output_format = config.get("format") or stated.get("output_format")
    if isinstance(output_format, dict) and output_format.get("type") == "json_schema":
        schema = {"name": "answer", "schema": output_format.get("schema")}
        schema["strict"] = is_strict_schema(schema["schema"])
        request["response_format"] = {"type": "json_schema", "json_schema": schema}
    if table is not MESSAGES_TO_GOOGLE:
        add_inner_hints(config, "output_config", OUTPUT_HINTS, drop)
        add_inner_hints(stated.get("thinking") or {}, "thinking", THINKING_HINTS, drop)
    return request


def _translate_messages(body: dict[str, Json], origin: str) -> list[dict[str, Json]]:
    messages: list[dict[str, Json]] = []
    if body.get("system"):
        messages.append({"role": "system", "content": _join_text(body["system"], "system")})
    for at, message in enumerate(body["messages"]):
        place, content = f"messages[{at}]", message.get("content")
        match message["role"]:
            case "user":
                messages += _translate_user(content, f"{place}.content")
            case "assistant":
                messages.append(_translate_assistant(content, f"{place}.content", origin))
            case "system":
                messages.append({"role": "system", "content": _join_text(content, f"{place}.content")})
            case _:
                raise make_field_error(f"{place}.role", "'user' or 'assistant'")
    return messages


def _join_text(content: Json, place: str) -> str:
    """Return a string, or the joined text of text blocks."""
    if isinstance(content, str):
        return content
    for at, block in enumerate(content or ()):
        if block["type"] != "text" or not isinstance(block.get("text"), str):
            raise make_field_error(f"{place}[{at}]", "a text block")
    return "\n\n".join(block["text"] for block in content or ())


def _translate_user(content: Json, place: str) -> list[dict[str, Json]]:
    if not isinstance(content, list):
        return [{"role": "user", "content": content or ""}]
    results: list[dict[str, Json]] = []
    parts: list[dict[str, Json]] = []
    for at, block in enumerate(content):
        where = f"{place}[{at}]"
        if block["type"] != "tool_result":
            parts += _translate_block(block, where)
            continue
        if not isinstance(block.get("tool_use_id"), str):
            raise make_field_error(f"{where}.tool_use_id", "a string")
        text, images = _translate_tool_result(block, where)
        call_id = split_signature(block["tool_use_id"])[0]
        results.append({"role": "tool", "tool_call_id": call_id, "content": text})
        parts += images
    if parts and all(part["type"] == "text" for part in parts):
        # every endpoint takes a plain string, not all take a list of parts
        return [*results, {"role": "user", "content": "\n\n".join(part["text"] for part in parts)}]
    return [*results, {"role": "user", "content": parts}] if parts or not results else results


def _translate_tool_result(block: dict[str, Json], place: str) -> tuple[str, list[dict[str, Json]]]:
    """Return the text and the images of a tool's result. OpenAI takes images in user messages only."""
    content = block.get("content")
    if isinstance(content, list):
        parts = [
            part
            for at, each in enumerate(content)
            for part in _translate_block(each, f"{place}.content[{at}]")
        ]
    else:
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else []
    text = "\n\n".join(part["text"] for part in parts if part["type"] == "text")
    if block.get("is_error"):
        text = f"Error: {text}" if text else "Error"
    return text, [part for part in parts if part["type"] != "text"]


def _translate_block(block: Json, place: str) -> list[dict[str, Json]]:
    """Return the parts of a user message for one block."""
    kind = block.get("type") if isinstance(block, dict) else None
    source = (block.get("source") or {}) if isinstance(block, dict) else {}
    match kind:
        case "text":
            if not isinstance(block.get("text"), str):
                raise make_field_error(f"{place}.text", "a string")
            return [{"type": "text", "text": block["text"]}]
        case "image":
            url = check_picture(_make_url(source, f"{place}.source"), f"{place}.source", AT_OPENAI)
            return [{"type": "image_url", "image_url": {"url": url}}]
        case "document":
            return _translate_document(block, source, place)
        case "search_result":
            inner = _join_text(block.get("content"), f"{place}.content")
            return [{"type": "text", "text": f"{block.get('title', '')}\n{block.get('source', '')}\n{inner}"}]
    raise make_field_error(
        f"{place}.type", "text, image, document or tool_result at a seat of the OpenAI API format"
    )


def _make_url(source: Json, place: str) -> str:
    match source.get("type") if isinstance(source, dict) else None:
        case "base64" if isinstance(source.get("data"), str):
            return f"data:{source.get('media_type') or 'image/png'};base64,{source['data']}"
        case "url" if isinstance(source.get("url"), str):
            return str(source["url"])
    raise make_field_error(place, "a base64 or url source at a seat of the OpenAI API format")


def _translate_document(block: dict[str, Json], source: dict[str, Json], place: str) -> list[dict[str, Json]]:
    title = block.get("title") or "document"
    match source.get("type"):
        case "text" if isinstance(source.get("data"), str):
            return [{"type": "text", "text": f"{title}\n\n{source['data']}"}]
        case "content":
            content = source.get("content")
            if isinstance(content, str):
                return [{"type": "text", "text": f"{title}\n\n{content}"}]
            blocks = enumerate(content or ())
            return [
                part
                for at, each in blocks
                for part in _translate_block(each, f"{place}.source.content[{at}]")
            ]
        case "base64":
            url = _make_url({"media_type": PDF, **source}, f"{place}.source")
            data = str(parse_data_url(url, f"{place}.source"))
            return [{"type": "file", "file": {"filename": f"{title}.pdf", "file_data": data}}]
    raise make_field_error(
        f"{place}.source", "a text, content or base64 source at a seat of the OpenAI API format"
    )


def _translate_assistant(content: Json, place: str, origin: str) -> dict[str, Json]:
    texts: list[str] = []
    reasoning: dict[str, list[str]] = {}
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
                calls.append({**split_signed_id(block["id"]), "type": "function", "function": function})
            case "thinking":  # only the model that thought it can use it
                field = find_field(block, origin)
                if field is not None:
                    reasoning.setdefault(field, []).append(block.get("thinking") or "")
            case "redacted_thinking":
                pass  # only the vendor's own models can read it
            case _:
                raise make_field_error(
                    f"{place}[{at}].type", "text or tool_use at a seat of the OpenAI API format"
                )
    joined = {field: "".join(parts) for field, parts in reasoning.items()}
    message: dict[str, Json] = {"role": "assistant", "content": "".join(texts), **joined}
    if calls:
        message |= {"content": message["content"] or None, "tool_calls": calls}
    return message


def _translate_tool(tool: dict[str, Json], place: str, drop: Drop) -> dict[str, Json]:
    if tool.get("type") not in (None, "custom"):
        raise make_field_error(
            f"{place}.type", "custom: a vendor's own tools need a seat of that vendor's API format"
        )
    if not isinstance(tool.get("name"), str) or not isinstance(tool.get("input_schema"), dict):
        raise make_field_error(place, "a tool with name and input_schema")
    add_inner_hints(tool, place, TOOL_HINTS, drop)
    function = {"name": tool["name"], "parameters": tool["input_schema"]}
    if tool.get("description") is not None:
        function["description"] = tool["description"]
    if tool.get("strict") is not None:
        function["strict"] = bool(tool["strict"]) and is_strict_schema(tool["input_schema"])
        if tool["strict"] and not function["strict"]:
            drop(f"{place}.strict")
    return {"type": "function", "function": function}


def _translate_tool_choice(choice: dict[str, Json]) -> dict[str, Json]:
    translated: dict[str, Json] = {}
    if choice["type"] == "tool":
        if not isinstance(choice.get("name"), str):
            raise make_field_error("tool_choice.name", "a tool's name")
        translated["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
    elif choice["type"] in TOOL_CHOICES:
        translated["tool_choice"] = TOOL_CHOICES[choice["type"]]
    else:
        raise make_field_error("tool_choice.type", "auto, any, tool or none")
    if choice.get("disable_parallel_tool_use"):
        translated["parallel_tool_calls"] = False
    return translated
