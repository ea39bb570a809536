"""OpenAI's own API, or an engine with the same API: chats, text completions, embeddings, Responses.

The own API refuses what its reference refuses: fields it does not have, tool calls without results, ids and
names that are too long, schemas that its strict mode does not take, `max_tokens` at models that think.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
import struct
import time
from collections.abc import Iterator
from typing import Any

from openai.types.completion_create_params import CompletionCreateParamsNonStreaming
from openai.types.embedding_create_params import EmbeddingCreateParams
from pydantic import TypeAdapter

from tests.compatibility.endpoints.model import Answer, Call, Request, Result, Turn, answer
from tests.compatibility.endpoints.openai_responses import ResponsesApi
from tests.compatibility.endpoints.openai_rules import (
    IMAGES,
    THINKER,
    check_calls,
    check_name,
    check_strict_schema,
)
from tests.compatibility.endpoints.server import (
    BREAKING,
    KEY,
    Refusal,
    StrictServer,
    check_fields,
    decode_media,
    parse_arguments,
    parse_data_url,
    refuse_by_model,
    to_words,
)
from tests.fakes.client_types import CHAT_REQUEST
from tests.fakes.http_server import Handler

MODEL, LISTENER, EMBEDDER = "gpt-4.1", "gpt-audio", "text-embedding-3-small"
ENGINE_THINKER = "qwen3-thinking"
COMPLETION: TypeAdapter[Any] = TypeAdapter(CompletionCreateParamsNonStreaming)
EMBEDDINGS: TypeAdapter[Any] = TypeAdapter(EmbeddingCreateParams)
FINISH = {"stop": "stop", "length": "length", "tools": "tool_calls"}


class OpenAIServer(StrictServer):
    """`is_strict` for the vendor's own API, else an engine that ignores what it does not know."""

    def __init__(self, *, is_strict: bool = True, responses: bool = False) -> None:
        super().__init__()
        self.is_strict = is_strict
        self.responses = ResponsesApi(self) if responses else None

    def format_refusal(self, refusal: Refusal) -> dict[str, Any]:
        kind = {429: "requests", 401: "invalid_request_error"}.get(refusal.status, "invalid_request_error")
        body = {"message": refusal.message, "type": kind, "param": refusal.param, "code": refusal.code}
        return {"error": body}

    def serve(self, handler: Handler, body: dict[str, Any] | None) -> None:
        if handler.headers.get("Authorization") != f"Bearer {KEY}":
            raise Refusal("Incorrect API key provided", status=401, code="invalid_api_key")
        path = handler.path.removeprefix("/v1/")
        if body is None:
            models = [MODEL, THINKER, EMBEDDER]
            handler.answer(
                200, {"object": "list", "data": [{"id": each, "object": "model"} for each in models]}
            )
            return
        refuse_by_model(body["model"])
        match path:
            case "chat/completions":
                self._chat(handler, body)
            case "completions":
                self._complete(handler, body)
            case "embeddings":
                self._embed(handler, body)
            case "responses" if self.responses is not None:
                self.responses.serve(handler, body)
            case _:
                raise Refusal(f"Invalid URL (POST {handler.path})", status=404)

    def _chat(self, handler: Handler, body: dict[str, Any]) -> None:
        request = self._parse_chat(body)
        self.parsed.append(request)
        made = answer(request)
        head = {"id": "chatcmpl-" + secrets.token_hex(8), "created": int(time.time()), "model": request.model}
        if request.stream:
            with_usage = bool((body.get("stream_options") or {}).get("include_usage"))
            self.stream(handler, self._chunks(head, request, made, with_usage))
            return
        choices = []
        for index in range(request.count):
            message: dict[str, Any] = {"role": "assistant", "content": made.text or None}
            if made.thought and not self.is_strict:
                message["reasoning_content"] = made.thought
            if made.calls:
                message["tool_calls"] = [_make_call(name, arguments) for name, arguments in made.calls]
            if "functions" in body and made.calls:
                message["function_call"] = message.pop("tool_calls")[0]["function"]
            choice = {"index": index, "message": message, "finish_reason": FINISH[made.finish]}
            if "functions" in body and made.calls:
                choice["finish_reason"] = "function_call"
            if request.logprobs:
                choice["logprobs"] = _make_logprobs(made.words)
            choices.append(choice)
        whole = {
            **head,
            "object": "chat.completion",
            "choices": choices,
            "usage": make_usage(made, request.count),
        }
        handler.answer(200, whole)

    def _chunks(
        self, head: dict[str, Any], request: Request, made: Answer, with_usage: bool
    ) -> Iterator[tuple[None, Any]]:
        def chunk(
            index: int, delta: dict[str, Any], finish: str | None = None, **more: Any
        ) -> tuple[None, Any]:
            choice = {"index": index, "delta": delta, "finish_reason": finish, **more}
            usage = {"usage": None} if with_usage else {}
            return None, {**head, "object": "chat.completion.chunk", "choices": [choice], **usage}

        for index in range(request.count):
            yield chunk(index, {"role": "assistant", "content": ""})
            if made.thought and not self.is_strict:
                for piece in ("let me ", "see"):
                    yield chunk(index, {"reasoning_content": piece})
            for word in to_words(made):
                more = {"logprobs": _make_logprobs([word])} if request.logprobs else {}
                yield chunk(index, {"content": word}, **more)
                if request.model == BREAKING:
                    yield None, {"error": {"message": "The server had an error", "type": "server_error"}}
                    return
            for at, (name, arguments) in enumerate(made.calls):
                call, text = _make_call(name, arguments), json.dumps(arguments)
                yield chunk(
                    index,
                    {"tool_calls": [{"index": at, **call, "function": {"name": name, "arguments": ""}}]},
                )
                for piece in (text[:4], text[4:]):
                    yield chunk(index, {"tool_calls": [{"index": at, "function": {"arguments": piece}}]})
            yield chunk(index, {}, FINISH[made.finish])
        if with_usage:
            usage = make_usage(made, request.count)
            yield None, {**head, "object": "chat.completion.chunk", "choices": [], "usage": usage}
        yield None, "[DONE]"

    def _parse_chat(self, body: dict[str, Any]) -> Request:
        if self.is_strict:
            check_fields(CHAT_REQUEST, body)
            self._check_own_rules(body)
        system, turns = [], []
        for at, message in enumerate(body["messages"]):
            place = f"messages[{at}]"
            if message["role"] in ("system", "developer"):
                system.append(read_parts(message["content"], f"{place}.content").text)
            else:
                turns.append(self._parse_message(message, place))
        tools = [tool["function"] for tool in body.get("tools") or ()] + list(body.get("functions") or ())
        choice = body.get("tool_choice") or body.get("function_call") or "auto"
        if isinstance(choice, dict):
            choice = choice["function"]["name"] if "function" in choice else choice["name"]
        form = body.get("response_format") or {"type": "text"}
        thinks = body["model"] == THINKER if self.is_strict else body["model"] == ENGINE_THINKER
        stop = body.get("stop")
        limit = body.get("max_completion_tokens")
        request = Request(
            model=body["model"],
            system="\n\n".join(system),
            turns=turns,
            tools={tool["name"]: tool.get("parameters") or {} for tool in tools},
            choice=choice,
            parallel=body.get("parallel_tool_calls", True),
            schema=form["json_schema"]["schema"] if form["type"] == "json_schema" else None,
            wants_json=form["type"] == "json_object",
            stops=[stop] if isinstance(stop, str) else list(stop or ()),
            max_tokens=body.get("max_tokens") if limit is None else limit,
            temperature=body.get("temperature"),
            seed=body.get("seed"),
            count=body.get("n") or 1,
            logprobs=bool(body.get("logprobs")),
            thinks=thinks,
            stream=bool(body.get("stream")),
        )
        check_calls(turns)
        return request

    def _parse_message(self, message: dict[str, Any], place: str) -> Turn:
        turn = read_parts(message.get("content"), f"{place}.content")
        turn.role = message["role"]
        if message["role"] in ("tool", "function"):
            call_id = message.get("tool_call_id") or message.get("name", "")
            return Turn("tool", results=[Result(call_id, turn.text)])
        if message["role"] == "assistant" and message.get("reasoning_content"):
            turn.thoughts.append(message["reasoning_content"])
        calls = list(message.get("tool_calls") or ())
        if message.get("function_call"):
            calls.append({"id": message["function_call"]["name"], "function": message["function_call"]})
        for at, call in enumerate(calls):
            where = f"{place}.tool_calls[{at}]"
            function = call["function"]
            if self.is_strict and len(call["id"]) > 40:
                raise Refusal(
                    f"Invalid '{where}.id': string too long", f"{where}.id", code="string_above_max_length"
                )
            check_name(function["name"], f"{where}.function.name")
            arguments = parse_arguments(function["arguments"], f"{where}.function.arguments")
            turn.calls.append(Call(call["id"], function["name"], arguments))
        return turn

    def _check_own_rules(self, body: dict[str, Any]) -> None:
        if body["model"] == THINKER:
            for name in ("max_tokens", "stop", "logprobs", "presence_penalty", "frequency_penalty"):
                if body.get(name):
                    raise Refusal(f"Unsupported parameter: '{name}'", name, code="unsupported_parameter")
            for name in ("temperature", "top_p"):
                if body.get(name) not in (None, 1):
                    raise Refusal(f"Unsupported value: '{name}'", name, code="unsupported_value")
        elif body.get("reasoning_effort") not in (None, "none"):
            raise Refusal("Unrecognized request argument supplied: reasoning_effort", "reasoning_effort")
        if isinstance(body.get("stop"), list) and not (0 < len(body["stop"]) <= 4 and all(body["stop"])):
            raise Refusal("Invalid 'stop'", "stop")
        if body.get("top_logprobs") is not None and not body.get("logprobs"):
            raise Refusal("top_logprobs needs logprobs", "top_logprobs")
        if len(body.get("user") or "") > 64:
            raise Refusal("Invalid 'user': string too long", "user", code="string_above_max_length")
        if body.get("tool_choice") is not None and not body.get("tools"):
            raise Refusal("'tool_choice' is only allowed when 'tools' are specified", "tool_choice")
        if body.get("parallel_tool_calls") is not None and not body.get("tools"):
            raise Refusal(
                "'parallel_tool_calls' is only allowed when 'tools' are specified", "parallel_tool_calls"
            )
        if body.get("stream_options") is not None and not body.get("stream"):
            raise Refusal("'stream_options' is only allowed when 'stream' is enabled", "stream_options")
        for at, tool in enumerate(body.get("tools") or ()):
            check_name(tool["function"]["name"], f"tools[{at}].function.name")
            if tool["function"].get("strict"):
                check_strict_schema(tool["function"]["parameters"], f"tools[{at}].function.parameters")
        form = body.get("response_format") or {}
        if form.get("type") == "json_object" and "json" not in json.dumps(body["messages"]).lower():
            raise Refusal("'messages' must contain the word 'json' in some form", "messages")
        if form.get("type") == "json_schema" and form["json_schema"].get("strict"):
            check_strict_schema(form["json_schema"]["schema"], "response_format")

    def _complete(self, handler: Handler, body: dict[str, Any]) -> None:
        if self.is_strict:
            check_fields(COMPLETION, body)
        stop = body.get("stop")
        request = Request(
            model=body["model"],
            turns=[Turn("user", body["prompt"])],
            stops=[stop] if isinstance(stop, str) else list(stop or ()),
            max_tokens=body.get("max_tokens", 16),
            seed=body.get("seed"),
            count=body.get("n") or 1,
            logprobs=body.get("logprobs") is not None,
            stream=bool(body.get("stream")),
        )
        self.parsed.append(request)
        made = answer(request)
        head = {
            "id": "cmpl-" + secrets.token_hex(8),
            "object": "text_completion",
            "created": int(time.time()),
        }
        head["model"] = request.model

        def choices(text: str, finish: str | None) -> list[dict[str, Any]]:
            logprobs = None
            if request.logprobs:
                found = re.findall(r"\S+\s*", text)
                logprobs = {"tokens": found, "token_logprobs": [-0.5] * len(found), "top_logprobs": None}
            return [
                {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}
                for index in range(request.count)
            ]

        if not request.stream:
            whole = {
                "choices": choices(made.text, FINISH[made.finish]),
                "usage": make_usage(made, request.count),
            }
            handler.answer(200, {**head, **whole})
            return
        events = [{**head, "choices": choices(word, None)} for word in to_words(made)]
        events.append({**head, "choices": choices("", FINISH[made.finish])})
        if (body.get("stream_options") or {}).get("include_usage"):
            events.append({**head, "choices": [], "usage": make_usage(made, request.count)})
        self.stream(handler, iter([*((None, event) for event in events), (None, "[DONE]")]))

    def _embed(self, handler: Handler, body: dict[str, Any]) -> None:
        if self.is_strict:
            check_fields(EMBEDDINGS, {**body, "input": ""})  # the package's type of inputs reads no tokens
        given = body["input"]
        many = given if isinstance(given, list) and not isinstance(given[0], int) else [given]
        data = []
        for index, each in enumerate(many):
            vector = make_vector(each)
            packed: Any = vector
            if body.get("encoding_format") == "base64":
                packed = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
            data.append({"object": "embedding", "index": index, "embedding": packed})
        count = sum(len(each) if isinstance(each, list) else len(each.split()) for each in many)
        usage = {"prompt_tokens": count, "total_tokens": count}
        handler.answer(200, {"object": "list", "model": body["model"], "data": data, "usage": usage})


def make_vector(given: str | list[int]) -> list[float]:
    """Return the vector of a text or its tokens: exact in 32 bits, another one for each length and kind."""
    return [float(len(given)), 0.5 if isinstance(given, str) else 0.25]


def read_parts(content: Any, place: str) -> Turn:
    """Return the text and the media of a message's content."""
    turn = Turn("user")
    if not isinstance(content, list):
        turn.text = content or ""
        return turn
    for at, part in enumerate(content):
        where = f"{place}[{at}]"
        match part["type"]:
            case "text":
                turn.text += part["text"]
            case "image_url":
                turn.media.append(parse_data_url(part["image_url"]["url"], f"{where}.image_url.url", IMAGES))
            case "file":
                file = part["file"]
                if not file.get("filename"):
                    raise Refusal("Missing required parameter: filename", f"{where}.file.filename")
                pdf = parse_data_url(file["file_data"], f"{where}.file.file_data", ("application/pdf",))
                turn.media.append(pdf)
            case "input_audio":
                audio = part["input_audio"]
                turn.media.append(decode_media(f"audio/{audio['format']}", audio["data"], where))
            case _:
                raise Refusal(f"Invalid type {part['type']}", f"{where}.type")
    return turn


def _make_call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": "call_" + secrets.token_hex(8), "type": "function", "function": function}


def _make_logprobs(words: list[str]) -> dict[str, Any]:
    return {
        "content": [{"token": word, "logprob": -0.5, "bytes": None, "top_logprobs": []} for word in words],
        "refusal": None,
    }


def make_usage(made: Answer, count: int = 1) -> dict[str, Any]:
    """Return the usage of a chat."""
    out = made.tokens_out * count
    return {
        "prompt_tokens": made.tokens_in,
        "completion_tokens": out,
        "total_tokens": made.tokens_in + out,
        "completion_tokens_details": {"reasoning_tokens": len(made.thought.split())},
    }
