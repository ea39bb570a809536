"""The body of a request: read within its bounds, parsed as JSON, and the little that the grid must know of it.

All else passes through as it came.
"""

from __future__ import annotations

import codecs
import gc
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import orjson
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from gridq.errors import InputTooLarge, InvalidField, InvalidJson, MissingField
from gridq.protocol.models import Json

LONGEST_NAME = 256
"""Characters of a model's name."""

MOST_MODELS = 8
"""Models that a request may name in all, as the `Llm` effect may."""

MOST_VALUES = 400_000
"""Values of a body. Its bytes do not bound them well enough: 8 MB of `[],` are millions of lists, and to make
them holds up everybody. The vectors and token lists that the model APIs take in one request have fewer.
"""

LARGE = 256 * 1024
"""Bytes of a body from which on garbage is not collected as it is decoded: the collector would look through
all that is there already, again and again.
"""


async def read_body(receive: Receive) -> bytes:
    """A request's body, as far as `receive` allows it (`gridq.gateway.http.bounds`). InputTooLarge,
    ClientDisconnect.
    """
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect()
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def parse_body(raw: bytes, depth: int) -> dict[str, Json]:
    """A body as a JSON object. InvalidJson: it is none, or deeper than `depth`. InputTooLarge: it has more
    than MOST_VALUES values.
    """
    if _has_more(raw, MOST_VALUES):
        raise InputTooLarge(
            "The body has too many values",
            {
                "path": "body",
                "expected": f"at most {MOST_VALUES} values",
                "fix": "send fewer in each request, or pass large data as one text or by reference",
            },
        )
    with _no_collection(len(raw)):
        try:
            body = _decode(raw.removeprefix(codecs.BOM_UTF8))
        except RecursionError:
            raise _too_deep(depth) from None
        except UnicodeDecodeError as exc:
            raise InvalidJson(
                "The body is not UTF-8", {"path": "body", "reason": f"{exc.reason} at byte {exc.start}"}
            ) from None
        except ValueError as exc:
            raise InvalidJson("The body is not JSON", {"path": "body", "reason": _reason(exc)}) from None
        if not isinstance(body, dict):
            raise InvalidJson("The body is no JSON object", {"path": "body", "expected": "a JSON object"})
        if raw.count(b"{") + raw.count(b"[") > depth and _is_deeper(body, depth):
            raise _too_deep(depth)
    return body


def model_of(body: dict[str, Json]) -> str:
    """The model that a body names. MissingField, InvalidField."""
    model = body.get("model")
    if model is None:
        raise MissingField(
            "The request names no model",
            {"path": "model", "expected": "a model's name, a family's or 'any'", "fix": "see /v1/models"},
        )
    return _model(model, "model")


def models_of(body: dict[str, Json], others: Sequence[str] = ()) -> str | list[str]:
    """The model that a body names; where it makes do with others (its `models`, as OpenRouter has them, or
    `others`, which its header names) all of them, the best first: a list of one too, for the body then has
    the grid's own field. Without `model` the first of `models` is the best; a repetition of `model` counts
    for nothing. MissingField, InvalidField.
    """
    told, path = body.get("models"), "models"
    if told is None:
        if not others:
            return model_of(body)
        told, path = list(others), "x-gridq-models"
    elif others:
        raise InvalidField(
            "The request says twice which models it makes do with",
            {"path": path, "expected": "models in the body or x-gridq-models, not both"},
        )
    if not isinstance(told, list):
        raise InvalidField("`models` is no list", {"path": path, "expected": "a list of models' names"})
    names = [_model(name, f"{path}[{number}]") for number, name in enumerate(told)]
    if body.get("model") is not None or not names:
        best = model_of(body)
        names = [best, *(name for name in names if name.lower() != best.lower())]
    if len(names) > MOST_MODELS:
        raise InvalidField(
            f"The request names {len(names)} models",
            {"path": path, "expected": f"at most {MOST_MODELS}, `model` among them"},
        )
    twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if twice is not None:
        raise InvalidField(
            f"The request names the model {twice!r} twice",
            {"path": path, "expected": "each model once", "fix": "leave it out"},
        )
    return names


def _model(name: Json, path: str) -> str:
    if not isinstance(name, str) or not name.strip() or len(name) > LONGEST_NAME or not _is_text(name):
        raise InvalidField(
            "The model is not a name",
            {"path": path, "expected": f"1 to {LONGEST_NAME} characters", "fix": "see /v1/models"},
        )
    return name.strip()


def stream_of(body: dict[str, Json]) -> bool:
    """Whether a body asks for a stream. InvalidField."""
    stream = body.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise InvalidField("`stream` is no yes or no", {"path": "stream", "expected": "true or false"})
    return bool(stream)


def _no_number(name: str) -> Json:
    raise ValueError(f"{name} is no JSON number")


def _reason(fault: ValueError) -> str:
    """Why a text is no JSON that is taken; Python's own advice on long numbers is none for a client."""
    if "int_max_str_digits" in str(fault):
        return f"a number has more than {sys.get_int_max_str_digits()} digits"
    return str(fault)[:200]


_DECODER = json.JSONDecoder(parse_constant=_no_number)

_DIGITS = bytes(ord("0") if ord("0") <= byte <= ord("9") else byte for byte in range(256))
_LONG = b"0" * 19
"""From so many digits on a whole number may not fit into 64 bits, and orjson would round it."""


def _decode(raw: bytes) -> Json:
    """UTF-8 JSON text as a value. ValueError (UnicodeDecodeError too), RecursionError."""
    if _LONG not in raw.translate(_DIGITS):
        try:
            value: Json = orjson.loads(raw)
            return value
        except orjson.JSONDecodeError:
            pass  # half of a pair and 1e400 are JSON, though orjson takes neither; of all else json says why
    return _DECODER.decode(raw.decode())


def _has_more(raw: bytes, most: int) -> bool:
    """Whether a JSON text has more than `most` values, told without decoding it: as many as it has commas and
    opening brackets, those in strings aside. (An empty list counts twice.)
    """
    if _separators(raw) <= most:  # with those in strings
        return False
    if b"\\" in raw:
        raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    if raw.count(b'"') > 4 * most:  # each value is at most two strings, its key and itself
        return True
    return _separators(b"".join(raw.split(b'"')[::2])) > most


def _separators(text: bytes) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{")


@contextmanager
def _no_collection(size: int) -> Iterator[None]:
    """Garbage is not collected meanwhile, for a text of LARGE bytes and more."""
    if size < LARGE or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


_HOLDERS = (dict, list)  # made once: `dict | list` would be made anew for each value


def _is_deeper(value: Json, depth: int) -> bool:
    """Whether `value` is nested more deeply than `depth` levels."""
    level: list[Json] = [value]
    for _ in range(depth):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, _HOLDERS)
        ]
        if not level:
            return False
    return True


def _too_deep(depth: int) -> InvalidJson:
    return InvalidJson(
        "The body is nested too deeply", {"path": "body", "expected": f"at most {depth} levels"}
    )


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a pair
        return False
    return "\0" not in text
