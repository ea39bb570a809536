"""Google's generateContent. The fields are those of Google's own package, which takes no others.

It refuses results that do not match the calls before them, a call without the signature of its thought where
the model needs one, and settings that exclude each other.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urlsplit

from google.genai import types

from tests.compatibility.endpoints.model import Answer, Call, Media, Request, Result, Turn, answer
from tests.compatibility.endpoints.openai import make_vector
from tests.compatibility.endpoints.server import (
    BREAKING,
    KEY,
    LONG,
    Refusal,
    StrictServer,
    decode_media,
    refuse_by_model,
    seal,
    to_words,
    unseal,
)
from tests.fakes.http_server import Handler

MODEL, EMBEDDER = "gemini-3-flash-preview", "gemini-embedding-001"
VENDOR = "google"
FINISH = {"stop": "STOP", "length": "MAX_TOKENS", "tools": "STOP"}
STATUSES = {400: "INVALID_ARGUMENT", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED"}
FIELDS = {
    "contents": list[types.Content],
    "systemInstruction": types.Content,
    "tools": list[types.Tool],
    "toolConfig": types.ToolConfig,
    "generationConfig": types.GenerationConfig,
}
MEDIA_TYPES = (
    "image/png", "image/jpeg", "image/webp", "application/pdf", "audio/wav", "audio/mp3", "audio/mpeg",
)  # fmt: skip


class GoogleServer(StrictServer):
    """The Gemini API."""

    def __init__(self) -> None:
        super().__init__()
        self.url = self.url.removesuffix("/v1") + "/v1beta"

    def format_refusal(self, refusal: Refusal) -> dict[str, Any]:
        message = (
            f"Invalid value at '{refusal.param}': {refusal.message}" if refusal.param else refusal.message
        )
        status = STATUSES.get(refusal.status, "INTERNAL")
        error: dict[str, Any] = {"code": refusal.status, "message": message, "status": status}
        if refusal.param:
            kind = "type.googleapis.com/google.rpc.BadRequest"
            violation = {"field": refusal.param, "description": refusal.message}
            error["details"] = [{"@type": kind, "fieldViolations": [violation]}]
        return {"error": error}

    def serve(self, handler: Handler, body: dict[str, Any] | None) -> None:
        if handler.headers.get("x-goog-api-key") != KEY:
            raise Refusal("API key not valid", status=403)
        where = urlsplit(handler.path)
        if body is None:
            generates = {"supportedGenerationMethods": ["generateContent", "countTokens"]}
            handler.answer(200, {"models": [{"name": f"models/{MODEL}", **generates}]})
            return
        place, _, method = where.path.rpartition(":")
        model = unquote(place.rpartition("/models/")[2])
        if model == LONG:  # the vendor says it in words only
            raise Refusal("The input token count (3000) exceeds the maximum number of tokens allowed (1).")
        refuse_by_model(model)
        if method in ("embedContent", "batchEmbedContents"):
            self._embed(handler, method, body)
            return
        if method not in ("generateContent", "streamGenerateContent"):
            raise Refusal(f"no method {method}", status=404)
        if method == "streamGenerateContent" and where.query != "alt=sse":
            raise Refusal("this server streams by alt=sse")
        request = self._parse(model, body)
        request.stream = method == "streamGenerateContent"
        self.parsed.append(request)
        made = answer(request)
        events = list(make_events(request, made))
        if request.stream:
            self.stream(handler, ((None, event) for event in events))
            return
        candidates: dict[int, dict[str, Any]] = {}
        for candidate in (each for event in events for each in event["candidates"]):
            whole = candidates.setdefault(candidate["index"], {"index": candidate["index"], "parts": []})
            whole["parts"] += candidate["content"]["parts"]
            whole["finishReason"] = candidate.get("finishReason")
        found = [
            {
                "index": each["index"],
                "finishReason": each["finishReason"],
                "content": {"role": "model", "parts": each["parts"]},
            }
            for each in candidates.values()
        ]
        handler.answer(200, {**events[-1], "candidates": found})

    def _parse(self, model: str, body: dict[str, Any]) -> Request:
        for name, value in body.items():
            if name not in FIELDS:
                raise Refusal(f'Unknown name "{name}"', name)
            kind = FIELDS[name]
            for each in value if isinstance(value, list) else [value]:
                (kind.__args__[0] if isinstance(value, list) else kind).model_validate(each)
        config = body.get("generationConfig") or {}
        thinking = config.get("thinkingConfig") or {}
        self._check_config(config, thinking, bool(body.get("tools")))
        turns = [self._parse_turn(turn, f"contents[{at}]") for at, turn in enumerate(body["contents"])]
        self._check_calls(turns, body["contents"])
        declared = [
            each for tool in body.get("tools") or () for each in tool.get("functionDeclarations") or ()
        ]
        calling = (body.get("toolConfig") or {}).get("functionCallingConfig") or {"mode": "AUTO"}
        choice = {"AUTO": "auto", "NONE": "none", "ANY": "required"}[calling["mode"]]
        if choice == "required" and calling.get("allowedFunctionNames"):
            choice = calling["allowedFunctionNames"][0]
        return Request(
            model=model,
            system="".join(
                part["text"] for part in (body.get("systemInstruction") or {"parts": []})["parts"]
            ),
            turns=turns,
            tools={each["name"]: each.get("parametersJsonSchema") or {} for each in declared},
            choice=choice,
            schema=config.get("responseJsonSchema"),
            wants_json=config.get("responseMimeType") == "application/json",
            stops=list(config.get("stopSequences") or ()),
            max_tokens=config.get("maxOutputTokens"),
            temperature=config.get("temperature"),
            seed=config.get("seed"),
            count=config.get("candidateCount") or 1,
            thinks=bool(thinking),
            shows_thoughts=bool(thinking.get("includeThoughts")),
        )

    def _check_config(self, config: dict[str, Any], thinking: dict[str, Any], has_tools: bool) -> None:
        if (
            config.get("responseJsonSchema") is not None
            and config.get("responseMimeType") != "application/json"
        ):
            raise Refusal("a schema needs responseMimeType", "generationConfig.responseMimeType")
        if len(config.get("stopSequences") or ()) > 5 or not all(config.get("stopSequences") or ()):
            raise Refusal("at most 5 texts", "generationConfig.stopSequences")
        if "thinkingBudget" in thinking and "thinkingLevel" in thinking:
            raise Refusal("only one of thinkingBudget and thinkingLevel", "generationConfig.thinkingConfig")
        if not 0 <= (config.get("temperature") or 0) <= 2:
            raise Refusal("range: 0..2", "generationConfig.temperature")

    def _parse_turn(self, content: dict[str, Any], place: str) -> Turn:
        if content.get("role") not in ("user", "model"):
            raise Refusal("Please use a valid role: user, model", f"{place}.role")
        if not content.get("parts"):
            raise Refusal("must include at least one parts field", f"{place}.parts")
        turn = Turn("assistant" if content["role"] == "model" else "user")
        for at, part in enumerate(content["parts"]):
            where = f"{place}.parts[{at}]"
            if "text" in part and not part.get("thought"):
                turn.text += part["text"]
            elif "inlineData" in part:
                data = part["inlineData"]
                if data["mimeType"] not in MEDIA_TYPES:
                    raise Refusal(f"Unsupported MIME type: {data['mimeType']}", f"{where}.inlineData")
                turn.media.append(decode_media(data["mimeType"], data["data"], where))
            elif "fileData" in part:
                turn.media.append(Media(part["fileData"]["mimeType"], url=part["fileData"]["fileUri"]))
            elif "functionCall" in part:
                called = part["functionCall"]
                turn.calls.append(Call(called.get("id") or "", called["name"], called.get("args") or {}))
                if (
                    part.get("thoughtSignature")
                    and part["thoughtSignature"] != "skip_thought_signature_validator"
                ):
                    turn.thoughts.append(
                        unseal(VENDOR, part["thoughtSignature"], f"{where}.thoughtSignature")
                    )
            elif "functionResponse" in part:
                result = part["functionResponse"]
                text = result["response"].get("output")
                turn.results.append(
                    Result(
                        result.get("id") or "",
                        text if isinstance(text, str) else json.dumps(result["response"]),
                    )
                )
            elif "text" not in part:
                raise Refusal("unknown part", where)
        return turn

    def _check_calls(self, turns: list[Turn], contents: list[dict[str, Any]]) -> None:
        for at, turn in enumerate(turns):
            following = turns[at + 1].results if at + 1 < len(turns) else []
            if turn.calls and len(following) != len(turn.calls):
                raise Refusal("the number of function response parts must equal that of the function calls")
            if turn.results and not (at and turns[at - 1].calls):
                raise Refusal("a function response turn must come right after a function call turn")
            if turn.calls:
                first = next(part for part in contents[at]["parts"] if "functionCall" in part)
                if not first.get("thoughtSignature"):
                    raise Refusal("Function call is missing a thought_signature in functionCall parts")

    def _embed(self, handler: Handler, method: str, body: dict[str, Any]) -> None:
        many = body["requests"] if method == "batchEmbedContents" else [body]
        vectors = [{"values": make_vector(each["content"]["parts"][0]["text"])} for each in many]
        handler.answer(
            200, {"embeddings": vectors} if method == "batchEmbedContents" else {"embedding": vectors[0]}
        )


def make_events(request: Request, made: Answer) -> Iterator[dict[str, Any]]:
    """Yield the events of an answer; each has the next part of it."""
    head = {"modelVersion": request.model, "responseId": secrets.token_hex(8)}
    thoughts = len(made.thought.split())
    usage = {
        "promptTokenCount": made.tokens_in,
        "candidatesTokenCount": made.tokens_out * request.count - thoughts,
        "thoughtsTokenCount": thoughts,
        "totalTokenCount": made.tokens_in + made.tokens_out * request.count,
    }
    parts: list[dict[str, Any]] = []
    if made.thought and request.shows_thoughts:
        parts.append({"text": made.thought, "thought": True})
    parts += [{"text": word} for word in to_words(made)]
    for at, (name, arguments) in enumerate(made.calls):
        call = {"functionCall": {"id": secrets.token_hex(4), "name": name, "args": arguments}}
        # the first of parallel calls has the signature
        parts.append(call | ({} if at else {"thoughtSignature": seal(VENDOR, "why I call")}))
    for index in range(request.count):
        for part in parts:
            content = {"role": "model", "parts": [part]}
            so_far = {"promptTokenCount": made.tokens_in, "totalTokenCount": made.tokens_in}
            yield {**head, "candidates": [{"index": index, "content": content}], "usageMetadata": so_far}
            if request.model == BREAKING:
                yield {"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}
                return
        ended = {
            "index": index,
            "content": {"role": "model", "parts": []},
            "finishReason": FINISH[made.finish],
        }
        yield {**head, "candidates": [ended], "usageMetadata": usage}
