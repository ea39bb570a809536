"""Events as a model API's client reads them: one piece of a job's stream, one frame.

Every frame has `id: <job>/<entry>`, which a client that lost its connection sends as Last-Event-ID to any
gateway of the grid.
"""

from __future__ import annotations

import json
import re

from gridq.protocol.models import Json

KEEP_ALIVE = b": keep-alive\n"
"""A comment, which clients pass over and proxies take for life. No empty line follows: where the event before
had an id, the official clients take that for one more event, without data.
"""

HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
"""Of every stream: nobody on the way may keep it back or keep it."""

_TYPE = re.compile(rb'\{"type":"([a-z_]{1,64})"')
_NAME = re.compile(r"[a-z_]{1,64}")


def frame(data: bytes, *, id: str = "", event: bytes = b"") -> bytes:
    """One event. `data` is JSON text on one line, as all that is stored is."""
    named = b"event: %b\n" % event if event else b""
    placed = b"id: %b\n" % id.encode() if id else b""
    return b"%b%bdata: %b\n\n" % (placed, named, data)


def openai_frame(place: str, piece: bytes) -> bytes:
    """A chunk."""
    return b"id: %b\ndata: %b\n\n" % (place.encode(), piece)


def openai_end(place: str) -> bytes:
    """The word that the stream is whole."""
    return b"id: %b\ndata: [DONE]\n\n" % place.encode()


def openai_fault(error: dict[str, Json]) -> bytes:
    """What OpenAI's clients raise as an APIError."""
    return b"data: %b\n\n" % _text(error)


def anthropic_frame(place: str, piece: bytes) -> bytes:
    """An event under its own type."""
    match = _TYPE.match(piece)
    kind = match[1] if match else _kind(json.loads(piece))
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (place.encode(), kind, piece)


def _kind(event: Json) -> bytes:
    """The type of an event; of what is none of this API format, as a job of another one has it, `message`."""
    kind = event.get("type") if isinstance(event, dict) else None
    return kind.encode() if isinstance(kind, str) and _NAME.fullmatch(kind) else b"message"


def anthropic_end(place: str) -> bytes:
    """Nothing: the last piece, `message_stop`, says it."""
    return b""


def anthropic_fault(error: dict[str, Json]) -> bytes:
    """What Anthropic's clients raise as an APIStatusError."""
    return b"event: error\ndata: %b\n\n" % _text(error)


def _text(value: Json) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
