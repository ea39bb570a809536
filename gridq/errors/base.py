"""The base of every error, and its form as JSON."""

from __future__ import annotations

import json
from typing import Any, ClassVar

TOLD = 2000
"""Characters that are kept of a detail that is no JSON."""


class GridError(Exception):
    """The base of every gridq error.

    `message` says in one sentence what is wrong. `details` may hold `path` (the JSON path or file position at
    fault, for a failed stage its path in the graph), `expected`, `fix` (the smallest change that would help),
    `worker`, `reason` (the cause in the failing part's own words), `stage`, `retry_after` (seconds until the
    same seat may be asked again) and anything else that is JSON.
    """

    code: ClassVar[str] = "grid.error"

    def __init__(self, message: str = "", details: dict[str, Any] | None = None) -> None:
        super().__init__(message, details or {})
        self.message = message
        self.details: dict[str, Any] = details or {}

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
        if self.path:
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
        """`{"error": class name, "code", "message", "details"}`, which `error_from_record` reads."""
        return {
            "error": type(self).__name__,
            "code": self.code,
            "message": self.message,
            "details": self.details,
        }

    def to_json(self) -> str:
        """`to_record` as compact JSON text. What in the details is no JSON is told in words: an error is
        never lost for the sake of what it says.
        """
        record = self.to_record()
        try:
            return json.dumps(record, separators=(",", ":"), default=repr, allow_nan=False)
        except (TypeError, ValueError, RecursionError):  # a NaN, a cycle, a key that is no text
            told = {str(k): v if isinstance(v, str) else repr(v)[:TOLD] for k, v in self.details.items()}
            record["details"] = told
            return json.dumps(record, separators=(",", ":"), default=repr)


def _tree(cls: type[GridError]) -> dict[str, type[GridError]]:
    found = {cls.__name__: cls}
    for sub in cls.__subclasses__():
        found.update(_tree(sub))
    return found


def error_from_record(record: dict[str, Any]) -> GridError:
    """The exception that `to_record` described; an unknown class becomes a plain `GridError`."""
    cls = _tree(GridError).get(str(record.get("error")), GridError)
    message, details = str(record.get("message", "")), dict(record.get("details") or {})
    try:
        return cls(message, details)
    except TypeError:  # a class of somebody's own, made in another way
        return GridError(message, details)
