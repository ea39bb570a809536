"""A client that speaks the OpenAI API format at a seat that speaks Google's `generateContent`.

| chat/completions | generateContent |
|---|---|
| messages of the roles system and developer | `systemInstruction` |
| user, assistant | `contents` of the roles user and model |
| `tool_calls`, messages of the role tool | `functionCall`, `functionResponse` parts |
| text, image_url, file, input_audio parts | text, `inlineData` (data URLs), `fileData` (other URLs) |
| `tools`, `tool_choice` auto, required, none, a function | `functionDeclarations`, AUTO, ANY, NONE |
| `response_format` json_schema, json_object | `responseJsonSchema`, `responseMimeType` |
| `max_tokens`, `stop`, `temperature`, `top_p`, `seed`, `n`, penalties … | fields of `generationConfig` |
| `reasoning_effort`, `thinking` (budget_tokens) | `thinkingConfig` |
| `embeddings` | `batchEmbedContents`, at Vertex AI `predict` |

A call's `thought_signature`, which newer models want back, stands where Google's own OpenAI-shaped endpoint
has it, in `extra_content.google` of the call; for a call without one the value goes out that Google documents
for calls of other models. What has no counterpart and would change the answer is refused by name: the path
`completions`, `logprobs`, `logit_bias`, audio answers, `parallel_tool_calls` false, tools of other types,
tokens for texts. Hints (`user`, `store`, `metadata`, `service_tier`, `prediction`) are left out.
"""

from __future__ import annotations

import contextlib
import json
import mimetypes
import re
from collections.abc import Generator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gridq.errors import SeatUnavailable
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json
from workers.model_apis.google.answers import ContentChunks, completion, embeddings
from workers.model_apis.google.api import method
from workers.model_apis.request import CHAT, EMBEDDINGS, ODD, OPENAI, translated, wrong

if TYPE_CHECKING:
    from workers.model_apis.forwarding import Speaker

AT = "at a seat of Google's API format"
REFUSED = ("logprobs", "logit_bias", "functions", "function_call", "audio", "web_search_options")
CONFIGURED = {
    "temperature": "temperature",
    "top_p": "topP",
    "top_k": "topK",
    "seed": "seed",
    "n": "candidateCount",
    "presence_penalty": "presencePenalty",
    "frequency_penalty": "frequencyPenalty",
}
TOOL_CHOICES = {"auto": "AUTO", "required": "ANY", "none": "NONE"}
BUDGETS = {"none": 0, "minimal": 1024, "low": 1024, "medium": 8192, "high": 24_576}
"""What an effort is in tokens before Gemini 3, as Google's own OpenAI-shaped endpoint has it."""

ANY_SIGNATURE = "skip_thought_signature_validator"
"""Google's documented stand-in where the signature of a call is not known."""

AUDIO = {"wav": "audio/wav", "mp3": "audio/mp3"}


class ChatAsGoogle:
    """Speaks the OpenAI API format to who asks, Google's API format to `inner`."""

    api = OPENAI
    strict = False

    def __init__(self, inner: Speaker) -> None:
        self._inner = inner

    def post(self, path: str, body: dict[str, Json], context: StageContext) -> dict[str, Json]:
        if path == EMBEDDINGS:
            return self._embed(body, context)
        asked = translated(content_body, path, body, self._inner.strict)
        answer = self._inner.post(method(body["model"], "generateContent"), asked, context)
        try:
            return completion(answer, body)
        except ODD as exc:
            raise self.malformed(f"its answer has no candidates ({exc})") from None

    def stream(self, path: str, body: dict[str, Json], context: StageContext) -> Generator[dict[str, Json]]:
        told = ContentChunks(body)
        asked = translated(content_body, path, body, self._inner.strict)
        place = method(body["model"], "streamGenerateContent?alt=sse")
        with contextlib.closing(self._inner.stream(place, asked, context)) as events:
            try:
                for event in events:
                    yield from told.add(event)
            except ODD:
                raise self.malformed("an event of its stream is not of the API format") from None

    def malformed(self, reason: str) -> SeatUnavailable:
        return self._inner.malformed(reason)

    def _embed(self, body: dict[str, Json], context: StageContext) -> dict[str, Json]:
        name, asked = translated_embedding(body, self._inner.strict)
        answer = self._inner.post(method(body["model"], name), asked, context)
        try:
            return embeddings(answer, body)
        except ODD:
            raise self.malformed("its answer has no embeddings") from None


def translated_embedding(body: dict[str, Json], vertex: bool) -> tuple[str, dict[str, Json]]:
    """The method and the request for embeddings. StageError: tokens are given in place of texts."""
    texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
    if not all(isinstance(text, str) for text in texts):
        raise wrong("input", f"a text or a list of texts {AT}")
    size = {} if body.get("dimensions") is None else {"outputDimensionality": body["dimensions"]}
    if vertex:
        return "predict", {"instances": [{"content": text} for text in texts], "parameters": size}
    model = f"models/{body['model']}"
    requests = [{"model": model, "content": {"parts": [{"text": text}]}, **size} for text in texts]
    return "batchEmbedContents", {"requests": requests}


def content_body(path: str, body: dict[str, Json], vertex: bool = False) -> dict[str, Json]:
    """The generateContent request for a chat request. StageError names the field that has no counterpart."""
    if path != CHAT:
        raise wrong("path", f"{CHAT} or {EMBEDDINGS} {AT}")
    for field in REFUSED:
        if body.get(field):
            raise wrong(field, f"nothing {AT}", f"leave {field!r} out")
    if any(each != "text" for each in body.get("modalities") or ()):
        raise wrong("modalities", f"text {AT}")
    system, contents = Conversation(body["model"], vertex).read(body["messages"])
    asked: dict[str, Json] = {"contents": contents}
    if system:
        asked["systemInstruction"] = {"parts": [{"text": system}]}
    asked |= _tools(body)
    config = _config(body)
    if config:
        asked["generationConfig"] = config
    return asked


def _config(body: dict[str, Json]) -> dict[str, Json]:
    config = {name: body[field] for field, name in CONFIGURED.items() if body.get(field) is not None}
    if config.get("candidateCount") == 1:
        del config["candidateCount"]
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    if limit:
        config["maxOutputTokens"] = limit
    if body.get("stop"):
        config["stopSequences"] = [body["stop"]] if isinstance(body["stop"], str) else body["stop"]
    wanted = body.get("response_format") or {"type": "text"}
    if wanted["type"] == "json_schema":
        config["responseMimeType"] = "application/json"
        config["responseJsonSchema"] = (wanted.get("json_schema") or {}).get("schema")
    elif wanted["type"] == "json_object":
        config["responseMimeType"] = "application/json"
    elif wanted["type"] != "text":
        raise wrong("response_format.type", f"text, json_object or json_schema {AT}")
    thinking = _thinking(body)
    return config | ({"thinkingConfig": thinking} if thinking else {})


def generation(model: str) -> int | None:
    """The 2 of `gemini-2.5-pro`, 3 for an alias such as `gemini-flash-latest`; None for another family."""
    found = re.search(r"gemini-(\d+)?", model)
    return None if found is None else int(found[1] or 3)


def _thinking(body: dict[str, Json]) -> dict[str, Json]:
    """How much to think, and whether to show it: shown where `thinking` asks for it."""
    number = generation(body["model"])
    asked = body.get("thinking") or {}
    kind, effort = asked.get("type"), body.get("reasoning_effort")
    if number is None:
        return {}
    told: dict[str, Json] = {}
    if kind in ("enabled", "adaptive"):
        told["includeThoughts"] = True
    if kind == "enabled" and isinstance(asked.get("budget_tokens"), int):
        return {**told, "thinkingBudget": asked["budget_tokens"]}
    if kind == "disabled":
        effort = "none"
    if not isinstance(effort, str):
        return told
    if number < 3:
        return {**told, "thinkingBudget": BUDGETS.get(effort, BUDGETS["high"])}
    least = "minimal" if "flash" in body["model"] else "low"
    return {**told, "thinkingLevel": {"none": least, "minimal": least}.get(effort, _level(effort))}


def _level(effort: str) -> str:
    return effort if effort in ("low", "medium") else "high"


def _tools(body: dict[str, Json]) -> dict[str, Json]:
    told = []
    for at, tool in enumerate(body.get("tools") or ()):
        function = tool.get("function")
        if tool["type"] != "function" or not isinstance(function, dict) or not function.get("name"):
            raise wrong(f"tools[{at}]", f"a tool of the type function with a name {AT}")
        declared = {key: function[key] for key in ("name", "description") if function.get(key)}
        if function.get("parameters"):
            declared["parametersJsonSchema"] = function["parameters"]
        told.append(declared)
    if not told:
        return {}
    if body.get("parallel_tool_calls") is False:
        raise wrong("parallel_tool_calls", f"true {AT}", "leave 'parallel_tool_calls' out")
    choice = body.get("tool_choice") or "auto"
    if isinstance(choice, dict):
        name = (choice.get("function") or {}).get("name")
        if not isinstance(name, str):
            raise wrong("tool_choice.function.name", "a tool's name")
        mode: dict[str, Json] = {"mode": "ANY", "allowedFunctionNames": [name]}
    elif choice in TOOL_CHOICES:
        mode = {"mode": TOOL_CHOICES[choice]}
    else:
        raise wrong("tool_choice", "auto, required, none or a function")
    return {"tools": [{"functionDeclarations": told}], "toolConfig": {"functionCallingConfig": mode}}


class Conversation:
    """A chat's messages as Google's contents."""

    def __init__(self, model: str, vertex: bool) -> None:
        self._signs = (generation(model) or 0) >= 3
        self._ids = not vertex
        self._names: dict[str, str] = {}
        """The function that each call so far is of: a result must name it."""

    def read(self, messages: list[dict[str, Json]]) -> tuple[str, list[dict[str, Json]]]:
        """The system text, and the rest as user and model in turns."""
        system: list[str] = []
        turns: list[dict[str, Json]] = []
        for at, message in enumerate(messages):
            place = f"messages[{at}]"
            match message["role"]:
                case "system" | "developer":
                    system.append(_text(message.get("content"), f"{place}.content"))
                    continue
                case "user":
                    role, parts = "user", _parts(message.get("content"), f"{place}.content")
                case "tool":
                    role, parts = "user", [self._result(message, place)]
                case "assistant":
                    role, parts = "model", self._said(message, place)
                case _:
                    raise wrong(f"{place}.role", "system, developer, user, assistant or tool")
            if turns and turns[-1]["role"] == role:
                turns[-1]["parts"] += parts
            elif parts:
                turns.append({"role": role, "parts": parts})
        if not turns:
            raise wrong("messages", "at least one message of a user")
        return "\n\n".join(filter(None, system)), turns

    def _said(self, message: dict[str, Json], place: str) -> list[dict[str, Json]]:
        parts = _parts(message.get("content"), f"{place}.content")
        for at, call in enumerate(message.get("tool_calls") or ()):
            where = f"{place}.tool_calls[{at}].function"
            function = call.get("function") if isinstance(call, dict) else None
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                raise wrong(where, "an object with name and arguments")
            told: dict[str, Json] = {"name": function["name"], "args": _arguments(function, where)}
            if isinstance(call.get("id"), str):
                self._names[call["id"]] = function["name"]
                told |= {"id": call["id"]} if self._ids else {}
            extra = (call.get("extra_content") or {}).get("google") or {}
            signature = extra.get("thought_signature") or (ANY_SIGNATURE if self._signs and at == 0 else None)
            parts.append({"functionCall": told} | ({"thoughtSignature": signature} if signature else {}))
        return parts

    def _result(self, message: dict[str, Json], place: str) -> dict[str, Json]:
        name = self._names.get(message.get("tool_call_id") or "")
        if name is None:
            raise wrong(f"{place}.tool_call_id", "the id of a call in a message before it")
        text = _text(message.get("content"), f"{place}.content")
        try:
            told = json.loads(text)
        except ValueError:
            told = None
        result: dict[str, Json] = {
            "name": name,
            "response": told if isinstance(told, dict) else {"output": text},
        }
        return {"functionResponse": result | ({"id": message["tool_call_id"]} if self._ids else {})}


def _arguments(function: dict[str, Json], place: str) -> dict[str, Json]:
    try:
        told = json.loads(function.get("arguments") or "{}")
    except (TypeError, ValueError):
        told = None
    if not isinstance(told, dict):
        raise wrong(f"{place}.arguments", "a JSON object as text")
    return told


def _text(content: Json, place: str) -> str:
    parts = _parts(content, place)
    if any("text" not in part for part in parts):
        raise wrong(place, "text")
    return "".join(part["text"] for part in parts)


def _parts(content: Json, place: str) -> list[dict[str, Json]]:
    if not isinstance(content, list):
        return [{"text": content}] if content else []
    return [_part(part, f"{place}[{at}]") for at, part in enumerate(content) if part.get("text") != ""]


def _part(part: dict[str, Json], place: str) -> dict[str, Json]:
    match part["type"]:
        case "text" | "refusal" if isinstance(part.get(part["type"]), str):
            return {"text": part[part["type"]]}
        case "image_url":
            told = part.get("image_url")
            url = told.get("url") if isinstance(told, dict) else told
            if isinstance(url, str):
                return _media(url, f"{place}.image_url.url")
        case "file":
            told = part.get("file") or {}
            if isinstance(told.get("file_data"), str):
                return _media(told["file_data"], f"{place}.file.file_data")
        case "input_audio":
            told = part.get("input_audio") or {}
            if told.get("format") in AUDIO and isinstance(told.get("data"), str):
                return {"inlineData": {"mimeType": AUDIO[told["format"]], "data": told["data"]}}
    raise wrong(place, f"text, image_url, input_audio or file with file_data {AT}")


def _media(url: str, place: str) -> dict[str, Any]:
    if url.startswith("data:"):
        kind, found, data = url.removeprefix("data:").partition(";base64,")
        if not found:
            raise wrong(place, "a URL, or data:<type>;base64,<data>")
        return {"inlineData": {"mimeType": kind, "data": data}}
    kind = mimetypes.guess_type(urlsplit(url).path)[0] or ""
    if not kind:
        raise wrong(place, f"a data URL, or one whose path ends in its type, as .png, {AT}")
    return {"fileData": {"fileUri": url, "mimeType": kind}}
