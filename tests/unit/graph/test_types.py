"""The structural types: spelling, and what fits what."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings

from gridq.errors import InvalidField, MissingField
from gridq.graph.types import (
    ANY,
    NULL,
    TEXT,
    find_mismatch,
    fits,
    infer_type,
    make_list,
    make_record,
    make_union,
    parse_type,
)
from tests.generators import values


def t(kind: str, *value: Any) -> dict[str, Any]:
    return {"kind": kind, "value": value[0]} if value else {"kind": kind}


T, N, A, NIL = t("Text"), t("Number"), t("Any"), t("Null")


def rec(**fields: Any) -> dict[str, Any]:
    return t("Record", fields)


SPELLINGS = [
    *(t(kind) for kind in ("Any", "Bool", "Bytes", "Null", "Number", "Text", "VNode")),
    t("List", T),
    t("Stream", t("List", N)),
    t("Map", {"key": T, "value": A}),
    rec(a=T, b=rec()),
    t("Union", [T, NIL]),
    t("Union", []),
    t("Var", "T"),
    t("RecordWith", {"fields": {"a": N}, "rest": "R"}),
    t("Refined", {"base": N, "refinement": {"kind": "Range", "min": 0}}),
]


@pytest.mark.parametrize("data", SPELLINGS)
def test_types_round_trip(data: dict[str, Any]) -> None:
    kind = parse_type(data, "input")
    assert kind.to_json() == data
    assert str(kind)
    assert fits(kind, kind)
    assert fits(kind, ANY)
    assert fits(ANY, kind)


@pytest.mark.parametrize(
    ("data", "error", "path"),
    [
        ("Text", InvalidField, "input"),
        (None, InvalidField, "input"),
        ({}, MissingField, "input.kind"),
        ({"kind": "Txt"}, InvalidField, "input.kind"),
        ({"kind": ["Text"]}, InvalidField, "input.kind"),
        ({"kind": "List"}, MissingField, "input.value"),
        (t("List", [T]), InvalidField, "input.value"),
        (t("Union", T), InvalidField, "input.value"),
        (t("Union", [T, "x"]), InvalidField, "input.value[1]"),
        (rec(a=T, b={"kind": "x"}), InvalidField, "input.value.b.kind"),
        (t("Map", {"key": T}), InvalidField, "input.value"),
        (t("RecordWith", {"fields": [], "rest": "R"}), InvalidField, "input.value.fields"),
        (t("Var", 1), InvalidField, "input.value"),
    ],
)
def test_wrong_types_name_the_path(data: Any, error: type[Exception], path: str) -> None:
    with pytest.raises(error) as caught:
        parse_type(data, "input")
    assert caught.value.path == path  # type: ignore[attr-defined]


def test_deep_types_are_refused_and_types_of_deep_values_are_cut() -> None:
    data: Any = T
    value: Any = 1
    for _ in range(150):
        data, value = t("List", data), {"a": [value]}
    with pytest.raises(InvalidField):
        parse_type(data, "input")
    assert infer_type(value).depth < 20
    kind = TEXT
    for _ in range(500):
        kind = make_record({"a": make_list(kind)})
    assert kind.depth < 64


FITS = [
    (T, T),
    (T, t("Union", [N, T])),
    (t("Union", [T, N]), t("Union", [N, T, NIL])),
    (rec(a=T, b=N), rec(a=T)),
    (rec(a=T), rec()),
    (rec(a=T), rec(a=T, b=t("Union", [N, NIL]))),
    (rec(a=T), rec(a=T, b=A)),
    (rec(a=rec(x=T, y=T)), rec(a=rec(x=T))),
    (t("List", T), t("List", A)),
    (t("Map", {"key": T, "value": N}), t("Map", {"key": T, "value": A})),
    (rec(a=N), t("Map", {"key": T, "value": N})),
    (t("Map", {"key": T, "value": N}), rec(a=N)),
    (rec(a=T), t("RecordWith", {"fields": {"a": T}, "rest": "R"})),
    (t("RecordWith", {"fields": {"a": T}, "rest": "R"}), rec(a=T, b=N)),
    (t("Var", "T"), N),
    (N, t("Var", "T")),
    (t("Refined", {"base": N, "refinement": 1}), N),
    (N, t("Refined", {"base": N, "refinement": 1})),
]
FITS_NOT = [
    (T, N),
    (NIL, T),
    (T, NIL),
    (t("Union", [T, NIL]), T),
    (rec(a=T), rec(a=N)),
    (rec(a=T), rec(a=T, b=N)),
    (T, rec()),
    (rec(), T),
    (rec(), t("List", A)),
    (t("List", T), t("List", N)),
    (t("List", T), t("Stream", T)),
    (rec(a=T), t("Map", {"key": T, "value": N})),
    (t("RecordWith", {"fields": {"a": T}, "rest": "R"}), rec(a=N)),
    (t("VNode"), T),
    (t("Bytes"), T),
    (t("Refined", {"base": N, "refinement": 1}), T),
]


@pytest.mark.parametrize(("output", "wanted"), FITS)
def test_a_compatible_type_fits(output: Any, wanted: Any) -> None:
    assert fits(parse_type(output, ""), parse_type(wanted, ""))


@pytest.mark.parametrize(("output", "wanted"), FITS_NOT)
def test_an_incompatible_type_does_not_fit(output: Any, wanted: Any) -> None:
    assert not fits(parse_type(output, ""), parse_type(wanted, ""))


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(values(), values())
def test_a_values_type_fits_itself_and_its_unions(one: Any, other: Any) -> None:
    kind = infer_type(one)
    assert fits(kind, kind)
    assert fits(kind, make_union((infer_type(other), kind)))
    assert parse_type(kind.to_json(), "") == kind or kind.depth > 8


def test_unions_are_flat() -> None:
    assert make_union((TEXT, make_union((NULL, TEXT)))) == make_union((TEXT, NULL))
    assert make_union((TEXT, TEXT)) == TEXT
    assert make_union((TEXT, ANY)) == ANY


@given(values(), values())
@settings(max_examples=300)
def test_a_value_has_a_type_exactly_if_its_own_type_fits(value: Any, other: Any) -> None:
    for wanted in (infer_type(other), infer_type(value), ANY):
        assert (find_mismatch(value, wanted) is None) == fits(infer_type(value), wanted)


@pytest.mark.parametrize(
    ("value", "wanted", "place"),
    [
        (True, N, ""),
        ({"a": [1, "b"]}, rec(a=t("List", N)), "a[1]"),
        ({}, rec(a=N), "a"),
        ({"k": 1}, t("Map", {"key": T, "value": T}), "k"),
        ({"x": 1}, t("RecordWith", {"fields": {"x": T}, "rest": "R"}), "x"),
        (1, t("Union", [T, NIL]), ""),
        ("a", t("Refined", {"base": N, "refinement": {}}), ""),
    ],
)
def test_a_mismatch_is_found_at_its_place(value: Any, wanted: dict[str, Any], place: str) -> None:
    found = find_mismatch(value, parse_type(wanted, "input"))
    assert found is not None
    assert found[0] == place


def test_a_nullable_field_may_be_absent_and_what_json_lacks_is_not_checked() -> None:
    assert find_mismatch({}, parse_type(rec(a=t("Union", [T, NIL])), "input")) is None
    assert find_mismatch("aGk=", parse_type(t("Bytes"), "input")) is None
    assert find_mismatch([1], parse_type(t("Stream", N), "input")) is None


@pytest.mark.parametrize("kind", ["List", "Map", "Record", "Union"])
def test_a_type_without_its_value_shows_one_that_is_whole(kind: str) -> None:
    with pytest.raises(MissingField) as caught:
        parse_type({"kind": kind}, "input")
    example, _ = json.JSONDecoder().raw_decode(caught.value.details["fix"].removeprefix("write "))
    assert parse_type(example, "input").kind == kind
