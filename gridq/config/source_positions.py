"""A JSON or TOML text whose errors name the line and the key at fault."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from itertools import takewhile
from typing import Any, NoReturn

from gridq.errors import QuotasFileError

MAX_NUMBER_BITS = 256


class ConfigText:
    """The text of a quotas file: TOML if `name` ends in .toml, else JSON."""

    flat = False
    """True if the keys in the text are one level higher than in the parsed data."""

    def __init__(self, text: str, name: str) -> None:
        self.text = text
        self.name = name
        self.toml = name.endswith(".toml")

    def parse(self) -> Any:
        """Return the parsed data, with Decimal for numbers that are not integers; raise QuotasFileError."""
        data = self._parse_toml() if self.toml else self._parse_json()
        self._check_numbers(data, ())
        return data

    def _check_numbers(self, data: Any, at: tuple[str, ...], *, named: bool = True) -> None:
        """Reject numbers that are too long to be converted to text, which TOML allows in hexadecimal.

        A value in a list is reported at the list's key.
        """
        if isinstance(data, int) and data.bit_length() > MAX_NUMBER_BITS:
            self.refuse(at, "A number has too many digits", f"a number below 2^{MAX_NUMBER_BITS}")
        if isinstance(data, dict):
            for key, value in data.items():
                self._check_numbers(value, (*at, key) if named else at, named=named)
        elif isinstance(data, list):
            for value in data:
                self._check_numbers(value, at, named=False)

    def refuse(self, key: tuple[str, ...], message: str, expected: str, fix: str | None = None) -> NoReturn:
        """Raise QuotasFileError for the value at `key`."""
        if self.flat:
            key = key[1:2]
        line = find_toml_line(self.text, key) if self.toml else find_json_lines(self.text).get(key, [1])[-1]
        self.complain(line, ".".join(key), message, {"expected": expected} | ({"fix": fix} if fix else {}))

    def complain(self, line: int, key: str, message: str, more: dict[str, str]) -> NoReturn:
        """Raise QuotasFileError for `line`; `more` holds the error's other details."""
        shown = f": {_escape_key(key)}" if key else ""
        raise QuotasFileError(message, {"path": f"{self.name}:{line}{shown}", **more})

    def _parse_json(self) -> Any:
        try:
            data = json.loads(self.text, parse_float=_parse_decimal, parse_constant=Decimal)
        except json.JSONDecodeError as exc:
            self.complain(
                exc.lineno, f"column {exc.colno}", "The quotas file is not JSON", {"reason": exc.msg}
            )
        except (ValueError, RecursionError) as exc:
            self.complain(1, "", "The quotas file cannot be read as JSON", {"reason": str(exc)})
        for key, lines in find_json_lines(self.text).items():
            if len(lines) > 1:
                first = {"expected": f"each key once; it is also in line {lines[0]}"}
                self.complain(lines[-1], ".".join(key), f"The key {key[-1]!r} appears twice", first)
        return data

    def _parse_toml(self) -> Any:
        try:
            return tomllib.loads(self.text, parse_float=_parse_decimal)
        except tomllib.TOMLDecodeError as exc:
            message, _, place = str(exc).partition(" (at ")
            line = re.search(r"line (\d+)", place)
            number = int(line[1]) if line else self.text.count("\n") + 1
            details = {"reason": message}
            if "at the end of a table declaration" in message:  # such as [families.meta/llama-3]
                details["fix"] = "quote names with other characters than letters, digits, - and _"
            self.complain(number, "", "The quotas file is not TOML", details)
        except (ValueError, RecursionError) as exc:
            self.complain(1, "", "The quotas file cannot be read as TOML", {"reason": str(exc)})


def _parse_decimal(text: str) -> Decimal:
    """Return a number with a point or an exponent; NaN if the exponent is too large for a Decimal."""
    try:
        return Decimal(text)
    except InvalidOperation:
        return Decimal("NaN")


def _escape_key(key: str) -> str:
    """Return a key that can be logged and sent: JSON keys may have lone surrogates."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in key)


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')


def find_json_lines(text: str) -> dict[tuple[str, ...], list[int]]:
    """Return the lines of each key in valid JSON, by its path; a duplicate key has several."""
    found: dict[tuple[str, ...], list[int]] = {}
    path: list[str] = []
    open_brackets: list[str] = []
    expects_key = False
    line, at = 1, 0
    for token in _TOKEN.finditer(text):
        line += text.count("\n", at, token.start())
        at = token.start()
        word = token[0]
        if word in "{[":
            open_brackets.append(word)
            path.append("")
            expects_key = word == "{"
        elif word in "}]":
            open_brackets.pop()
            path.pop()
            expects_key = False
        elif word == ",":
            expects_key = open_brackets[-1] == "{"
        elif expects_key and word[0] == '"':
            path[-1] = json.loads(word, strict=False) if "\\" in word else word[1:-1]
            found.setdefault(tuple(path), []).append(line)
            expects_key = False
    return found


def find_toml_line(text: str, key: tuple[str, ...]) -> int:
    """Return the line in valid TOML that defines `key`, or the longest part of it that is defined."""
    most, line = 0, 1
    for path, at in iterate_toml_keys(text) if key else ():
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(path, key, strict=False)))
        if common > most:
            most, line = common, at
        if common == len(key):
            break
    return line


_TOML = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*"{3,5}'
    r"|'''(?:[^']|'(?!''))*'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'"
    r"|#[^\n]*|\n|[\[\]{}=,.]|[^\s\[\]{}=,.#\"']+",
    re.DOTALL,
)


def iterate_toml_keys(text: str) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield the path and the line of each key and table in valid TOML, in order.

    Keys inside lists are left out.
    """
    table: tuple[str, ...] = ()  # the table of the last header
    path: tuple[str, ...] | None = ()  # of the key whose value is being read; None inside a list
    open_brackets: list[tuple[str, tuple[str, ...] | None]] = []  # each with its path
    parts: list[str] = []  # of the current key
    expects_key, header = True, False
    line, at = 1, 0
    for token in _TOML.finditer(text):
        line += text.count("\n", at, token.start())
        at = token.start()
        word = token[0]
        if word == "\n":
            if not open_brackets:
                parts, expects_key, header = [], True, False
        elif word == "." or word[0] == "#":
            continue
        elif header:
            if word not in "[]":
                parts.append(_unquote(word))
            elif parts:  # at the first bracket of the two that end [[a list]]
                table, parts = tuple(parts), []
                yield table, line
        elif word in "[{":
            header = expects_key
            if not header:
                listed = word == "[" or (open_brackets and open_brackets[-1][0] == "[")
                open_brackets.append((word, None if listed else path))
                parts, expects_key = [], word == "{"
        elif word in "]}":
            open_brackets.pop()
            expects_key = False
        elif word == ",":
            parts, expects_key = [], open_brackets[-1][0] == "{"
        elif expects_key and word == "=":
            base = open_brackets[-1][1] if open_brackets else table
            path = None if base is None else (*base, *parts)
            expects_key = False
            if path is not None:
                yield path, line
        elif expects_key:
            parts.append(_unquote(word))


def _unquote(word: str) -> str:
    """Return one part of a TOML key, without quotes."""
    if word[0] == '"' and "\\" in word:
        name: str = tomllib.loads(f"name = {word}")["name"]
        return name
    return word[1:-1] if word[0] in "\"'" else word
