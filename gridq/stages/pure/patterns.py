"""Regular expressions with RE2, whose time is linear in the text; with Python's `re` a pattern can hang."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from gridq.protocol.models import Json
from gridq.stages.pure.bounds import Clock, describe_kind, make_input_error

MAX_PATTERN_CHARACTERS = 1000
MAX_WORK = 1_000_000_000
"""Instructions of the compiled pattern times characters of the text: 13 s at worst, as measured."""


@lru_cache(maxsize=256)
def _compile(pattern: str) -> Any:
    import re2

    options = re2.Options()
    options.log_errors = False
    return re2.compile(pattern, options)


def compile_pattern(pattern: Json) -> Any:
    """Return the compiled `pattern`; raise StageError with RE2's reason if it is invalid."""
    if not isinstance(pattern, str):
        raise make_input_error(
            f"A pattern must be text, not {describe_kind(pattern)}", "a regular expression in RE2's syntax"
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
        text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise make_input_error(
            f"The pattern {pattern!r} is not a regular expression: {text}",
            "RE2's syntax, without back-references and look-around",
        ) from None
    except UnicodeEncodeError:
        raise make_input_error(
            "The pattern has half a surrogate pair", "text that UTF-8 can encode"
        ) from None


def find_all(regex: Any, text: str, clock: Clock) -> Iterator[Any]:
    """Yield the matches of `regex` in `text`, left to right.

    Raises StageError if the two together are too large.
    """
    if regex.programsize * len(text) > MAX_WORK:
        raise make_input_error(
            f"The pattern is too large for a text of {len(text)} characters",
            f"at most {MAX_WORK // regex.programsize} characters for this pattern",
            "use smaller repetition counts, or a shorter text",
        )
    try:
        for match in regex.finditer(text):
            # Each search is linear, but a pattern may scan to the end of the text for each match.
            clock.check()
            yield match
    except UnicodeEncodeError:
        raise make_input_error("The text has half a surrogate pair", "text that UTF-8 can encode") from None


def matches(regex: Any, text: str, clock: Clock) -> bool:
    """Return whether `regex` matches anywhere in `text`."""
    return next(find_all(regex, text, clock), None) is not None
