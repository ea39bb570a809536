"""Read a request body within its bounds, parse it as JSON, and read the few fields that the gateway needs.

All other fields pass through unchanged.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import re
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from gridq.errors import InputTooLarge, InvalidField, InvalidJson, MissingField
from gridq.gateway.http.body_memory import LARGE_BODY_BYTES
from gridq.graph.source import find_duplicate, make_duplicate_error
from gridq.process.heap import pause_gc
from gridq.protocol.models import Json
from gridq.store import values

T = TypeVar("T")

MAX_MODEL_NAME_CHARS = 256
"""The longest name of a model, in characters."""

MAX_MODELS = 8
"""Maximum number of models in one request, as in the `Llm` effect."""

MAX_VALUES = 400_000
"""Maximum number of JSON values in a body.

Bytes alone are no bound: 8 MB of `[],` are millions of lists, and building them blocks all other requests.
The vectors and token lists that the model APIs accept in one request have fewer.
"""


async def read_body(receive: Receive, before: bytes = b"", after: bytes = b"") -> bytes | bytearray:
    """Return a request's body without a byte order mark, between `before` and `after`.

    Raises ClientDisconnect, and from `receive` (see `bounds`) InputTooLarge and GatewayBusy.
    """
    raw = bytearray(before)
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect()
        raw += message.get("body", b"")
        if not message.get("more_body", False):
            break
    if raw.startswith(codecs.BOM_UTF8, len(before)):
        del raw[len(before) : len(before) + len(codecs.BOM_UTF8)]
    raw += after
    return raw if len(raw) > LARGE_BODY_BYTES else bytes(raw)  # a large one is not copied


async def read_json(
    receive: Receive, depth: int, before: bytes = b"", after: bytes = b""
) -> tuple[dict[str, Json], bytes | bytearray]:
    """Return a request's body as a JSON object, and its text between `before` and `after`.

    Raises the errors of `read_body` and `parse_body`.
    """
    raw = await read_body(receive, before, after)
    return await run_for_body(len(raw), parse_body, raw, depth, len(before), len(raw) - len(after)), raw


async def run_for_body(size: int, work: Callable[..., T], *arguments: Any) -> T:
    """Return what `work` returns.

    For a large body of `size` bytes it runs on a thread, one at a time: other requests go on meanwhile, and
    only one body is decoded at once.
    """
    if size <= LARGE_BODY_BYTES:
        return work(*arguments)
    return await asyncio.get_running_loop().run_in_executor(_LARGE_BODIES, work, *arguments)


_LARGE_BODIES = ThreadPoolExecutor(1, "gridq-large-bodies")


def parse_body(raw: bytes | bytearray, depth: int, start: int = 0, end: int | None = None) -> dict[str, Json]:
    """Return the body that `raw` holds from `start` to `end` as a JSON object.

    Raises InvalidJson if it is not one or is nested deeper than `depth`, InputTooLarge if it has more than
    MAX_VALUES values.
    """
    if _has_too_many_values(raw):
        raise InputTooLarge(
            "The body has too many JSON values",
            {
                "path": "body",
                "expected": f"at most {MAX_VALUES} values",
                "fix": "split the request, or pass large data as one string or by reference",
            },
        )
    with pause_gc(len(raw) > LARGE_BODY_BYTES):
        try:
            body = values.parse_json(raw, start, end, _DECODER)
        except RecursionError:
            raise _make_depth_error(depth) from None
        except UnicodeDecodeError as exc:
            raise InvalidJson(
                "The body is not UTF-8", {"path": "body", "reason": f"{exc.reason} at byte {exc.start}"}
            ) from None
        except ValueError as exc:
            raise InvalidJson(
                "The body is not valid JSON", {"path": "body", "reason": _parse_reason(exc)}
            ) from None
        if not isinstance(body, dict):
            raise InvalidJson("The body is not a JSON object", {"path": "body", "expected": "a JSON object"})
        if raw.count(b"{") + raw.count(b"[") > depth and _is_deeper(body, depth):
            raise _make_depth_error(depth)
    return body


def read_model(body: dict[str, Json]) -> str:
    """Return the model that a body names. Raises MissingField and InvalidField."""
    model = body.get("model")
    if model is None:
        raise MissingField(
            "The field `model` is missing",
            {
                "path": "model",
                "expected": "the name of a model or family, or 'any'",
                "fix": "choose a model from /v1/models",
            },
        )
    return _check_model(model, "model")


def read_models(body: dict[str, Json], others: Sequence[str] = ()) -> str | list[str]:
    """Return the model of a body, or the list of it and its fallbacks, the preferred one first.

    Fallbacks come from the body's `models`, as in OpenRouter's API, or from `others`, a header. With either
    the result is a list, even of one, because the body has a field of gridq. Without `model` the first of
    `models` is preferred. A repetition of `model` in `models` is ignored.

    Raises MissingField and InvalidField.
    """
    listed, path = body.get("models"), "models"
    if listed is None:
        if not others:
            return read_model(body)
        listed, path = list(others), "x-gridq-models"
    elif others:
        raise InvalidField(
            "Fallback models are set both in the body and in a header",
            {"path": path, "expected": "`models` in the body or the header x-gridq-models, not both"},
        )
    if not isinstance(listed, list):
        raise InvalidField("`models` is not a list", {"path": path, "expected": "a list of model names"})
    names = [_check_model(name, f"{path}[{number}]") for number, name in enumerate(listed)]
    if body.get("model") is not None or not names:
        best = read_model(body)
        names = [best, *(name for name in names if name.lower() != best.lower())]
    if len(names) > MAX_MODELS:
        raise InvalidField(
            f"The request names {len(names)} models",
            {"path": path, "expected": f"at most {MAX_MODELS}, including `model`"},
        )
    twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if twice is not None:
        raise InvalidField(
            f"The request names the model {twice!r} twice",
            {"path": path, "expected": "each model once", "fix": "remove one of the two"},
        )
    return names


def _check_model(name: Json, path: str) -> str:
    if (
        not isinstance(name, str)
        or not name.strip()
        or len(name) > MAX_MODEL_NAME_CHARS
        or not _is_text(name)
    ):
        raise InvalidField(
            "Invalid model name",
            {
                "path": path,
                "expected": f"a string of 1 to {MAX_MODEL_NAME_CHARS} characters",
                "fix": "choose a model from /v1/models",
            },
        )
    return name.strip()


def read_stream(body: dict[str, Json]) -> bool:
    """Return True if a body asks for a stream. Raises InvalidField."""
    stream = body.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise InvalidField("`stream` is not a boolean", {"path": "stream", "expected": "true or false"})
    return bool(stream)


def _reject_constant(name: str) -> Json:
    raise ValueError(f"{name} is not a JSON number")


def _parse_reason(fault: ValueError) -> str:
    """Return why a text is not valid JSON. Python's own advice on long numbers does not help a client."""
    if "int_max_str_digits" in str(fault):
        return f"a number has more than {sys.get_int_max_str_digits()} digits"
    return str(fault)[:200]


_DECODER = json.JSONDecoder(parse_constant=_reject_constant)


def _has_too_many_values(raw: bytes | bytearray) -> bool:
    """Return True if a JSON text has more than MAX_VALUES values, without decoding it.

    Values are counted by the commas and opening brackets outside of strings. An empty list counts twice.
    """
    if len(raw) <= MAX_VALUES or _count_separators(raw) <= MAX_VALUES:  # including those in strings
        return False
    if b"\\" in raw:
        raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    if raw.count(b'"') > 4 * MAX_VALUES:  # each value is at most two strings, its key and itself
        return True
    return _count_separators(b"".join(raw.split(b'"')[::2])) > MAX_VALUES


_NO_SEPARATORS = bytes(byte for byte in range(256) if byte not in b",[{")


def _count_separators(text: bytes | bytearray) -> int:
    step = values.SLICE_BYTES
    return sum(len(text[at : at + step].translate(None, _NO_SEPARATORS)) for at in range(0, len(text), step))


_CONTAINERS = (dict, list)  # built once: `dict | list` would be built again for each value


def _is_deeper(value: Json, depth: int) -> bool:
    """Return True if `value` is nested more deeply than `depth` levels."""
    level: list[Json] = [value]
    for _ in range(depth):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, _CONTAINERS)
        ]
        if not level:
            return False
    return True


_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"(?:\s*+(:))?', re.S)


def check_keys(raw: bytes | bytearray, body: Json) -> None:
    """Check that no object of a JSON text has a key twice; `body` is its value. Raises InvalidJson.

    In a body of a model API, which is the vendor's format, the last one counts.
    """
    written = sum(1 for found in _STRING.finditer(raw) if found[1])  # a string with a colon after it is a key
    if written > _count_keys(body):
        raise make_duplicate_error(*(find_duplicate(raw) or ("body", "")))


def _count_keys(value: Json) -> int:
    """Return how many keys the objects in a value have together."""
    count = 0
    stack = [value]
    while stack:
        part = stack.pop()
        if isinstance(part, dict):
            count += len(part)
            stack += [inner for inner in part.values() if isinstance(inner, _CONTAINERS)]
        elif isinstance(part, list):
            stack += [inner for inner in part if isinstance(inner, _CONTAINERS)]
    return count


def _make_depth_error(depth: int) -> InvalidJson:
    return InvalidJson(
        "The body is nested too deeply", {"path": "body", "expected": f"at most {depth} levels of nesting"}
    )


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return "\0" not in text
