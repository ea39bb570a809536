"""A JSON or TOML text whose every complaint names the line and the key at which it stands."""

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
"""Bits."""


class ConfigText:
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
        if isinstance(data, int) and data.bit_length() > MAX_NUMBER_BITS:
            self.refuse(at, "A number has too many digits", f"a number below 2^{MAX_NUMBER_BITS}")
        if isinstance(data, dict):
            for key, value in data.items():
                self._sized(value, (*at, key) if named else at, named=named)
        elif isinstance(data, list):
            for value in data:
                self._sized(value, at, named=False)

    def refuse(self, key: tuple[str, ...], message: str, expected: str, fix: str | None = None) -> NoReturn:
        if self.flat:
            key = key[1:2]
        line = find_toml_line(self.text, key) if self.toml else find_json_lines(self.text).get(key, [1])[-1]
        self.complain(line, ".".join(key), message, {"expected": expected} | ({"fix": fix} if fix else {}))

    def complain(self, line: int, key: str, message: str, more: dict[str, str]) -> NoReturn:
        shown = f": {_escape_key(key)}" if key else ""
        raise QuotasFileError(message, {"path": f"{self.name}:{line}{shown}", **more})

    def _json(self) -> Any:
        try:
            data = json.loads(self.text, parse_float=_parse_decimal, parse_constant=Decimal)
        except json.JSONDecodeError as exc:
            self.complain(
                exc.lineno, f"column {exc.colno}", "The quotas file is no JSON", {"reason": exc.msg}
            )
        except (ValueError, RecursionError) as exc:
            self.complain(1, "", "The quotas file cannot be read as JSON", {"reason": str(exc)})
        for key, lines in find_json_lines(self.text).items():
            if len(lines) > 1:
                first = {"expected": f"each key once; it stands in line {lines[0]} too"}
                self.complain(lines[-1], ".".join(key), f"The key {key[-1]!r} stands twice", first)
        return data

    def _toml(self) -> Any:
        try:
            return tomllib.loads(self.text, parse_float=_parse_decimal)
        except tomllib.TOMLDecodeError as exc:
            message, _, place = str(exc).partition(" (at ")
            line = re.search(r"line (\d+)", place)
            number = int(line[1]) if line else self.text.count("\n") + 1
            told = {"reason": message}
            if "at the end of a table declaration" in message:  # such as [families.meta/llama-3]
                told["fix"] = "put a name that has more than letters, digits, - and _ into quotes"
            self.complain(number, "", "The quotas file is no TOML", told)
        except (ValueError, RecursionError) as exc:
            self.complain(1, "", "The quotas file cannot be read as TOML", {"reason": str(exc)})


def _parse_decimal(text: str) -> Decimal:
    """A number with a point or an exponent; not a number where the exponent is beyond all reason."""
    try:
        return Decimal(text)
    except InvalidOperation:
        return Decimal("NaN")


def _escape_key(key: str) -> str:
    """A key as it may be logged and sent: half a surrogate pair, which JSON can name, is no text."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in key)


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')


def find_json_lines(text: str) -> dict[tuple[str, ...], list[int]]:
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
            path[-1] = json.loads(word, strict=False) if "\\" in word else word[1:-1]
            found.setdefault(tuple(path), []).append(line)
            expects_key = False
    return found


def find_toml_line(text: str, key: tuple[str, ...]) -> int:
    """The line of valid TOML that brings `key` in, or as much of it as is there."""
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
    """The path and the line of each key of valid TOML, of tables too, in their order. What stands in a list
    has no path.
    """
    table: tuple[str, ...] = ()  # whose header was last
    path: tuple[str, ...] | None = ()  # of the key whose value is being read; None: it stands in a list
    inside: list[tuple[str, tuple[str, ...] | None]] = []  # the brackets that are open, each with its path
    parts: list[str] = []  # of a key
    expects_key, header = True, False
    line, at = 1, 0
    for token in _TOML.finditer(text):
        line += text.count("\n", at, token.start())
        at = token.start()
        word = token[0]
        if word == "\n":
            if not inside:
                parts, expects_key, header = [], True, False
        elif word == "." or word[0] == "#":
            continue
        elif header:
            if word not in "[]":
                parts.append(_name(word))
            elif parts:  # of the two that end [[a list]] the first
                table, parts = tuple(parts), []
                yield table, line
        elif word in "[{":
            header = expects_key
            if not header:
                listed = word == "[" or (inside and inside[-1][0] == "[")
                inside.append((word, None if listed else path))
                parts, expects_key = [], word == "{"
        elif word in "]}":
            inside.pop()
            expects_key = False
        elif word == ",":
            parts, expects_key = [], inside[-1][0] == "{"
        elif expects_key and word == "=":
            base = inside[-1][1] if inside else table
            path = None if base is None else (*base, *parts)
            expects_key = False
            if path is not None:
                yield path, line
        elif expects_key:
            parts.append(_name(word))


def _name(word: str) -> str:
    """A part of a TOML key."""
    if word[0] == '"' and "\\" in word:
        name: str = tomllib.loads(f"name = {word}")["name"]
        return name
    return word[1:-1] if word[0] in "\"'" else word
