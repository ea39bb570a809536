"""The base of every error, and its form as JSON."""

from __future__ import annotations

import json
import math
from typing import Any, ClassVar

TOLD = 2000
"""Characters that are kept of a detail that is no JSON, and of each text in an error that is too long."""

LONGEST = 64 * 1024
"""Characters of an error as JSON. The server copies it whole in each script that meets it, so what a stage
says in many megabytes would keep everybody waiting, or not be taken at all, and its failure not be recorded.
"""

OURS = frozenset({"path", "expected", "fix", "worker", "reason", "stage", "retry_after"})
"""The details that are kept where all of them together are too many."""


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
        """`to_record` as compact JSON text of at most LONGEST characters. What in the details is no JSON is
        told in words, what is too long is cut: an error is never lost for the sake of what it says.
        """
        record = self.to_record()
        try:
            text = json.dumps(record, separators=(",", ":"), default=repr, allow_nan=False)
            if len(text) <= LONGEST:
                return text
            kept = TOLD
        except (TypeError, ValueError, RecursionError):  # a NaN, a cycle, a key that is no text
            kept = LONGEST
        record["message"] = _cut(self.message, kept)
        record["details"] = {_cut(str(key), kept): _told(value, kept) for key, value in self.details.items()}
        text = json.dumps(record, separators=(",", ":"), default=repr)
        if len(text) <= LONGEST:
            return text
        few = TOLD // 4  # as JSON a character may be twelve
        record["message"] = _cut(self.message, few)
        record["details"] = {key: _told(self.details[key], few) for key in OURS & self.details.keys()}
        return json.dumps(record, separators=(",", ":"), default=repr)


def _told(value: object, most: int) -> object:
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a number of {value.bit_length()} bits"
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return _cut(value, most) if isinstance(value, str) else repr(value)[: min(most, TOLD)]


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"


def _tree(cls: type[GridError]) -> dict[str, type[GridError]]:
    found = {cls.__name__: cls}
    for sub in cls.__subclasses__():
        found.update(_tree(sub))
    return found


def error_from_record(record: dict[str, Any]) -> GridError:
    """The exception that `to_record` described, by its class or else by its code; neither is known: a plain
    `GridError`.
    """
    tree = _tree(GridError)
    coded = {cls.code: cls for cls in tree.values() if "code" in vars(cls)}
    cls = tree.get(str(record.get("error"))) or coded.get(str(record.get("code")), GridError)
    message, details = str(record.get("message", "")), dict(record.get("details") or {})
    try:
        return cls(message, details)
    except TypeError:  # a class of somebody's own, made in another way
        return GridError(message, details)
