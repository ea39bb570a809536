"""Give the chats of a seat ids of the grid's own, and tell their tool calls apart."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Collection, Generator, Iterator
from typing import Any
from urllib.parse import urlsplit

from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json
from workers.model_apis.api_request import ANTHROPIC, CHAT, COMPLETIONS, EMBEDDINGS, OPENAI, translate_request
from workers.model_apis.backend import Backend, TranslatingBackend, parse_answer
from workers.model_apis.identity.call_pieces import CallPieces, OpenCall
from workers.model_apis.identity.fitting import (
    ANTHROPIC_ID,
    ANTHROPIC_NAME,
    ANY_ID,
    GOOGLE_NAME,
    MISTRAL_ID,
    OPENAI_ID,
    OPENAI_NAME,
    CallIds,
    Rule,
    ToolNames,
    make_call_id,
    make_completion_id,
)
from workers.model_apis.identity.origins import ALL_STATE, mark_details, name_origin, return_state

MISTRAL_MODELS = re.compile("mistral|mixtral|ministral|magistral|devstral|codestral|pixtral|voxtral", re.I)
"""Models whose chat template takes Mistral's ids only, at whatever endpoint."""

ACCEPTED_STATE = {"mistral.ai": (), "groq.com": ("reasoning",), "cerebras.ai": ("reasoning",)}
"""By host: what an endpoint takes of a model's state. Those reject other fields, as OpenAI's own API does."""

REASONING_HOSTS = ("deepseek.com", "moonshot.ai", "moonshot.cn", "kimi.com")
"""Hosts that require `reasoning_content` of every message with calls, and reject a history without it."""

NO_REASONING = " "
"""What such an endpoint gets for the calls of another model, or of a client that keeps no reasoning."""

NAME_RULES = {OPENAI: OPENAI_NAME, ANTHROPIC: ANTHROPIC_NAME, "google": GOOGLE_NAME}


def _get_host(seat: Backend) -> str:
    """Return the host of the seat's endpoint, "" for a seat without one."""
    return urlsplit(getattr(seat, "url", "")).hostname or ""


def find_id_rule(seat: Backend, model: Json) -> Rule:
    """Return the ids of tool calls that `seat` takes for `model`."""
    if seat.api == ANTHROPIC:
        return ANTHROPIC_ID
    if seat.api != OPENAI:
        return ANY_ID
    host = _get_host(seat)
    is_mistral = getattr(seat, "provider", "") == "mistral" or host.endswith("mistral.ai")
    if is_mistral or (isinstance(model, str) and MISTRAL_MODELS.search(model)):
        return MISTRAL_ID
    return OPENAI_ID if seat.is_strict else ANY_ID


def list_accepted_state(seat: Backend) -> Collection[str]:
    """Return the fields of ALL_STATE that `seat` does not reject."""
    if seat.api != OPENAI:
        return ALL_STATE
    host = _get_host(seat)
    known = next((fields for end, fields in ACCEPTED_STATE.items() if host.endswith(end)), ALL_STATE)
    return () if seat.is_strict else known


def requires_reasoning(seat: Backend) -> bool:
    """Return whether `seat` requires the reasoning of each tool call in a history."""
    host = _get_host(seat)
    return seat.api == OPENAI and host.endswith(REASONING_HOSTS)


class ChatIdentity(TranslatingBackend):
    """A backend of the OpenAI API format that sends its requests to `inner`, of the same format.

    An answer gets an id of the grid's own, and so do its tool calls. `seat` is the backend that the requests
    reach at last, whose rules the ids of tool calls follow, and the names of tools too if the client of the
    request uses another API format than the seat.
    """

    api = OPENAI

    def __init__(self, inner: Backend, seat: Backend, client_api: str) -> None:
        super().__init__(inner)
        self.is_strict = inner.is_strict
        self._seat = seat
        self._name_rule = NAME_RULES.get(seat.api) if seat.api != client_api else None

    def post(self, path: str, body: dict[str, Json], context: StageContext) -> dict[str, Json]:
        if path == EMBEDDINGS:
            return self._inner.post(path, body, context)
        request, names = self._prepare(path, body)
        origin = name_origin(body.get("model"), self._seat)
        answer = self._inner.post(path, request, context)
        return parse_answer(self, lambda: _identify_answer(path, answer, names, origin))

    def stream(self, path: str, body: dict[str, Json], context: StageContext) -> Generator[dict[str, Json]]:
        request, names = self._prepare(path, body)
        chunks = IdentifiedChunks(path, body, names, name_origin(body.get("model"), self._seat))
        yield from self._translate_stream(path, request, context, lambda each: [chunks.add_chunk(each)])

    def _prepare(self, path: str, body: dict[str, Json]) -> tuple[dict[str, Json], ToolNames]:
        if path != CHAT:
            return body, ToolNames(None, ())
        names = ToolNames(self._name_rule, list(_list_names(body)))
        ids = CallIds(find_id_rule(self._seat, body.get("model")))
        return translate_request(self._fit_request, body, names, ids), names

    def _fit_request(self, body: dict[str, Json], names: ToolNames, ids: CallIds) -> dict[str, Json]:
        """Return the request with the ids, the names and the state that the seat takes."""
        origin = name_origin(body.get("model"), self._seat)
        messages = return_state(body["messages"], origin, list_accepted_state(self._seat))
        if requires_reasoning(self._seat):
            messages = [*map(_add_reasoning, messages)]
        fitted: dict[str, Json] = {**body, "messages": [_fit_message(each, names, ids) for each in messages]}
        if isinstance(body.get("tools"), list):
            fitted["tools"] = [_fit_function(tool, names) for tool in body["tools"]]
        if isinstance(body.get("tool_choice"), dict):
            fitted["tool_choice"] = _fit_function(body["tool_choice"], names)
        return fitted


def _as_list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _get_function(holder: Json, key: str = "function") -> dict[str, Json]:
    function = holder.get(key) if isinstance(holder, dict) else None
    return function if isinstance(function, dict) else {}


def _list_names(body: dict[str, Json]) -> Iterator[str]:
    """Yield the names of the tools that a request declares, and of those that its messages call."""
    holders = [_get_function(tool) for tool in _as_list(body.get("tools"))]
    for message in body["messages"]:
        holders += [_get_function(call) for call in _as_list(message.get("tool_calls"))]
    for holder in holders:
        if isinstance(holder.get("name"), str):
            yield holder["name"]


def _fit_function(holder: Json, names: ToolNames) -> Json:
    function = _get_function(holder)
    if "name" not in function:
        return holder
    return {**holder, "function": {**function, "name": names.fit(function["name"])}}


def _add_reasoning(message: dict[str, Json]) -> dict[str, Json]:
    if not message.get("tool_calls") or message.get("reasoning_content"):
        return message
    return {**message, "reasoning_content": NO_REASONING}


def _fit_message(message: dict[str, Json], names: ToolNames, ids: CallIds) -> dict[str, Json]:
    if message.get("role") == "tool" and isinstance(message.get("tool_call_id"), str):
        return {**message, "tool_call_id": ids.find_result(message["tool_call_id"])}
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    fitted = [
        {**_fit_function(call, names), "id": ids.add_call(call.get("id"))} if isinstance(call, dict) else call
        for call in calls
    ]
    return {**message, "tool_calls": fitted}


def _make_answer_id(path: str) -> str:
    return make_completion_id("cmpl" if path == COMPLETIONS else "chatcmpl")


def _restore_name(holder: dict[str, Json], names: ToolNames) -> dict[str, Json]:
    function = _get_function(holder)
    if not function.get("name"):
        return {}
    return {"function": {**function, "name": names.restore(function["name"])}}


def _identify_answer(path: str, answer: dict[str, Json], names: ToolNames, origin: str) -> dict[str, Json]:
    """Return a complete answer with ids of the grid's own."""
    identified = {**answer, "id": _make_answer_id(path)}
    if isinstance(answer.get("choices"), list):
        identified["choices"] = [_identify_choice(choice, names, origin) for choice in answer["choices"]]
    return identified


def _identify_choice(choice: Json, names: ToolNames, origin: str) -> Json:
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(message, dict):
        return choice
    message = mark_details(message, origin)
    if isinstance(message.get("tool_calls"), list):
        calls = [
            {**call, "id": make_call_id(call.get("id"), origin=origin), **_restore_name(call, names)}
            if isinstance(call, dict)
            else call
            for call in message["tool_calls"]
        ]
        message = {**message, "tool_calls": calls}
    return {**choice, "message": message}


class IdentifiedChunks:
    """Gives the chunks of one answer its id, and its tool calls an index and an id of their own."""

    def __init__(self, path: str, body: dict[str, Json], names: ToolNames, origin: str) -> None:
        kind = "text_completion" if path == COMPLETIONS else "chat.completion.chunk"
        self._head = {"id": "", "object": kind, "created": int(time.time()), "model": body.get("model")}
        self._id = _make_answer_id(path)
        self._names = names
        self._origin = origin
        self._pieces: dict[Json, CallPieces] = defaultdict(CallPieces)

    def add_chunk(self, chunk: dict[str, Json]) -> dict[str, Json]:
        """Return a chunk as the client gets it. Raises ValueError if a tool call cannot be read."""
        self._head |= {name: chunk[name] for name in self._head if chunk.get(name) is not None}
        identified: dict[str, Any] = {**chunk, **self._head, "id": self._id}
        if isinstance(chunk.get("choices"), list):
            identified["choices"] = [self._identify_choice(choice) for choice in chunk["choices"]]
        return identified

    def _identify_choice(self, choice: Json) -> Json:
        delta = choice.get("delta") if isinstance(choice, dict) else None
        if not isinstance(delta, dict):
            return choice
        choice = {**choice, "delta": mark_details(delta, self._origin)}
        delta = choice["delta"]
        known = self._pieces[choice.get("index") or 0]
        if delta.get("tool_calls"):
            assigned = zip(delta["tool_calls"], known.assign(delta["tool_calls"]), strict=True)
            made = [self._identify_piece(piece, call) for piece, call in assigned]
            choice = {**choice, "delta": {**delta, "tool_calls": [*filter(None, made)]}}
        if choice.get("finish_reason") and not known.are_announced:
            raise ValueError("a tool call has no name")
        return choice

    def _identify_piece(self, piece: dict[str, Json], call: OpenCall) -> Json:
        """Return a piece of a call as the client gets it, None if the name of the call is not known yet."""
        function = piece.get("function") or {}
        if call.is_announced:  # clients join the strings of all pieces
            rest = {key: value for key, value in piece.items() if key not in ("id", "type", "index")}
            if function:
                rest["function"] = {key: value for key, value in function.items() if key != "name"}
            return {"index": call.index, **rest}
        if not call.name:
            call.held += function.get("arguments") or ""
            return None
        call.is_announced = True
        arguments = call.held + (function.get("arguments") or "")
        own = {
            "id": make_call_id(call.stated_id, origin=self._origin),
            "type": piece.get("type") or "function",
        }
        named = {"function": {**function, "name": self._names.restore(call.name), "arguments": arguments}}
        return {**piece, "index": call.index, **own, **named}
