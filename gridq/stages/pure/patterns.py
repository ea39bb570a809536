"""Regular expressions by RE2, in time linear in the text; a pattern for Python's own can hang a process."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from gridq.protocol.models import Json
from gridq.stages.pure.bounds import Clock, describe_kind, make_input_error

MAX_PATTERN_CHARACTERS = 1000
"""Characters of a pattern."""

MAX_WORK = 1_000_000_000
"""Instructions of the compiled pattern times characters of the text: 13 s at worst, by measurement."""


@lru_cache(maxsize=256)
def _compile(pattern: str) -> Any:
    import re2

    options = re2.Options()
    options.log_errors = False
    return re2.compile(pattern, options)


def compile_pattern(pattern: Json) -> Any:
    """The compiled `pattern`; StageError with RE2's reason where it is none."""
    if not isinstance(pattern, str):
        raise make_input_error(
            f"A pattern must be a text, not {describe_kind(pattern)}", "a regular expression in RE2's syntax"
        )
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        raise make_input_error(
            f"The pattern has {len(pattern)} characters", f"at most {MAX_PATTERN_CHARACTERS} characters"
        )
    import re2

    try:
        return _compile(pattern)
    except re2.error as exc:
        reason = exc.args[0] if exc.args else b""
        said = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise make_input_error(
            f"The pattern {pattern!r} is not a regular expression: {said}",
            "RE2's syntax: no back-references, no look-around",
        ) from None
    except UnicodeEncodeError:
        raise make_input_error(
            "The pattern holds half a surrogate pair", "text that UTF-8 can encode"
        ) from None


def find_all(regex: Any, text: str, clock: Clock) -> Iterator[Any]:
    """The matches of `regex` in `text`, left to right; StageError where both together are too large."""
    if regex.programsize * len(text) > MAX_WORK:
        raise make_input_error(
            f"The pattern is too large for a text of {len(text)} characters",
            f"at most {MAX_WORK // regex.programsize} characters for this pattern",
            "use smaller repetition counts, or a shorter text",
        )
    try:
        for match in regex.finditer(text):
            # Each search is linear, but a pattern may scan to the end of the text for each match.
            clock.look()
            yield match
    except UnicodeEncodeError:
        raise make_input_error("The text holds half a surrogate pair", "text that UTF-8 can encode") from None


def matches(regex: Any, text: str, clock: Clock) -> bool:
    """Whether `regex` matches anywhere in `text`."""
    return next(find_all(regex, text, clock), None) is not None
