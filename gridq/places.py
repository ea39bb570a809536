"""A JSON or TOML text whose every complaint names the line and the key at which it stands."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

from gridq.errors import QuotasFileError

LONGEST_NUMBER = 256
"""Bits."""


class Text:
    """A quotas file's text; TOML where `name` ends in .toml, else JSON."""

    flat = False
    """Whether keys stand one level higher in the text than in what was read of it."""

    def __init__(self, text: str, name: str) -> None:
        self.text = text
        self.name = name
        self.toml = name.endswith(".toml")

    def read(self) -> Any:
        """What it holds, numbers with a point as Decimal. QuotasFileError."""
        data = self._toml() if self.toml else self._json()
        self._sized(data, ())
        return data

    def _sized(self, data: Any, at: tuple[str, ...], *, named: bool = True) -> None:
        """Refuse a number that is too long to be written as text, as TOML can state it in hexadecimal digits.
        What stands in a list stands at the list's own key.
        """
        if isinstance(data, int) and data.bit_length() > LONGEST_NUMBER:
            self.refuse(at, "A number has too many digits", f"a number below 2^{LONGEST_NUMBER}")
        if isinstance(data, dict):
            for key, value in data.items():
                self._sized(value, (*at, key) if named else at, named=named)
        elif isinstance(data, list):
            for value in data:
                self._sized(value, at, named=False)

    def refuse(self, key: tuple[str, ...], message: str, expected: str, fix: str | None = None) -> NoReturn:
        if self.flat:
            key = key[1:2]
        line = toml_line(self.text, key) if self.toml else json_lines(self.text).get(key, [1])[-1]
        self.complain(line, ".".join(key), message, {"expected": expected} | ({"fix": fix} if fix else {}))

    def complain(self, line: int, key: str, message: str, more: dict[str, str]) -> NoReturn:
        shown = f": {_printable(key)}" if key else ""
        raise QuotasFileError(message, {"path": f"{self.name}:{line}{shown}", **more})

    def _json(self) -> Any:
        try:
            data = json.loads(self.text, parse_float=_decimal, parse_constant=Decimal)
        except json.JSONDecodeError as exc:
            self.complain(
                exc.lineno, f"column {exc.colno}", "The quotas file is no JSON", {"reason": exc.msg}
            )
        except (ValueError, RecursionError) as exc:
            self.complain(1, "", "The quotas file cannot be read as JSON", {"reason": str(exc)})
        for key, lines in json_lines(self.text).items():
            if len(lines) > 1:
                first = {"expected": f"each key once; it stands in line {lines[0]} too"}
                self.complain(lines[-1], ".".join(key), f"The key {key[-1]!r} stands twice", first)
        return data

    def _toml(self) -> Any:
        try:
            return tomllib.loads(self.text, parse_float=_decimal)
        except tomllib.TOMLDecodeError as exc:
            message, _, place = str(exc).partition(" (at ")
            line = re.search(r"line (\d+)", place)
            number = int(line[1]) if line else self.text.count("\n") + 1
            self.complain(number, "", "The quotas file is no TOML", {"reason": message})
        except (ValueError, RecursionError) as exc:
            self.complain(1, "", "The quotas file cannot be read as TOML", {"reason": str(exc)})


def _decimal(text: str) -> Decimal:
    """A number with a point or an exponent; not a number where the exponent is beyond all reason."""
    try:
        return Decimal(text)
    except InvalidOperation:
        return Decimal("NaN")


def _printable(key: str) -> str:
    """A key as it may be logged and sent: half a surrogate pair, which JSON can name, is no text."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in key)


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')


def json_lines(text: str) -> dict[tuple[str, ...], list[int]]:
    """The lines on which each key of valid JSON stands, by its path; more than one where it stands twice."""
    found: dict[tuple[str, ...], list[int]] = {}
    path: list[str] = []
    inside: list[str] = []  # the brackets that are open
    expects_key = False
    line, at = 1, 0
    for token in _TOKEN.finditer(text):
        line += text.count("\n", at, token.start())
        at = token.start()
        word = token[0]
        if word in "{[":
            inside.append(word)
            path.append("")
            expects_key = word == "{"
        elif word in "}]":
            inside.pop()
            path.pop()
            expects_key = False
        elif word == ",":
            expects_key = inside[-1] == "{"
        elif expects_key and word[0] == '"':
            path[-1] = json.loads(word, strict=False)
            found.setdefault(tuple(path), []).append(line)
            expects_key = False
    return found


def toml_line(text: str, key: tuple[str, ...]) -> int:
    """The line of valid TOML that brings `key` in: the first up to which the text has it."""
    lines = text.splitlines()

    def has(count: int) -> bool:
        while True:  # within a value of several lines: as far as it goes
            try:
                found = tomllib.loads("\n".join(lines[:count]))
                break
            except tomllib.TOMLDecodeError:
                count += 1
        return _holds(found, key)

    return _first(has, len(lines))


def _holds(table: Any, key: tuple[str, ...]) -> bool:
    for part in key:
        if not isinstance(table, dict) or part not in table:
            return False
        table = table[part]
    return True


def _first(has: Callable[[int], bool], last: int) -> int:
    """The smallest number from 1 to `last` for which `has`, which then holds for all above it."""
    low, high = 1, max(last, 1)
    while low < high:
        middle = (low + high) // 2
        if has(middle):
            high = middle
        else:
            low = middle + 1
    return low
