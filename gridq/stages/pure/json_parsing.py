"""Strict JSON parsing: no NaN, no number beyond a double; on request, out of surrounding prose."""

from __future__ import annotations

import json
import math
import re

from gridq.errors import StageError
from gridq.protocol.models import Json
from gridq.stages.pure.bounds import Clock, make_input_error

MAX_STARTS = 64
"""The most places in a text to try as the start of a JSON value."""

_START = re.compile(r"[\[{]")


def _reject_constant(name: str) -> Json:
    raise ValueError(f"{name} is not JSON")


def _parse_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is too large for a number")
    return number


_DECODER = json.JSONDecoder(parse_constant=_reject_constant, parse_float=_parse_float)


def parse(text: str) -> Json:
    """Return the value of the JSON `text`; raise StageError with the line and column at fault."""
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as exc:
        raise make_input_error(
            f"The text is not JSON: {exc.msg} at line {exc.lineno}, column {exc.colno}",
            "JSON text",
            'set "extract": true if the text has JSON within prose' if _START.search(text) else "",
        ) from None
    except (ValueError, RecursionError) as exc:
        reason = "it is nested too deeply" if isinstance(exc, RecursionError) else str(exc)
        raise make_input_error(f"The text is not JSON: {reason}", "JSON text") from None


def extract(text: str, clock: Clock) -> Json:
    """Return the JSON value of the whole text, or else the first complete record or list in it."""
    try:
        return parse(text)
    except StageError:
        pass
    for count, start in enumerate(_START.finditer(text)):
        if count == MAX_STARTS:
            break
        clock.check()
        try:
            return _DECODER.raw_decode(text, start.start())[0]
        except (ValueError, RecursionError):
            continue
    raise make_input_error(
        "The text has no JSON record or list", f"one within its first {MAX_STARTS} brackets"
    )
