"""Server-sent events as the clients of each model API read them: one frame for each piece of a job's
stream.

Each frame has `id: <job>/<entry>`. A client that lost its connection sends it as Last-Event-ID to any
gateway.
"""

from __future__ import annotations

import json
import re

from gridq.protocol.models import Json

KEEP_ALIVE = b": keep-alive\n"
"""A comment, which clients ignore and which keeps proxies from closing the connection.

No empty line follows. After an event with an ID the official clients would take it for another event
without data.
"""

HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
"""Headers of every stream, so that nothing on the way buffers or caches it."""

_TYPE = re.compile(rb'\{"type":"([a-z_]{1,64})"')
_NAME = re.compile(r"[a-z_]{1,64}")


def frame(data: bytes, *, id: str = "", event: bytes = b"") -> bytes:
    """Return one event. `data` is JSON text on one line, as all stored JSON is."""
    named = b"event: %b\n" % event if event else b""
    placed = b"id: %b\n" % id.encode() if id else b""
    return b"%b%bdata: %b\n\n" % (placed, named, data)


def openai_frame(event_id: str, piece: bytes) -> bytes:
    """Return a chunk of a completion. `event_id` is the frame's ID."""
    return b"id: %b\ndata: %b\n\n" % (event_id.encode(), piece)


def openai_end_frame(event_id: str) -> bytes:
    """Return the frame that marks a complete stream."""
    return b"id: %b\ndata: [DONE]\n\n" % event_id.encode()


def openai_error_frame(error: dict[str, Json]) -> bytes:
    """Return an error frame, which OpenAI's clients raise as an APIError."""
    return b"data: %b\n\n" % encode_data(error)


def anthropic_frame(event_id: str, piece: bytes) -> bytes:
    """Return an event with its type as the event's name."""
    match = _TYPE.match(piece)
    kind = match[1] if match else _event_type(json.loads(piece))
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (event_id.encode(), kind, piece)


def _event_type(event: Json) -> bytes:
    """Return the type of an event. `message` if it has none, as the pieces of a job of another API."""
    kind = event.get("type") if isinstance(event, dict) else None
    return kind.encode() if isinstance(kind, str) and _NAME.fullmatch(kind) else b"message"


def anthropic_end_frame(event_id: str) -> bytes:
    """Return nothing: the last piece, `message_stop`, marks a complete stream."""
    return b""


def anthropic_error_frame(error: dict[str, Json]) -> bytes:
    """Return an error frame, which Anthropic's clients raise as an APIStatusError."""
    return b"event: error\ndata: %b\n\n" % encode_data(error)


def encode_data(value: Json) -> bytes:
    """Return the data of a frame as JSON on one line."""
    return json.dumps(value, separators=(",", ":")).encode()
