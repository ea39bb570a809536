"""What bounds a pure stage, since it may run on a router: its time, its output, what it is told to do."""

from __future__ import annotations

import time

from gridq.config.settings import settings
from gridq.errors import OutputTooLarge, StageError, StageTimeout

MAX_PURE_SECONDS = 10.0
"""The longest a pure stage may take. What it is told comes from the graph's author, so each loop looks."""

MAX_PATH_CHARACTERS = 1000
"""Characters of a path."""

MAX_PARTS = 1000
"""Placeholders of a template, parts of a condition, choices of an `in`."""

MAX_DEPTH = 32
"""How deep conditions may nest."""

_TICKS_PER_CHECK = 256


class Clock:
    """Stops a pure stage that has run for `seconds`: `tick` in every loop over the caller's data."""

    def __init__(self, seconds: float = MAX_PURE_SECONDS) -> None:
        self._end = time.monotonic() + seconds
        self._seconds = seconds
        self._ticks = 0

    def tick(self) -> None:
        """StageTimeout when the time is up; looks at the time once in 256 calls."""
        self._ticks += 1
        if self._ticks % _TICKS_PER_CHECK == 0:
            self.look()

    def look(self) -> None:
        """StageTimeout when the time is up."""
        if time.monotonic() > self._end:
            raise StageTimeout(
                f"The stage ran longer than a pure stage may ({self._seconds:g} s)",
                {"fix": "give it less data, or a simpler pattern or template"},
            )


class OutputRoom:
    """Counts the characters of a text that grows, so that it is refused before it is built."""

    def __init__(self) -> None:
        self._left = settings().max_value

    def take(self, text: str) -> str:
        """`text` itself; OutputTooLarge where it does not fit any more."""
        self._left -= len(text)
        if self._left < 0:
            raise make_too_large_error(settings().max_value)
        return text


def make_too_large_error(limit: int, what: str = "The stage's output") -> OutputTooLarge:
    """The error for a value over `limit` bytes."""
    return OutputTooLarge(
        f"{what} is over {limit} bytes",
        {
            "expected": f"at most {limit} bytes",
            "fix": "make less of it, or raise GRIDQ_MAX_VALUE on every node",
        },
    )


def make_input_error(message: str, expected: str = "", fix: str = "") -> StageError:
    """A StageError about the stage's input."""
    details = {"expected": expected, "fix": fix}
    return StageError(message, {name: text for name, text in details.items() if text})


def describe_kind(value: object) -> str:
    """What JSON calls the type of `value`, for messages."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a text"
    return "a list" if isinstance(value, list) else "a record"
