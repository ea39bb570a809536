"""The one place where values pass between JSON and Redis.

A value is stored as compact JSON. One over `inline_value` bytes is written to a key of its own first;
elsewhere a link stands for it, `@` and the key's name (no JSON text begins with `@`). Lua sees only the text
or the link.
"""

from __future__ import annotations

import json
from typing import Any

from redis import Redis

from gridq.errors import InputTooLarge, OutputTooLarge, ValueGone, ValueNotJson
from gridq.protocol.models import Json
from gridq.store.keys import Keys

CHUNK_BYTES = 1024 * 1024


def encode(value: Json, *, limit: int, what: str = "output", path: str | None = None) -> bytes:
    """Return `value` as compact UTF-8 JSON.

    Raises ValueNotJson for NaN, an object that is not JSON, a cycle or a key that is not text; InputTooLarge
    or OutputTooLarge over `limit` bytes.
    """
    details: dict[str, Any] = {"path": path} if path else {}
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        data = text.encode()
    except UnicodeEncodeError:  # a lone surrogate is valid JSON but not UTF-8: escape it
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
    """Return the value that `encode` encoded. Raises ValueNotJson if it is nested too deeply."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueNotJson("A value is nested too deeply", {"expected": "at most about 900 levels"}) from None


def is_link(data: bytes) -> bool:
    return data[:1] == b"@"


def read(client: Redis, keys: Keys, data: bytes) -> bytes:
    """Return the bytes of a stored value: `data` itself or, if it is a link, what it points to, read in
    chunks.

    Raises ValueGone if there is nothing: its job has ended, or it has expired.
    """
    if not is_link(data):
        return data
    key = keys("value", data[1:].decode())
    parts: list[bytes] = []
    at = 0
    while True:
        part: bytes = client.getrange(key, at, at + CHUNK_BYTES - 1)  # type: ignore[assignment]
        parts.append(part)
        at += len(part)
        if len(part) < CHUNK_BYTES:
            break
    if at == 0:
        raise ValueGone("A stored value is gone", {"reason": "its job has ended, or it has expired"})
    return b"".join(parts)
