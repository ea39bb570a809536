"""The one place where values pass between JSON and Redis.

A value is stored as compact JSON. One over `inline_value` bytes is written to a key of its own first;
elsewhere a link stands for it, `@` and the key's name (no JSON text begins with `@`). Lua sees only the text
or the link.
"""

from __future__ import annotations

import json
from typing import Any

import orjson
from redis import Redis

from gridq.errors import InputTooLarge, OutputTooLarge, ValueGone, ValueNotJson
from gridq.protocol.models import Json
from gridq.store.keys import Keys

CHUNK_BYTES = 1024 * 1024
SLICE_BYTES = 256 * 1024
"""The part of a long text that is searched at once, because each search makes a copy."""

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def encode(value: Json, *, limit: int, what: str = "output", path: str | None = None) -> bytes:
    """Return `value` as compact UTF-8 JSON.

    Raises ValueNotJson for NaN, an object that is not JSON, a cycle or a key that is not text; InputTooLarge
    or OutputTooLarge over `limit` bytes.
    """
    details: dict[str, Any] = {"path": path} if path else {}
    try:
        data = _ENCODER.encode(value).encode()
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


def decode(data: bytes | bytearray) -> Json:
    """Return the value that `encode` encoded. Raises ValueNotJson if it is nested too deeply."""
    try:
        return parse_json(data)
    except RecursionError:
        raise ValueNotJson("A value is nested too deeply", {"expected": "at most about 900 levels"}) from None


_DECODER = json.JSONDecoder()
_DIGITS = bytes(ord("0") if ord("0") <= byte <= ord("9") else byte for byte in range(256))
_LONG_NUMBER = b"0" * 19
"""A whole number with as many digits may not fit into 64 bits; orjson would round it."""


def parse_json(
    raw: bytes | bytearray, start: int = 0, end: int | None = None, decoder: json.JSONDecoder = _DECODER
) -> Json:
    """Return what `decoder` makes of the UTF-8 text from `start` to `end`.

    orjson does it where the result is the same: it needs less time, and less memory for a large text that has
    a character beyond 16 bits. Raises ValueError, UnicodeDecodeError among them, and RecursionError.
    """
    text = memoryview(raw)[start:end]
    if not _has_long_number(raw):
        try:
            value: Json = orjson.loads(text)
            return value
        except orjson.JSONDecodeError:
            pass  # orjson rejects lone surrogates and 1e400, which are JSON; otherwise json gives the reason
    return decoder.decode(str(text, "utf-8"))


def _has_long_number(raw: bytes | bytearray) -> bool:
    """Return whether a text may have a number of as many digits as _LONG_NUMBER. In slices, which stay in the
    processor's cache.
    """
    step, overlap = SLICE_BYTES, len(_LONG_NUMBER) - 1
    return any(
        _LONG_NUMBER in raw[at : at + step + overlap].translate(_DIGITS) for at in range(0, len(raw), step)
    )


def is_link(data: bytes | bytearray) -> bool:
    return data[:1] == b"@"


def read(client: Redis, keys: Keys, data: bytes) -> bytes:
    """Return the bytes of a stored value: `data` itself or, if it is a link, what it points to.

    Raises ValueGone if there is nothing: its job has ended, or it has expired.
    """
    return bytes(read_buffer(client, keys, data))


def read_buffer(client: Redis, keys: Keys, data: bytes) -> bytes | bytearray:
    """Return the same as `read`. What a link points to is read in chunks into one buffer, and not copied."""
    if not is_link(data):
        return data
    key = keys("value", data[1:].decode())
    found = bytearray(client.strlen(key))  # at its full size: one that grows would stay in the heap
    for at in range(0, len(found), CHUNK_BYTES):
        part: bytes = client.getrange(key, at, at + CHUNK_BYTES - 1)  # type: ignore[assignment]
        if not part:
            found.clear()  # it has expired in between
            break
        found[at : at + len(part)] = part
    if not found:
        raise ValueGone("A stored value is gone", {"reason": "its job has ended, or it has expired"})
    return found
