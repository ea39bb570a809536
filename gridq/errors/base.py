"""The base of every error, and its JSON form."""

from __future__ import annotations

import json
import math
from typing import Any, ClassVar

MAX_JSON_CHARACTERS = 64 * 1024
"""The longest error as JSON. Each script that handles an error copies it whole, so a stage that reports
megabytes would block the server, or the server would reject the text and the failure would go unrecorded.
"""

MAX_MESSAGE_CHARACTERS = 1000
"""Characters of a message. Nobody reads more, and what is longer repeats somebody's value."""

MAX_QUOTED_CHARACTERS = 80
"""Characters of a value that a message repeats (`quote`)."""

MAX_DETAIL_CHARACTERS = 2000
"""Characters that are kept of a text among KNOWN_DETAILS, of each text in an error that is too long, and of a
detail that is not JSON.
"""

MAX_PATH_CHARACTERS = 8000
"""Characters that are kept of a path: one through GRIDQ_MAX_DEPTH levels has fewer."""

KNOWN_DETAILS = frozenset({"path", "expected", "fix", "worker", "reason", "stage", "retry_after"})
"""Details for people to read; those that are kept if all of them together are too long."""


class GridError(Exception):
    """An error of gridq; every other error is a subclass.

    `message` says in one sentence what is wrong. `details` may hold `path` (the JSON path or file position at
    fault; for a failed stage its path in the graph), `expected`, `fix` (the smallest change that would help),
    `worker`, `reason` (the cause in the failing part's own words), `stage`, `retry_after` (seconds until the
    same seat may be used again) and anything else that is JSON.

    Each subclass has a stable `code`; its docstring says when it is raised, and `remedy` what you can do.
    """

    code: ClassVar[str] = "grid.error"
    remedy: ClassVar[str] = "Read `message` and `fix`."

    traceback: str = ""
    """Where the user's code raised. It stays on this machine: it is neither in the record nor in the JSON."""

    def __init__(self, message: str = "", details: dict[str, Any] | None = None) -> None:
        message, details = _truncate(message, MAX_MESSAGE_CHARACTERS), details or {}
        for name in KNOWN_DETAILS & details.keys():
            limit = MAX_PATH_CHARACTERS if name == "path" else MAX_DETAIL_CHARACTERS
            if isinstance(details[name], str) and len(details[name]) > limit:
                details = {**details, name: _truncate(details[name], limit)}
        super().__init__(message, details)
        self.message = message
        self.details: dict[str, Any] = details

    @property
    def path(self) -> str | None:
        return self.details.get("path")

    @property
    def stage(self) -> str | None:
        return self.details.get("stage")

    @property
    def worker(self) -> str | None:
        return self.details.get("worker")

    @property
    def reason(self) -> str | None:
        return self.details.get("reason")

    @property
    def expected(self) -> str | None:
        return self.details.get("expected")

    @property
    def fix(self) -> str | None:
        return self.details.get("fix")

    def __str__(self) -> str:
        text = f"{self.code}: {self.message}"
        if self.path and repr(self.path) not in self.message:
            text += f" (at {self.path})"
        if self.worker:
            text += f" (on {self.worker})"
        if self.expected:
            text += f"; expected {self.expected}"
        if self.reason and self.reason not in self.message:
            text += f"; {self.reason}"
        if self.fix:
            text += f". Fix: {self.fix}"
        return text

    def to_record(self) -> dict[str, Any]:
        """Return `{"error": class name, "code", "message", "details"}`, which `error_from_record` reads."""
        return {
            "error": type(self).__name__,
            "code": self.code,
            "message": self.message,
            "details": self.details,
        }

    def to_json(self) -> str:
        """Return `to_record` as compact JSON of at most MAX_JSON_CHARACTERS.

        Details that are not JSON become text, and long texts are cut, so that no error is lost because of
        its own details.
        """
        record = self.to_record()
        try:
            text = json.dumps(record, separators=(",", ":"), default=repr, allow_nan=False)
            if len(text) <= MAX_JSON_CHARACTERS:
                return text
            limit = MAX_DETAIL_CHARACTERS
        except (TypeError, ValueError, RecursionError):  # NaN, a cycle, a key that is not text
            limit = MAX_JSON_CHARACTERS
        record["message"] = _truncate(self.message, limit)
        record["details"] = {
            _truncate(str(key), limit): _to_short_json(value, limit) for key, value in self.details.items()
        }
        text = json.dumps(record, separators=(",", ":"), default=repr)
        if len(text) <= MAX_JSON_CHARACTERS:
            return text
        limit = MAX_DETAIL_CHARACTERS // 4  # one character may take twelve as JSON
        record["message"] = _truncate(self.message, limit)
        known = KNOWN_DETAILS & self.details.keys()
        record["details"] = {key: _to_short_json(self.details[key], limit) for key in known}
        return json.dumps(record, separators=(",", ":"), default=repr)


def _to_short_json(value: object, limit: int) -> object:
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a number of {value.bit_length()} bits"
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return (
        _truncate(value, limit)
        if isinstance(value, str)
        else repr(value)[: min(limit, MAX_DETAIL_CHARACTERS)]
    )


def _truncate(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


def quote(value: object) -> str:
    """Return how an error names a value that somebody sent: as JSON writes it, and never at length."""
    if isinstance(value, str):
        return repr(value) if len(value) <= MAX_QUOTED_CHARACTERS else f"{value[:MAX_QUOTED_CHARACTERS]!r}…"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    try:
        return _truncate(json.dumps(value), MAX_QUOTED_CHARACTERS)
    except (TypeError, ValueError):  # no JSON, or a number of thousands of digits
        return "a number" if isinstance(value, int) else f"a {type(value).__name__}"


def _subclasses(cls: type[GridError]) -> dict[str, type[GridError]]:
    found = {cls.__name__: cls}
    for sub in cls.__subclasses__():
        found.update(_subclasses(sub))
    return found


def error_from_record(record: dict[str, Any]) -> GridError:
    """Return the exception that `to_record` described.

    The class is found by its name, else by its code; if neither is known, the result is a plain GridError.
    """
    known = _subclasses(GridError)
    by_code = {cls.code: cls for cls in known.values() if "code" in vars(cls)}
    cls = known.get(str(record.get("error"))) or by_code.get(str(record.get("code")), GridError)
    message, details = str(record.get("message", "")), dict(record.get("details") or {})
    try:
        return cls(message, details)
    except TypeError:  # a class outside gridq with another constructor
        return GridError(message, details)
