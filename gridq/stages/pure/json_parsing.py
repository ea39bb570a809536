"""Reading JSON strictly: no NaN, no number beyond a double, and, where asked, out of the prose around it."""

from __future__ import annotations

import json
import math
import re

from gridq.errors import StageError
from gridq.protocol.models import Json
from gridq.stages.pure.bounds import Clock, make_input_error

MAX_STARTS = 64
"""How many places in a text are tried as the start of a JSON value."""

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
    """The value of the JSON `text`; StageError with the place of the fault."""
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as exc:
        raise make_input_error(
            f"The text is not JSON: {exc.msg} at line {exc.lineno}, column {exc.colno}",
            "JSON text",
            'set "extract": true where the text holds JSON among prose' if _START.search(text) else "",
        ) from None
    except (ValueError, RecursionError) as exc:
        reason = "it is nested too deeply" if isinstance(exc, RecursionError) else str(exc)
        raise make_input_error(f"The text is not JSON: {reason}", "JSON text") from None


def extract(text: str, clock: Clock) -> Json:
    """The JSON value of a text that may say more: all of it, else the first whole record or list in it."""
    try:
        return parse(text)
    except StageError:
        pass
    for count, start in enumerate(_START.finditer(text)):
        if count == MAX_STARTS:
            break
        clock.look()
        try:
            return _DECODER.raw_decode(text, start.start())[0]
        except (ValueError, RecursionError):
            continue
    raise make_input_error(
        "The text holds no JSON record or list", f"one among its first {MAX_STARTS} brackets"
    )
