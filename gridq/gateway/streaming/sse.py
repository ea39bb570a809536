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

_TYPE = re.compile(rb'\{"type":"([a-z_.]{1,64})"')
_NAME = re.compile(r"[a-z_.]{1,64}")


def format_comment(text: str) -> bytes:
    """Return a comment to send in place of KEEP_ALIVE, for people who watch a stream. `text` is one line."""
    return b": %b\n" % text.encode()


def format_event(data: bytes, *, id: str = "", event: bytes = b"") -> bytes:
    """Return one event. `data` is JSON text on one line, as all stored JSON is."""
    named = b"event: %b\n" % event if event else b""
    placed = b"id: %b\n" % id.encode() if id else b""
    return b"%b%bdata: %b\n\n" % (placed, named, data)


def get_event_type(piece: bytes) -> bytes:
    """Return the type of a piece, which Anthropic's Messages and OpenAI's Responses send as the event's name.

    `message` if it has none, as the pieces of a job of another API.
    """
    match = _TYPE.match(piece)
    if match:
        return match[1]
    event = json.loads(piece)
    kind = event.get("type") if isinstance(event, dict) else None
    return kind.encode() if isinstance(kind, str) and _NAME.fullmatch(kind) else b"message"


def encode_json(value: Json) -> bytes:
    """Return a value as JSON on one line: the data of a frame, or the body of an answer."""
    return json.dumps(value, separators=(",", ":")).encode()
