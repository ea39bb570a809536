"""Anthropic's Messages. It refuses what its reference refuses.

Unknown fields, blank texts, wrong ids and names of tools, calls without results, thinking that it did not
sign or that a turn with tools has lost, budgets that do not fit, schemas with bounds that it does not take.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator
from typing import Any

from anthropic.types.beta.message_create_params import MessageCreateParamsNonStreaming as BetaParams
from pydantic import TypeAdapter

from tests.compatibility.endpoints.model import Answer, Call, Media, Request, Result, Turn, answer
from tests.compatibility.endpoints.server import (
    BREAKING,
    KEY,
    LONG,
    Refusal,
    StrictServer,
    check_fields,
    decode_media,
    refuse_by_model,
    seal,
    to_words,
    unseal,
)
from tests.fakes.client_types import MESSAGES_REQUEST
from tests.fakes.http_server import Handler

MODEL = "claude-haiku-4-5"
MAX_TOKENS = 64_000
VENDOR = "anthropic"
BETA_REQUEST: TypeAdapter[Any] = TypeAdapter(BetaParams)
IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
CALL_ID = re.compile(r"[a-zA-Z0-9_-]+")
SAMPLING = ("temperature", "top_p", "top_k")
"""Fields of models up to this one, which the vendor's package no longer describes."""

SCHEMA_KEYS = {
    "type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "allOf",
    "$ref", "$defs", "definitions", "description", "title", "default", "format", "minItems",
    "$schema",  # which the AI SDK's package for Anthropic sends there
}  # fmt: skip
FINISH = {"stop": "end_turn", "length": "max_tokens", "tools": "tool_use"}
TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class AnthropicServer(StrictServer):
    """The vendor's API."""

    def format_refusal(self, refusal: Refusal) -> dict[str, Any]:
        place = f"{refusal.param}: " if refusal.param else ""
        error = {"type": TYPES.get(refusal.status, "api_error"), "message": f"{place}{refusal.message}"}
        return {"type": "error", "error": error, "request_id": "req_1"}

    def serve(self, handler: Handler, body: dict[str, Any] | None) -> None:
        if handler.headers.get("x-api-key") != KEY:
            raise Refusal("invalid x-api-key", status=401)
        if handler.headers.get("anthropic-version") != "2023-06-01":
            raise Refusal("anthropic-version: header is required")
        path = handler.path.partition("?")[0]
        if body is None:
            model = {"type": "model", "id": MODEL, "display_name": "Claude", "max_tokens": MAX_TOKENS}
            model["created_at"] = "2025-10-15T00:00:00Z"
            if path == "/v1/models":
                handler.answer(200, {"data": [model], "has_more": False})
            elif path == f"/v1/models/{MODEL}":
                handler.answer(200, model)
            else:
                raise Refusal(f"model: {path}", status=404)
            return
        if path != "/v1/messages":
            raise Refusal(f"Not found: {path}", status=404)
        if body["model"] == LONG:  # the vendor says it in words only
            raise Refusal("prompt is too long: 3 tokens > 1 maximum")
        refuse_by_model(body["model"])
        request = self._parse(body, handler.headers.get("anthropic-beta"))
        self.parsed.append(request)
        made = answer(request)
        if request.stream:
            self.stream(handler, ((event["type"], event) for event in make_events(request, made)))
            return
        handler.answer(200, make_message(request, made, make_blocks(made)))

    def _parse(self, body: dict[str, Any], betas: str | None) -> Request:
        described = {name: value for name, value in body.items() if name not in SAMPLING}
        check_fields(BETA_REQUEST if betas else MESSAGES_REQUEST, described)
        self._check_rules(body)
        system = body.get("system") or ""
        if isinstance(system, list):
            for at, block in enumerate(system):
                check_text(block["text"], f"system.{at}")
            system = "\n\n".join(block["text"] for block in system)
        turns: list[Turn] = []
        for at, message in enumerate(body["messages"]):
            turn = self._parse_message(message, f"messages.{at}", at == len(body["messages"]) - 1)
            if turns and turns[-1].role == turn.role:
                last = turns[-1]
                last.text += turn.text
                for name in ("media", "calls", "results", "thoughts"):
                    getattr(last, name).extend(getattr(turn, name))
            else:
                turns.append(turn)
        if turns[0].role != "user":
            raise Refusal('first message must use the "user" role', "messages.0")
        self._check_calls(turns)
        thinking = (body.get("thinking") or {}).get("type")
        if thinking == "enabled":  # adaptive thinking goes on without
            self._check_thoughts(turns)
        tools = {tool["name"]: tool["input_schema"] for tool in body.get("tools") or ()}
        choice = body.get("tool_choice") or {"type": "auto"}
        form = (body.get("output_config") or {}).get("format") or body.get("output_format") or {}
        return Request(
            model=body["model"],
            system=system,
            turns=turns,
            tools=tools,
            choice={"any": "required"}.get(choice["type"], choice.get("name", choice["type"])),
            parallel=not choice.get("disable_parallel_tool_use"),
            schema=form.get("schema"),
            stops=list(body.get("stop_sequences") or ()),
            max_tokens=body["max_tokens"],
            temperature=body.get("temperature"),
            thinks=thinking in ("enabled", "adaptive"),
            stream=bool(body.get("stream")),
        )

    def _check_rules(self, body: dict[str, Any]) -> None:
        if not 1 <= body["max_tokens"] <= MAX_TOKENS:
            raise Refusal(f"{body['max_tokens']} > {MAX_TOKENS}", "max_tokens")
        if not 0 <= (body.get("temperature") or 0) <= 1:
            raise Refusal("range: 0..1", "temperature")
        if body.get("temperature") is not None and body.get("top_p") is not None:
            raise Refusal("`temperature` and `top_p` cannot both be specified for this model")
        for at, stop in enumerate(body.get("stop_sequences") or ()):
            if not stop.strip():
                raise Refusal("each stop sequence must contain non-whitespace", f"stop_sequences.{at}")
        thinking, choice = body.get("thinking") or {}, body.get("tool_choice") or {}
        if thinking.get("type") not in (None, "enabled", "adaptive", "disabled"):
            raise Refusal("not supported on this model", "thinking.type")
        if thinking.get("type") == "enabled":
            if not 1024 <= thinking["budget_tokens"] < body["max_tokens"]:
                raise Refusal("`max_tokens` must be greater than `thinking.budget_tokens`", "max_tokens")
            if body.get("temperature") not in (None, 1):
                raise Refusal("`temperature` may only be set to 1 when thinking is enabled", "temperature")
            if choice.get("type") in ("any", "tool"):
                raise Refusal("Thinking may not be enabled when tool_choice forces tool use.", "tool_choice")
        if choice and not body.get("tools"):
            raise Refusal("may only be specified while providing tools", "tool_choice")
        for at, tool in enumerate(body.get("tools") or ()):
            if not NAME.fullmatch(tool["name"]):
                raise Refusal("String should match pattern", f"tools.{at}.custom.name")
            if tool["input_schema"].get("type") != "object":
                raise Refusal("Input should be 'object'", f"tools.{at}.custom.input_schema.type")
        form = (body.get("output_config") or {}).get("format") or body.get("output_format")
        if form:
            check_schema(form["schema"])

    def _parse_message(self, message: dict[str, Any], place: str, is_last: bool) -> Turn:
        turn, content = Turn(message["role"]), message["content"]
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        if not content and not (is_last and turn.role == "assistant"):
            raise Refusal("all messages must have non-empty content", place)
        for at, block in enumerate(content):
            where = f"{place}.content.{at}"
            match block["type"]:
                case "text":
                    check_text(block["text"], where)
                    turn.text += block["text"]
                case "image" | "document":
                    turn.media += self._parse_media(block["source"], f"{where}.source", turn)
                case "tool_use":
                    if not CALL_ID.fullmatch(block["id"]):
                        raise Refusal(
                            "String should match pattern '^[a-zA-Z0-9_-]+$'", f"{where}.tool_use.id"
                        )
                    turn.calls.append(Call(block["id"], block["name"], block["input"]))
                case "tool_result":
                    if turn.text or turn.media:
                        raise Refusal("`tool_result` blocks must come first", where)
                    turn.results.append(Result(block["tool_use_id"], self._join_result(block, where)))
                case "thinking":
                    thought = unseal(VENDOR, block["signature"], f"{where}.thinking.signature")
                    if thought != block["thinking"]:
                        raise Refusal("thinking blocks cannot be modified", where)
                    turn.thoughts.append(thought)
                case _:
                    raise Refusal(f"Input tag '{block['type']}' does not match", where)
        if is_last and turn.role == "assistant" and turn.text != turn.text.rstrip():
            raise Refusal("final assistant content cannot end with trailing whitespace", place)
        return turn

    def _join_result(self, block: dict[str, Any], where: str) -> str:
        content = block.get("content") or ""
        if isinstance(content, str):
            return content
        for at, each in enumerate(content):
            if each["type"] == "text":
                check_text(each["text"], f"{where}.content.{at}")
        return "".join(each["text"] for each in content if each["type"] == "text")

    def _parse_media(self, source: dict[str, Any], place: str, turn: Turn) -> list[Media]:
        match source["type"]:
            case "base64":
                if source["media_type"] not in (*IMAGES, "application/pdf"):
                    raise Refusal("unsupported media type", f"{place}.media_type")
                return [decode_media(source["media_type"], source["data"], f"{place}.data")]
            case "url":
                return [Media("", url=source["url"])]
            case "text":
                turn.text += source["data"]
                return []
        raise Refusal("unsupported source", place)

    def _check_calls(self, turns: list[Turn]) -> None:
        seen: set[str] = set()
        for at, turn in enumerate(turns):
            ids = [call.id for call in turn.calls]
            if len(set(ids)) < len(ids) or seen & set(ids):
                raise Refusal("`tool_use` ids must be unique", f"messages.{at}")
            seen |= set(ids)
            following = {result.id for result in turns[at + 1].results} if at + 1 < len(turns) else set()
            if not set(ids) <= following:
                raise Refusal("`tool_use` ids without `tool_result` blocks right after", f"messages.{at}")
            before = {call.id for call in turns[at - 1].calls} if at else set()
            if not {result.id for result in turn.results} <= before:
                raise Refusal("unexpected `tool_use_id` found in `tool_result` blocks", f"messages.{at}")

    def _check_thoughts(self, turns: list[Turn]) -> None:
        """Refuse a loop of tools whose turns have lost their thinking."""
        for at in range(len(turns) - 1, 0, -2):
            if not turns[at].results:
                return
            if not turns[at - 1].thoughts:
                raise Refusal(
                    "Expected `thinking` or `redacted_thinking`, but found `tool_use`", f"messages.{at - 1}"
                )


def check_text(text: str, place: str) -> None:
    """Refuse a text without a character that can be seen."""
    if not text.strip():
        raise Refusal("text content blocks must contain non-whitespace text", place)


def check_schema(schema: Any) -> None:
    """Refuse what structured output does not support."""
    if not isinstance(schema, dict):
        return
    unknown = schema.keys() - SCHEMA_KEYS
    if unknown:
        raise Refusal(
            f"For '{schema.get('type')}' type, properties {sorted(unknown)} are not supported",
            "output_config.format.schema",
        )
    if schema.get("type") == "object" and schema.get("additionalProperties") is not False:
        raise Refusal(
            "For 'object' type, 'additionalProperties' must be set to false", "output_config.format.schema"
        )
    for name in ("anyOf", "allOf"):
        for each in schema.get(name) or ():
            check_schema(each)
    check_schema(schema.get("items"))
    for name in ("properties", "$defs", "definitions"):
        for each in (schema.get(name) or {}).values():
            check_schema(each)


def make_blocks(made: Answer) -> list[dict[str, Any]]:
    """Return the content of the answer."""
    blocks: list[dict[str, Any]] = []
    if made.thought:
        blocks.append({"type": "thinking", "thinking": made.thought, "signature": seal(VENDOR, made.thought)})
    if made.text:
        blocks.append({"type": "text", "text": made.text})
    for name, arguments in made.calls:
        call_id = "toolu_" + secrets.token_hex(8)
        blocks.append({"type": "tool_use", "id": call_id, "name": name, "input": arguments})
    return blocks


def make_message(request: Request, made: Answer, blocks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the whole answer."""
    return {
        "id": "msg_" + secrets.token_hex(8),
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": blocks,
        "stop_reason": "stop_sequence" if made.stop else FINISH[made.finish],
        "stop_sequence": made.stop,
        "usage": {
            "input_tokens": made.tokens_in,
            "cache_read_input_tokens": 0,
            "cache_creation_input_tokens": 0,
            "output_tokens": made.tokens_out,
        },
    }


def make_events(request: Request, made: Answer) -> Iterator[dict[str, Any]]:
    """Yield the events of a streamed answer."""
    blocks = make_blocks(made)
    whole = make_message(request, made, blocks)
    begun = {**whole, "content": [], "stop_reason": None, "stop_sequence": None}
    yield {"type": "message_start", "message": {**begun, "usage": {**whole["usage"], "output_tokens": 1}}}
    yield {"type": "ping"}
    empty: dict[str, dict[str, Any]] = {
        "text": {"text": ""},
        "thinking": {"thinking": "", "signature": ""},
        "tool_use": {"input": {}},
    }
    for index, block in enumerate(blocks):
        yield {
            "type": "content_block_start",
            "index": index,
            "content_block": {**block, **empty[block["type"]]},
        }
        for delta in _make_deltas(block, made):
            yield {"type": "content_block_delta", "index": index, "delta": delta}
            if request.model == BREAKING:
                yield {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
                return
        yield {"type": "content_block_stop", "index": index}
    ended = {"stop_reason": whole["stop_reason"], "stop_sequence": whole["stop_sequence"]}
    yield {"type": "message_delta", "delta": ended, "usage": {"output_tokens": made.tokens_out}}
    yield {"type": "message_stop"}


def _make_deltas(block: dict[str, Any], made: Answer) -> Iterator[dict[str, Any]]:
    match block["type"]:
        case "text":
            for word in to_words(made):
                yield {"type": "text_delta", "text": word}
        case "thinking":
            yield {"type": "thinking_delta", "thinking": block["thinking"]}
            yield {"type": "signature_delta", "signature": block["signature"]}
        case _:
            text = json.dumps(block["input"])
            for piece in ("", text[:4], text[4:]):
                yield {"type": "input_json_delta", "partial_json": piece}
