"""Serve clients of the OpenAI API format from a seat with Google's `generateContent`.

| chat/completions | generateContent |
|---|---|
| messages with the role system or developer | `systemInstruction` |
| user, assistant | `contents` with the roles user and model |
| `tool_calls`, messages with the role tool | `functionCall`, `functionResponse` parts |
| text, image_url, file, input_audio parts | text, `inlineData` (data URLs), `fileData` (other URLs) |
| `tool_choice` auto, required, none, a function | AUTO, ANY, NONE |
| `embeddings` | `batchEmbedContents`, at Vertex AI `predict` |

The tables of the fields are in `workers.model_apis.fields.chat`; the path `completions` is refused. Newer
models require the `thought_signature` of their tool calls. It stands in `extra_content.google` of the call,
where Google's own OpenAI-compatible endpoint has it. A call without one gets the value that Google documents
for calls of other models. Tools of other types and tokens as embedding input are refused.
"""

from __future__ import annotations

import json
import mimetypes
import re
from collections.abc import Generator
from typing import Any
from urllib.parse import urlsplit

from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json
from workers.model_apis.api_request import (
    CHAT,
    EMBEDDINGS,
    OPENAI,
    make_field_error,
    make_path_error,
    translate_request,
)
from workers.model_apis.backend import TranslatingBackend, parse_answer
from workers.model_apis.data_urls import PDF, DataUrl, is_data_url, parse_data_url, parse_file_data
from workers.model_apis.fields.chat import AT_GOOGLE, CHAT_TO_GOOGLE, EMBEDDINGS_TO_GOOGLE, drop_message_hints
from workers.model_apis.fields.table import Drop, ignore
from workers.model_apis.google.answers import ContentChunks, build_completion, build_embeddings
from workers.model_apis.google.client import make_method_path

TOOL_CHOICES = {"auto": "AUTO", "required": "ANY", "none": "NONE"}
THINKING_TOKENS = {"none": 0, "minimal": 1024, "low": 1024, "medium": 8192, "high": 24_576}
"""Thinking budget of each effort before Gemini 3, as in Google's own OpenAI-compatible endpoint."""

PLACEHOLDER_SIGNATURE = "skip_thought_signature_validator"
"""Google's documented value for a tool call whose signature is not known."""

AUDIO_TYPES = {"wav": "audio/wav", "mp3": "audio/mp3"}
PICTURE_TYPES = ("image/png", "image/jpeg", "image/webp", "image/heic", "image/heif")
INLINE_TYPES = re.compile(rf"{'|'.join((*PICTURE_TYPES, PDF))}|text/.*|audio/.*|video/.*")
"""The types of inline data that Gemini models take. Text of any type is text to them."""

MAX_STOPS = 5
"""The stop sequences that `generateContent` takes."""


class ChatToGoogle(TranslatingBackend):
    """A backend of the OpenAI API format that sends its requests to `inner`, of Google's API format."""

    api = OPENAI

    def post(self, path: str, body: dict[str, Json], context: StageContext) -> dict[str, Json]:
        if path == EMBEDDINGS:
            return self._post_embeddings(body, context)
        request = self._translate(path, body, context.drop_field)
        answer = self._inner.post(make_method_path(body["model"], "generateContent"), request, context)
        return parse_answer(self, build_completion, answer, body)

    def stream(self, path: str, body: dict[str, Json], context: StageContext) -> Generator[dict[str, Json]]:
        chunks = ContentChunks(body)
        request = self._translate(path, body, context.drop_field)
        request_path = make_method_path(body["model"], "streamGenerateContent?alt=sse")
        yield from self._translate_stream(request_path, request, context, chunks.add_event)

    def _translate(self, path: str, body: dict[str, Json], drop: Drop) -> dict[str, Json]:
        return translate_request(translate_to_google, path, body, self._inner.is_strict, drop)

    def _post_embeddings(self, body: dict[str, Json], context: StageContext) -> dict[str, Json]:
        is_vertex = self._inner.is_strict
        name, request = translate_embedding_request(body, is_vertex, context.drop_field)
        answer = self._inner.post(make_method_path(body["model"], name), request, context)
        return parse_answer(self, build_embeddings, answer, body)


def translate_embedding_request(
    body: dict[str, Json], is_vertex: bool, drop: Drop = ignore
) -> tuple[str, dict[str, Json]]:
    """Return the method and the request for embeddings. Raises StageError if the input is not text."""
    _, stated = EMBEDDINGS_TO_GOOGLE.split(body, drop)
    texts = [stated["input"]] if isinstance(stated["input"], str) else stated["input"]
    if not all(isinstance(text, str) for text in texts):
        raise make_field_error("input", f"a string or a list of strings {AT_GOOGLE}")
    size = {"outputDimensionality": stated["dimensions"]} if "dimensions" in stated else {}
    if is_vertex:
        return "predict", {"instances": [{"content": text} for text in texts], "parameters": size}
    model = f"models/{stated['model']}"
    requests = [{"model": model, "content": {"parts": [{"text": text}]}, **size} for text in texts]
    return "batchEmbedContents", {"requests": requests}


def translate_to_google(
    path: str, body: dict[str, Json], is_vertex: bool = False, drop: Drop = ignore
) -> dict[str, Json]:
    """Translate a chat request to generateContent. `drop` is told what is left out.

    Raises StageError naming a field without a counterpart.
    """
    if path != CHAT:
        raise make_path_error(path, AT_GOOGLE)
    config, stated = CHAT_TO_GOOGLE.split(body, drop)
    system, contents = Conversation(stated["model"], is_vertex).translate(stated["messages"])
    drop_message_hints(stated["messages"], drop)
    request: dict[str, Json] = {"contents": contents}
    if system:
        request["systemInstruction"] = {"parts": [{"text": system}]}
    request |= _translate_tools(stated, drop)
    config |= _make_config(stated, drop)
    if config:
        request["generationConfig"] = config
    return request


def _make_config(body: dict[str, Json], drop: Drop) -> dict[str, Json]:
    """Return the translated fields of `generationConfig`."""
    config: dict[str, Json] = {}
    if body.get("n", 1) != 1:
        config["candidateCount"] = body["n"]
    for field in ("max_tokens", "max_completion_tokens"):
        if body.get(field) == 0:
            raise make_field_error(field, f"an integer of at least 1 {AT_GOOGLE}")
        if field in body:
            config["maxOutputTokens"] = body[field]
    stops = [body["stop"]] if isinstance(body.get("stop"), str) else body.get("stop") or []
    stops = [*filter(None, stops)]
    if len(stops) > MAX_STOPS:
        raise make_field_error("stop", f"at most {MAX_STOPS} sequences {AT_GOOGLE}")
    if stops:
        config["stopSequences"] = stops
    response_format = body.get("response_format") or {"type": "text"}
    if response_format["type"] == "json_schema":
        config["responseMimeType"] = "application/json"
        config["responseJsonSchema"] = (response_format.get("json_schema") or {}).get("schema")
    elif response_format["type"] == "json_object":
        config["responseMimeType"] = "application/json"
    elif response_format["type"] != "text":
        raise make_field_error("response_format.type", f"text, json_object or json_schema {AT_GOOGLE}")
    thinking = _make_thinking_config(body, drop)
    return config | ({"thinkingConfig": thinking} if thinking else {})


def parse_generation(model: str) -> int | None:
    """Return the 2 of `gemini-2.5-pro`, 3 for aliases (`gemini-flash-latest`), None for other families."""
    found = re.search(r"gemini-(\d+)?", model)
    return None if found is None else int(found[1] or 3)


def _make_thinking_config(body: dict[str, Json], drop: Drop) -> dict[str, Json]:
    """Return how much the model should think, and whether it should show it, as `thinking` asks."""
    number = parse_generation(body["model"])
    thinking = body.get("thinking") or {}
    kind, effort = thinking.get("type"), body.get("reasoning_effort")
    if number is None:
        for field in ("thinking", "reasoning_effort"):
            if body.get(field):
                drop(field)
        return {}
    config: dict[str, Json] = {}
    if kind in ("enabled", "adaptive"):
        config["includeThoughts"] = True
    if kind == "enabled" and isinstance(thinking.get("budget_tokens"), int):
        return {**config, "thinkingBudget": thinking["budget_tokens"]}
    if kind == "disabled":
        effort = "none"
    if not isinstance(effort, str):
        return config
    if number < 3:
        return {**config, "thinkingBudget": THINKING_TOKENS.get(effort, THINKING_TOKENS["high"])}
    if effort in ("none", "xhigh", "max"):  # there is no such level
        drop("reasoning_effort" if kind != "disabled" else "thinking")
    lowest = "minimal" if "flash" in body["model"] else "low"
    level = effort if effort in ("low", "medium") else "high"
    return {**config, "thinkingLevel": {"none": lowest, "minimal": lowest}.get(effort, level)}


def _translate_tools(body: dict[str, Json], drop: Drop) -> dict[str, Json]:
    declarations = []
    for at, tool in enumerate(body.get("tools") or ()):
        function = tool.get("function")
        if tool["type"] != "function" or not isinstance(function, dict) or not function.get("name"):
            raise make_field_error(f"tools[{at}]", f"a tool of type function with a name {AT_GOOGLE}")
        declared = {key: function[key] for key in ("name", "description") if function.get(key)}
        if function.get("parameters"):
            declared["parametersJsonSchema"] = function["parameters"]
        if function.get("strict"):
            drop(f"tools[{at}].function.strict")
        declarations.append(declared)
    if not declarations:
        return {}
    choice = body.get("tool_choice") or "auto"
    if isinstance(choice, dict):
        name = (choice.get("function") or {}).get("name")
        if not isinstance(name, str):
            raise make_field_error("tool_choice.function.name", "a tool's name")
        mode: dict[str, Json] = {"mode": "ANY", "allowedFunctionNames": [name]}
    elif choice in TOOL_CHOICES:
        mode = {"mode": TOOL_CHOICES[choice]}
    else:
        raise make_field_error("tool_choice", "auto, required, none or a function")
    return {"tools": [{"functionDeclarations": declarations}], "toolConfig": {"functionCallingConfig": mode}}


class Conversation:
    """Translates the messages of a chat to Google's contents."""

    def __init__(self, model: str, is_vertex: bool) -> None:
        self._needs_signatures = (parse_generation(model) or 0) >= 3
        self._sends_ids = not is_vertex
        self._function_names: dict[str, str] = {}
        """By call id. A tool result must name its function."""

    def translate(self, messages: list[dict[str, Json]]) -> tuple[str, list[dict[str, Json]]]:
        """Return the system text, and the other messages as alternating turns of user and model."""
        system: list[str] = []
        turns: list[dict[str, Json]] = []
        for at, message in enumerate(messages):
            place = f"messages[{at}]"
            match message["role"]:
                case "system" | "developer":
                    system.append(_join_text(message.get("content"), f"{place}.content"))
                    continue
                case "user":
                    role, parts = "user", _translate_content(message.get("content"), f"{place}.content")
                case "tool":
                    role, parts = "user", [self._translate_result(message, place)]
                case "assistant":
                    role, parts = "model", self._translate_assistant(message, place)
                case _:
                    raise make_field_error(f"{place}.role", "system, developer, user, assistant or tool")
            if turns and turns[-1]["role"] == role:
                turns[-1]["parts"] += parts
            elif parts:
                turns.append({"role": role, "parts": parts})
        if not turns:
            raise make_field_error("messages", "at least one user message")
        return "\n\n".join(filter(None, system)), turns

    def _translate_assistant(self, message: dict[str, Json], place: str) -> list[dict[str, Json]]:
        parts = _translate_content(message.get("content"), f"{place}.content")
        for at, call in enumerate(message.get("tool_calls") or ()):
            where = f"{place}.tool_calls[{at}].function"
            function = call.get("function") if isinstance(call, dict) else None
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                raise make_field_error(where, "an object with name and arguments")
            called: dict[str, Json] = {"name": function["name"], "args": _parse_arguments(function, where)}
            if isinstance(call.get("id"), str):
                self._function_names[call["id"]] = function["name"]
                called |= {"id": call["id"]} if self._sends_ids else {}
            extra = (call.get("extra_content") or {}).get("google") or {}
            signature = extra.get("thought_signature")
            if not signature and self._needs_signatures and at == 0:
                signature = PLACEHOLDER_SIGNATURE
            parts.append({"functionCall": called} | ({"thoughtSignature": signature} if signature else {}))
        return parts

    def _translate_result(self, message: dict[str, Json], place: str) -> dict[str, Json]:
        name = self._function_names.get(message.get("tool_call_id") or "")
        if name is None:
            raise make_field_error(f"{place}.tool_call_id", "the id of a tool call in an earlier message")
        text = _join_text(message.get("content"), f"{place}.content")
        try:
            parsed = json.loads(text)
        except ValueError:
            parsed = None
        result: dict[str, Json] = {
            "name": name,
            "response": parsed if isinstance(parsed, dict) else {"output": text},
        }
        return {"functionResponse": result | ({"id": message["tool_call_id"]} if self._sends_ids else {})}


def _parse_arguments(function: dict[str, Json], place: str) -> dict[str, Json]:
    try:
        arguments = json.loads(function.get("arguments") or "{}")
    except (TypeError, ValueError):
        arguments = None
    if not isinstance(arguments, dict):
        raise make_field_error(f"{place}.arguments", "a JSON object as a string")
    return arguments


def _join_text(content: Json, place: str) -> str:
    parts = _translate_content(content, place)
    if any("text" not in part for part in parts):
        raise make_field_error(place, "text")
    return "".join(part["text"] for part in parts)


def _translate_content(content: Json, place: str) -> list[dict[str, Json]]:
    if not isinstance(content, list):
        return [{"text": content}] if content else []
    return [
        _translate_part(part, f"{place}[{at}]") for at, part in enumerate(content) if part.get("text") != ""
    ]


def _translate_part(part: dict[str, Json], place: str) -> dict[str, Json]:
    match part["type"]:
        case "text" | "refusal" if isinstance(part.get(part["type"]), str):
            return {"text": part[part["type"]]}
        case "image_url":
            image = part.get("image_url")
            url = image.get("url") if isinstance(image, dict) else image
            if isinstance(url, str):
                where = f"{place}.image_url.url"
                return (
                    _make_inline(parse_data_url(url, where), where)
                    if is_data_url(url)
                    else _make_link(url, where)
                )
        case "file":
            file = part.get("file") or {}
            if isinstance(file.get("file_data"), str):
                where = f"{place}.file.file_data"
                return _make_inline(parse_file_data(file["file_data"], file.get("filename"), where), where)
        case "input_audio":
            audio = part.get("input_audio") or {}
            if audio.get("format") in AUDIO_TYPES and isinstance(audio.get("data"), str):
                return {"inlineData": {"mimeType": AUDIO_TYPES[audio["format"]], "data": audio["data"]}}
    raise make_field_error(place, f"text, image_url, input_audio or file with file_data {AT_GOOGLE}")


def _make_inline(parsed: DataUrl, place: str) -> dict[str, Any]:
    media_type = "text/plain" if parsed.media_type == "application/json" else parsed.media_type
    if not INLINE_TYPES.fullmatch(media_type):
        types = ", ".join((*PICTURE_TYPES, PDF))
        raise make_field_error(place, f"{types}, text, audio or video {AT_GOOGLE}")
    return {"inlineData": {"mimeType": media_type, "data": parsed.data}}


def _make_link(url: str, place: str) -> dict[str, Any]:
    media_type = mimetypes.guess_type(urlsplit(url).path)[0] or ""
    if not media_type:
        raise make_field_error(place, f"a data URL, or a URL with a file extension such as .png, {AT_GOOGLE}")
    return {"fileData": {"fileUri": url, "mimeType": media_type}}
