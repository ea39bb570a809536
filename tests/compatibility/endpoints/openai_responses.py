"""OpenAI's Responses. Without `store`, items must be complete: reasoning encrypted, calls with outputs."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming
from pydantic import TypeAdapter

from tests.compatibility.endpoints.model import Answer, Call, Request, Result, Turn, answer
from tests.compatibility.endpoints.openai_rules import (
    IMAGES,
    THINKER,
    check_calls,
    check_name,
    check_strict_schema,
)
from tests.compatibility.endpoints.server import (
    BREAKING,
    Refusal,
    check_fields,
    decode_media,
    parse_arguments,
    parse_data_url,
    seal,
    to_words,
    unseal,
)
from tests.fakes.http_server import Handler

if TYPE_CHECKING:
    from tests.compatibility.endpoints.openai import OpenAIServer

REQUEST: TypeAdapter[Any] = TypeAdapter(ResponseCreateParamsNonStreaming)
VENDOR = "openai"
CODEX_FIELDS = ("client_metadata",)
"""Fields that OpenAI's own program Codex sends and the package's types lack."""

PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc"}


def _forget_ids(items: Any) -> Any:
    """Return `input` without the ids of messages and of outputs, which Codex sends too."""
    if not isinstance(items, list):
        return items
    kinds = ("message", "function_call_output")
    return [
        {name: value for name, value in item.items() if name != "id" or item.get("role") == "assistant"}
        if item.get("type", "message") in kinds
        else item
        for item in items
    ]


class ResponsesApi:
    """The path `responses` of a server."""

    def __init__(self, server: OpenAIServer) -> None:
        self._server = server

    def serve(self, handler: Handler, body: dict[str, Any]) -> None:
        """Serve a request. Raises Refusal and ValidationError."""
        request = self._parse(body)
        self._server.parsed.append(request)
        made = answer(request)
        events = list(make_events(body, request, made))
        if request.stream:
            numbered = ({**event, "sequence_number": at} for at, event in enumerate(events))
            self._server.stream(handler, ((event["type"], event) for event in numbered))
        else:
            handler.answer(200, events[-1]["response"])

    def _parse(self, body: dict[str, Any]) -> Request:
        # the package's type requires `strict`, which clients of OpenAI leave out
        tools = [
            {"strict": None, **tool} if tool.get("type") == "function" else tool
            for tool in body.get("tools") or ()
        ]
        # a null stands for what was left out, as LlamaIndex sends it
        given = {name: value for name, value in body.items() if value is not None}
        known = {name: value for name, value in given.items() if name not in CODEX_FIELDS}
        if tools:
            known["tools"] = tools
        check_fields(REQUEST, known | {"input": _forget_ids(body["input"])})
        thinks = body["model"] == THINKER
        if not thinks and (body.get("reasoning") or {}).get("effort") not in (None, "none"):
            raise Refusal("Unsupported parameter: 'reasoning.effort'", "reasoning.effort")
        if body.get("max_output_tokens") is not None and body["max_output_tokens"] < 16:
            raise Refusal("Invalid 'max_output_tokens': expected a value >= 16", "max_output_tokens")
        if body.get("background") and body.get("store") is False:
            raise Refusal("Background mode requires 'store'", "background")
        items = body["input"]
        if isinstance(items, str):
            items = [{"role": "user", "content": items}]
        system = [body["instructions"]] if body.get("instructions") else []
        turns: list[Turn] = []
        for at, item in enumerate(items):
            self._parse_item(items, at, item, system, turns, stored=body.get("store") is not False)
        check_calls(turns)
        tools = {}
        for at, tool in enumerate(body.get("tools") or ()):
            if tool["type"] == "function":
                check_name(tool["name"], f"tools[{at}].name")
                if tool.get("strict"):
                    check_strict_schema(tool["parameters"], f"tools[{at}].parameters")
                tools[tool["name"]] = tool.get("parameters") or {}
        choice = body.get("tool_choice") or "auto"
        form = (body.get("text") or {}).get("format") or {"type": "text"}
        if form["type"] == "json_schema" and form.get("strict"):
            check_strict_schema(form["schema"], "text.format.schema")
        if form["type"] == "json_object" and "json" not in json.dumps(items).lower():
            raise Refusal("'input' must contain the word 'json' in some form", "input")
        return Request(
            model=body["model"],
            system="\n\n".join(system),
            turns=turns,
            tools=tools,
            choice=choice["name"] if isinstance(choice, dict) else choice,
            parallel=body.get("parallel_tool_calls", True) is not False,
            schema=form["schema"] if form["type"] == "json_schema" else None,
            wants_json=form["type"] == "json_object",
            max_tokens=body.get("max_output_tokens"),
            temperature=body.get("temperature"),
            logprobs="message.output_text.logprobs" in (body.get("include") or ()),
            thinks=thinks,
            stream=bool(body.get("stream")),
        )

    def _parse_item(
        self,
        items: list[dict[str, Any]],
        at: int,
        item: dict[str, Any],
        system: list[str],
        turns: list[Turn],
        *,
        stored: bool,
    ) -> None:
        place = f"input[{at}]"
        kind = item.get("type", "message")
        prefix = PREFIXES.get(kind)
        if item.get("id") and prefix and not item["id"].startswith(prefix):
            raise Refusal(f"Invalid '{place}.id': expected an ID that begins with '{prefix}'", f"{place}.id")
        match kind:
            case "message":
                turn = _read_content(item["content"], f"{place}.content")
                turn.role = item["role"]
                if item["role"] in ("system", "developer"):
                    system.append(turn.text)
                else:
                    turns.append(_join(turns, turn))
            case "reasoning":
                if not stored and not item.get("encrypted_content"):
                    raise Refusal(f"Item '{item['id']}' not found: not persisted", "input", status=404)
                following = items[at + 1] if at + 1 < len(items) else {}
                if (
                    following.get("type") not in ("reasoning", "function_call")
                    and following.get("role") != "assistant"
                ):
                    raise Refusal("'reasoning' was provided without its required following item", place)
                turns.append(_join(turns, Turn("assistant")))
                turns[-1].thoughts.append(
                    unseal(VENDOR, item["encrypted_content"], f"{place}.encrypted_content")
                )
            case "function_call":
                turns.append(_join(turns, Turn("assistant")))
                arguments = parse_arguments(item["arguments"], f"{place}.arguments")
                turns[-1].calls.append(Call(item["call_id"], item["name"], arguments))
            case "function_call_output":
                text = _read_content(item["output"], f"{place}.output").text
                turns.append(Turn("tool", results=[Result(item["call_id"], text)]))
            case _:
                raise Refusal(f"Invalid type {kind}", f"{place}.type")


def _join(turns: list[Turn], turn: Turn) -> Turn:
    """Return the last turn of the model, taken off, for what belongs to it, else `turn`."""
    if turn.role == "assistant" and turns and turns[-1].role == "assistant":
        last = turns.pop()
        last.text += turn.text
        return last
    return turn


def _read_content(content: Any, place: str) -> Turn:
    turn = Turn("user")
    if isinstance(content, str):
        turn.text = content
        return turn
    for at, part in enumerate(content):
        where = f"{place}[{at}]"
        match part["type"]:
            case "input_text" | "output_text" | "text":
                turn.text += part["text"]
            case "input_image":
                turn.media.append(parse_data_url(part["image_url"], f"{where}.image_url", IMAGES))
            case "input_file":
                if not part.get("filename"):
                    raise Refusal("Missing required parameter: filename", f"{where}.filename")
                pdf = parse_data_url(part["file_data"], f"{where}.file_data", ("application/pdf",))
                turn.media.append(pdf)
            case "input_audio":
                audio = part["input_audio"]
                turn.media.append(decode_media(f"audio/{audio['format']}", audio["data"], where))
            case _:
                raise Refusal(f"Invalid type {part['type']}", f"{where}.type")
    return turn


def make_events(body: dict[str, Any], request: Request, made: Answer) -> Iterator[dict[str, Any]]:
    """Yield the events of an answer; the last one has all of it."""
    response: dict[str, Any] = {
        "id": "resp_" + secrets.token_hex(8),
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "model": request.model,
        "output": [],
        "error": None,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "metadata": body.get("metadata") or {},
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "top_p": 1.0,
        "store": body.get("store", True),
    }
    yield {"type": "response.created", "response": response}
    items: list[dict[str, Any]] = []

    def add(item: dict[str, Any]) -> dict[str, Any]:
        items.append(item)
        return {"type": "response.output_item.done", "output_index": len(items) - 1, "item": item}

    if made.thought:
        summary = (body.get("reasoning") or {}).get("summary")
        thought = {"id": "rs_" + secrets.token_hex(8), "type": "reasoning", "summary": []}
        yield {"type": "response.output_item.added", "output_index": 0, "item": thought}
        if summary:
            where = {"item_id": thought["id"], "output_index": 0, "summary_index": 0}
            part = {"type": "summary_text", "text": made.thought}
            yield {"type": "response.reasoning_summary_part.added", **where, "part": {**part, "text": ""}}
            yield {"type": "response.reasoning_summary_text.delta", **where, "delta": made.thought}
            yield {"type": "response.reasoning_summary_text.done", **where, "text": made.thought}
            yield {"type": "response.reasoning_summary_part.done", **where, "part": part}
            thought["summary"] = [part]
        if "reasoning.encrypted_content" in (body.get("include") or ()):
            thought["encrypted_content"] = seal(VENDOR, made.thought)
        yield add(thought)
    for name, arguments in made.calls:
        text, index = json.dumps(arguments), len(items)
        call = {"id": "fc_" + secrets.token_hex(8), "type": "function_call", "name": name}
        call |= {"call_id": "call_" + secrets.token_hex(8), "arguments": "", "status": "in_progress"}
        yield {"type": "response.output_item.added", "output_index": index, "item": call}
        where = {"item_id": call["id"], "output_index": index}
        for piece in (text[:4], text[4:]):
            yield {"type": "response.function_call_arguments.delta", **where, "delta": piece}
        yield {"type": "response.function_call_arguments.done", **where, "arguments": text, "name": name}
        yield add({**call, "arguments": text, "status": "completed"})
    if not made.calls:
        yield from _make_message_events(request, made, len(items), add)
        if request.model == BREAKING:
            error = {"code": "server_error", "message": "The server had an error"}
            yield {"type": "response.failed", "response": {**response, "status": "failed", "error": error}}
            return
    ended = "incomplete" if made.finish == "length" else "completed"
    response = {**response, "status": ended, "output": items, "usage": _make_usage(made)}
    if ended == "incomplete":
        response["incomplete_details"] = {"reason": "max_output_tokens"}
    yield {"type": f"response.{ended}", "response": response}


def _make_message_events(request: Request, made: Answer, index: int, add: Any) -> Iterator[dict[str, Any]]:
    message = {
        "id": "msg_" + secrets.token_hex(8),
        "type": "message",
        "role": "assistant",
        "status": "in_progress",
    }
    part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    where = {"item_id": message["id"], "output_index": index, "content_index": 0}
    yield {"type": "response.output_item.added", "output_index": index, "item": {**message, "content": []}}
    yield {"type": "response.content_part.added", **where, "part": part}
    logprobs = []
    for word in to_words(made):
        logprob = (
            [{"token": word, "logprob": -0.5, "bytes": [], "top_logprobs": []}] if request.logprobs else []
        )
        logprobs += logprob
        yield {"type": "response.output_text.delta", **where, "delta": word, "logprobs": logprob}
        if request.model == BREAKING:
            return
    part = {**part, "text": made.text, "logprobs": logprobs}
    yield {"type": "response.output_text.done", **where, "text": made.text, "logprobs": logprobs}
    yield {"type": "response.content_part.done", **where, "part": part}
    status = "incomplete" if made.finish == "length" else "completed"
    yield add({**message, "status": status, "content": [part]})


def _make_usage(made: Answer) -> dict[str, Any]:
    return {
        "input_tokens": made.tokens_in,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": made.tokens_out,
        "output_tokens_details": {"reasoning_tokens": len(made.thought.split())},
        "total_tokens": made.tokens_in + made.tokens_out,
    }
