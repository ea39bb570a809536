"""The one seam through which every value passes between JSON and Redis.

A value is stored as compact JSON; one over `inline_value` bytes is written to a key of its own first and
stands elsewhere as a link, `@` and the key's name (no JSON text begins with `@`). Lua only ever sees the text
or the link.
"""

from __future__ import annotations

import json
from typing import Any

from redis import Redis

from gridq.errors import InputTooLarge, OutputTooLarge, ValueGone, ValueNotJson
from gridq.protocol.models import Json
from gridq.store.keys import Keys

CHUNK = 1024 * 1024


def encode(value: Json, *, limit: int, what: str = "output", path: str | None = None) -> bytes:
    """`value` as compact UTF-8 JSON.

    ValueNotJson: NaN, an object that is no JSON, a cycle, a key that is no text. InputTooLarge,
    OutputTooLarge: over `limit` bytes.
    """
    details: dict[str, Any] = {"path": path} if path else {}
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        data = text.encode()
    except UnicodeEncodeError:  # a lone surrogate is JSON, though not UTF-8: escaped it survives
        data = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as exc:
        raise ValueNotJson(
            f"The {what} is not JSON",
            {**details, "reason": str(exc), "expected": "null, bool, number, text, list or record"},
        ) from None
    if len(data) > limit:
        error = InputTooLarge if what == "input" else OutputTooLarge
        raise error(
            f"The {what} is {len(data)} bytes of JSON",
            {
                **details,
                "expected": f"at most {limit}",
                "fix": "pass a reference to the data, or raise GRIDQ_MAX_VALUE",
            },
        )
    return data


def decode(data: bytes) -> Json:
    """The value that `encode` gave. ValueNotJson: it is nested more deeply than this program can follow."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueNotJson("A value is nested too deeply", {"expected": "some 900 levels at most"}) from None


def is_link(data: bytes) -> bool:
    return data[:1] == b"@"


def read(client: Redis, keys: Keys, data: bytes) -> bytes:
    """The bytes of a stored value: `data` itself, or where it is a link what it points to, read in chunks.

    ValueGone: there is nothing; its job has ended meanwhile, or its time is over.
    """
    if not is_link(data):
        return data
    key = keys("value", data[1:].decode())
    parts: list[bytes] = []
    at = 0
    while True:
        part: bytes = client.getrange(key, at, at + CHUNK - 1)  # type: ignore[assignment]
        parts.append(part)
        at += len(part)
        if len(part) < CHUNK:
            break
    if at == 0:
        raise ValueGone("A stored value is gone", {"reason": "its job has ended, or its time is over"})
    return b"".join(parts)
