"""The limits of pure stages, which may run on a router: time, output size, complexity of options."""

from __future__ import annotations

import time

from gridq.config.settings import settings
from gridq.errors import OutputTooLarge, StageError, StageTimeout

MAX_PURE_SECONDS = 10.0
"""The longest that a pure stage may run. Its options come from the graph's author, so every loop checks."""

MAX_PATH_CHARACTERS = 1000
MAX_PARTS = 1000
"""The most placeholders of a template, parts of a condition, or choices of an `in`."""

MAX_DEPTH = 32
"""The deepest nesting of conditions."""

_TICKS_PER_CHECK = 256


class Clock:
    """Stop a pure stage after MAX_PURE_SECONDS: call `tick` in every loop over the caller's data."""

    def __init__(self) -> None:
        self._end = time.monotonic() + MAX_PURE_SECONDS
        self._ticks = 0

    def tick(self) -> None:
        """Raise StageTimeout if the time is up; only every 256th call reads the clock."""
        self._ticks += 1
        if self._ticks % _TICKS_PER_CHECK == 0:
            self.check()

    def check(self) -> None:
        """Raise StageTimeout if the time is up."""
        if time.monotonic() > self._end:
            raise StageTimeout(
                f"The stage ran longer than the limit of pure stages, {MAX_PURE_SECONDS:g} s",
                {"fix": "give it less data, or a simpler pattern or template"},
            )


class OutputRoom:
    """Count the characters of a growing text, so that it is rejected before it is too large."""

    def __init__(self) -> None:
        self._left = settings().max_value

    def take(self, text: str) -> str:
        """Return `text`; raise OutputTooLarge if it does not fit any more."""
        self._left -= len(text)
        if self._left < 0:
            raise make_too_large_error(settings().max_value)
        return text


def make_too_large_error(limit: int, what: str = "The stage's output") -> OutputTooLarge:
    """Return the error for a value over `limit` bytes."""
    return OutputTooLarge(
        f"{what} is larger than {limit} bytes",
        {
            "expected": f"at most {limit} bytes",
            "fix": "return less, or raise GRIDQ_MAX_VALUE on every machine",
        },
    )


def make_input_error(message: str, expected: str = "", fix: str = "") -> StageError:
    """Return a StageError about the stage's input."""
    details = {"expected": expected, "fix": fix}
    return StageError(message, {name: text for name, text in details.items() if text})


def make_missing_option_error(name: str) -> StageError:
    """Return the StageError for an option that the stage needs and does not have."""
    return make_input_error(
        f"The option {name!r} is missing",
        f"{name!r} in the stage's config or its input record",
        f'add it to the config: "config": {{"{name}": …}}',
    )


def describe_kind(value: object) -> str:
    """Return the JSON type of `value` for messages."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "text"
    return "a list" if isinstance(value, list) else "a record"
