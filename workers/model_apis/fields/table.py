"""The table of a translation: what becomes of each field of a request.

| use | what becomes of the field |
|---|---|
| passed | goes to the seat as it is, perhaps under another name |
| translated | code of the translation reads it |
| hint | left out: the answer is still one to what was asked; the client is told |
| refused | an error that names it: without it, the answer would be a different one |

A neutral value (null, false, an empty text, list or object, and what the row adds) is as good as none: it is
neither refused nor mentioned. The row decides alone where `neutral` is None. The translation gets no field
but those of its table, so the table cannot differ from the code.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from gridq.errors import StageError
from gridq.protocol.models import Json
from workers.model_apis.api_request import make_field_error

Drop = Callable[[str], None]
"""Told the place of each part of a request that is left out, such as `seed` or `tools[0].function.strict`."""

NUMBERS = re.compile(r"\[\d+\]")
EMPTY: tuple[Json, ...] = (False, "", [], {})


class Use(StrEnum):
    """What becomes of a field."""

    PASSED = "passed"
    TRANSLATED = "translated"
    HINT = "hint"
    REFUSED = "refused"


@dataclass(frozen=True)
class Rule:
    """The row of one field.

    `becomes` is its name in the translated request if it is passed, else words for the documentation.
    `neutral` are the values, besides null, that count as none. `expected` and `fix` are for its refusal.
    """

    use: Use
    becomes: str = ""
    neutral: tuple[Json, ...] = EMPTY
    expected: str = "absent"
    fix: str = ""

    def is_neutral(self, value: Json) -> bool:
        return value is None or any(_is_same(value, each) for each in self.neutral)


def _is_same(value: Json, other: Json) -> bool:
    """Return whether two values are equal. A boolean is no number here."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def passed(becomes: str = "") -> Rule:
    return Rule(Use.PASSED, becomes)


def translated(becomes: str = "") -> Rule:
    return Rule(Use.TRANSLATED, becomes)


def hint(*neutral: Json, about: str = "") -> Rule:
    """Return the rule of a field that may go. `neutral` are further values that count as none."""
    return Rule(Use.HINT, about, (*EMPTY, *neutral))


def refused(*neutral: Json, expected: str = "absent", about: str = "", fix: str = "") -> Rule:
    """Return the rule of a field that may not go. `neutral` are further values that count as none."""
    return Rule(Use.REFUSED, about, (*EMPTY, *neutral), expected, fix)


def always_refused(about: str = "", expected: str = "absent") -> Rule:
    """Return the rule of a field that means something even if it is empty."""
    return Rule(Use.REFUSED, about, (), expected)


UNKNOWN = always_refused(expected="absent, because gridq does not know its meaning")


class FieldTable:
    """What becomes of each field of a request for `path` at `target`.

    `place` says in an error where that is. Fields that no row names are refused if `refuses_unknown`, else
    passed.
    """

    def __init__(
        self,
        path: str,
        target: str,
        place: str,
        rules: Mapping[str, Rule],
        *,
        refuses_unknown: bool = True,
    ) -> None:
        self.path = path
        self.target = target
        self.place = place
        self.rules = rules
        self.refuses_unknown = refuses_unknown

    def vary(self, target: str, rules: Mapping[str, Rule]) -> FieldTable:
        """Return the table of a similar target, with some rows changed."""
        return FieldTable(
            self.path,
            target,
            self.place,
            {**self.rules, **rules},
            refuses_unknown=self.refuses_unknown,
        )

    def split(self, body: Mapping[str, Json], drop: Drop) -> tuple[dict[str, Json], dict[str, Json]]:
        """Return the fields that are passed, by their names at the target, and those to be translated.

        Null fields are in neither. `drop` is told each hint that is left out. Raises StageError naming a
        refused field.
        """
        kept: dict[str, Json] = {}
        rest: dict[str, Json] = {}
        unknown = UNKNOWN if self.refuses_unknown else passed()
        for name, value in body.items():
            rule = self.rules.get(name, unknown)
            if value is None:
                continue
            if rule.use is Use.PASSED:
                kept[rule.becomes or name] = value
            elif rule.use is Use.TRANSLATED:
                rest[name] = value
            elif rule.is_neutral(value):
                continue
            elif rule.use is Use.HINT:
                drop(name)
            else:
                raise make_field_error(name, f"{rule.expected} {self.place}", rule.fix or f"remove {name!r}")
        return kept, rest


def add_inner_hints(value: Mapping[str, Json], place: str, rules: Mapping[str, Rule], drop: Drop) -> None:
    """Tell `drop` the hints in an object at `place` that have no effect, by the rows of its own fields."""
    for name, rule in rules.items():
        if rule.use is Use.HINT and not rule.is_neutral(value.get(name)):
            drop(f"{place}.{name}")


def rename_place(place: str, names: Mapping[str, str]) -> str:
    """Return the client's name of a place in a translated request, whose numbers are not the client's.

    `names` are the client's, by those in the request that a first translation made.
    """
    place = NUMBERS.sub("[]", place)
    for name in sorted(names, key=len, reverse=True):
        if place == name or place.startswith((f"{name}.", f"{name}[")):
            return names[name] + place[len(name) :]
    return place


@contextlib.contextmanager
def rename_errors(names: Mapping[str, str]) -> Iterator[None]:
    """Have the errors of a second translation name the client's fields, as `rename_place` does."""
    try:
        yield
    except StageError as error:
        param, expected = error.details.get("param"), error.details.get("expected")
        if not isinstance(param, str) or not isinstance(expected, str):  # the endpoint's own
            raise
        renamed, fix = rename_place(param, names), error.details.get("fix")
        fix = f"remove {renamed!r}" if fix == f"remove {param!r}" else fix
        raise make_field_error(renamed, expected, fix if isinstance(fix, str) else None) from None


def ignore(place: str) -> None:
    """Do nothing: a `drop` for whoever has nobody to tell."""
