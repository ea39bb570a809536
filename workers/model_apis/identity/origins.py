"""Name where a part of a history came from: a model at an endpoint.

What a model wrote for itself (reasoning, signatures, encrypted state) is of use to that model alone, and
others may reject it. So the ids of tool calls and the marks of reasoning name their origin, and a seat gets
back what is its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from functools import lru_cache
from typing import Any

from gridq.protocol.models import Json
from workers.model_apis.identity.fitting import (
    add_signature,
    find_call_origin,
    make_call_id,
    split_signature,
)

HEX_DIGITS = 8
MARK = "gridq."
"""The beginning of each mark of the grid in reasoning, such as the `id` of an item of `reasoning_details`."""

REASONING_FIELDS = ("reasoning_content", "reasoning")
"""Fields in which endpoints of the OpenAI API format send reasoning. OpenAI's own API does not send it."""

STATE_FIELDS = (*REASONING_FIELDS, "reasoning_details")
EXTRA_CONTENT = "extra_content"
"""What a vendor adds to a tool call and wants back, such as Google's `thought_signature`."""


def name_origin(model: Json, seat: Any, account: str = "") -> str:
    """Return eight hex digits that name `model` at the endpoint of `seat`, and the account if it matters."""
    return _hash_place(f"{model} at {seat.api} {getattr(seat, 'url', '')} {account}")


@lru_cache(maxsize=256)
def _hash_place(place: str) -> str:
    return hashlib.sha256(place.encode("utf-8", "surrogatepass")).hexdigest()[:HEX_DIGITS]


def find_reasoning(message: dict[str, Json]) -> tuple[str, str]:
    """Return the field and the text of the reasoning in a message or a delta, both empty without any."""
    found = ((key, message[key]) for key in REASONING_FIELDS if isinstance(message.get(key), str))
    return next(((key, text) for key, text in found if text), ("", ""))


def make_signed_id(call: dict[str, Json], prefix: str = "call") -> str:
    """Return the id of a chat's call, with the signature that Google sent with the call.

    Messages and Responses have no other place for it that every client sends back.
    """
    stated = call.get("id")
    call_id = stated if isinstance(stated, str) and stated else make_call_id(None, prefix)
    google = call.get(EXTRA_CONTENT)
    google = google.get("google") if isinstance(google, dict) else None
    signature = google.get("thought_signature") if isinstance(google, dict) else None
    return add_signature(call_id, signature) if isinstance(signature, str) and signature else call_id


def split_signed_id(call_id: str) -> dict[str, Json]:
    """Return the fields of a chat's call that an id of `make_signed_id` stands for."""
    own, signature = split_signature(call_id)
    if signature is None:
        return {"id": own}
    return {"id": own, EXTRA_CONTENT: {"google": {"thought_signature": signature}}}


def mark_details(message: dict[str, Json], origin: str) -> dict[str, Json]:
    """Return a message or a delta whose `reasoning_details` name their origin where they have no id.

    Of an item that comes in pieces, the first states a `format`.
    """
    details = message.get("reasoning_details")
    if not isinstance(details, list):
        return message
    marked = [
        {**each, "id": f"{MARK}{origin}"}
        if isinstance(each, dict) and each.get("format") and each.get("id") is None
        else each
        for each in details
    ]
    return {**message, "reasoning_details": marked}


ALL_STATE = frozenset({*STATE_FIELDS, EXTRA_CONTENT})


def return_state(
    messages: list[dict[str, Json]], origin: str, accepted: Collection[str] = ALL_STATE
) -> list[dict[str, Json]]:
    """Return the messages of a chat without what another model than that of `origin` wrote for itself.

    Clients of chats send reasoning back as they got it. Some endpoints require it as long as tools are
    called (DeepSeek, Kimi), others reject it. Its mark says whose it is, or the ids of the calls in its turn.
    Where there are none, it stays, unless another model has called tools in this conversation: nobody
    requires it there.
    `accepted` are the fields of ALL_STATE that the endpoint does not reject.
    """
    turns = _split_turns(messages)
    origins = [{found for message in turn for found in _list_origins(message)} for turn in turns]
    has_others = any(known - {origin} for known in origins)
    returned = []
    for turn, known in zip(turns, origins, strict=True):
        for message in turn:
            writers = _list_marks(message) or _list_origins(message) or known
            is_own = writers <= {origin} if writers else not has_others
            returned.append(_return_message(message, accepted if is_own else ()))
    return returned


def _split_turns(messages: list[dict[str, Json]]) -> list[list[dict[str, Json]]]:
    """Return the messages in groups, each of which begins with the user's."""
    turns: list[list[dict[str, Json]]] = [[]]
    for message in messages:
        if message.get("role") == "user":
            turns.append([])
        turns[-1].append(message)
    return turns


def _list_origins(message: dict[str, Json]) -> set[str]:
    """Return the origins that the ids of the message's calls name."""
    calls = message.get("tool_calls")
    ids = [call.get("id") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    return set(map(find_call_origin, ids)) - {""}


def _return_message(message: dict[str, Json], accepted: Collection[str]) -> dict[str, Json]:
    """Return a message with the fields `accepted` of its state."""
    if message.get("role") != "assistant":
        return message
    kept = {name: message[name] for name in message if name in accepted or name not in STATE_FIELDS}
    if isinstance(kept.get("reasoning_details"), list):
        kept["reasoning_details"] = [*map(_drop_mark, kept["reasoning_details"])]
    if EXTRA_CONTENT not in accepted and isinstance(message.get("tool_calls"), list):
        kept["tool_calls"] = [_drop_field(call, EXTRA_CONTENT) for call in message["tool_calls"]]
    return kept


def _list_marks(message: dict[str, Json]) -> set[str]:
    """Return the origins that the message's `reasoning_details` name."""
    details = message.get("reasoning_details")
    marks = map(_read_mark, details) if isinstance(details, list) else ()
    return {mark for mark in marks if mark}


def _read_mark(detail: Json) -> str:
    stated = detail.get("id") if isinstance(detail, dict) else None
    is_mark = isinstance(stated, str) and stated.startswith(MARK)
    return str(stated).removeprefix(MARK) if is_mark else ""


def _drop_mark(detail: Json) -> Json:
    return _drop_field(detail, "id") if _read_mark(detail) else detail


def _drop_field(value: Json, field: str) -> Json:
    return {name: value[name] for name in value if name != field} if isinstance(value, dict) else value
