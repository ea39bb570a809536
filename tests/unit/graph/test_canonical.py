"""Canonical JSON by RFC 8785, and composition ids."""

from __future__ import annotations

import hashlib
import json
import math
import random
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridq.errors import ValueNotJson
from gridq.graph.canonical import canonical_json, canonicalize, compute_composition_id, format_number
from gridq.graph.nodes import parse, to_json
from tests.generators import graphs, values

# RFC 8785, appendix B: the double's bits, its text.
DOUBLES = [
    (0x0000000000000000, "0"),
    (0x8000000000000000, "0"),
    (0x0000000000000001, "5e-324"),
    (0x8000000000000001, "-5e-324"),
    (0x7FEFFFFFFFFFFFFF, "1.7976931348623157e+308"),
    (0xFFEFFFFFFFFFFFFF, "-1.7976931348623157e+308"),
    (0x4340000000000000, "9007199254740992"),
    (0xC340000000000000, "-9007199254740992"),
    (0x4430000000000000, "295147905179352830000"),
    (0x44B52D02C7E14AF5, "9.999999999999997e+22"),
    (0x44B52D02C7E14AF6, "1e+23"),
    (0x44B52D02C7E14AF7, "1.0000000000000001e+23"),
    (0x444B1AE4D6E2EF4E, "999999999999999700000"),
    (0x444B1AE4D6E2EF4F, "999999999999999900000"),
    (0x444B1AE4D6E2EF50, "1e+21"),
    (0x3EB0C6F7A0B5ED8C, "9.999999999999997e-7"),
    (0x3EB0C6F7A0B5ED8D, "0.000001"),
    (0x41B3DE4355555553, "333333333.3333332"),
    (0x41B3DE4355555554, "333333333.33333325"),
    (0x41B3DE4355555555, "333333333.3333333"),
    (0x41B3DE4355555556, "333333333.3333334"),
    (0x41B3DE4355555557, "333333333.33333343"),
    (0xBECBF647612F3696, "-0.0000033333333333333333"),
    (0x43143FF3C1CB0959, "1424953923781206.2"),
]


@pytest.mark.parametrize(("bits", "text"), DOUBLES)
def test_doubles_are_formatted_like_ecmascript(bits: int, text: str) -> None:
    (value,) = struct.unpack(">d", bits.to_bytes(8, "big"))
    assert format_number(value) == text


@settings(max_examples=500, deadline=None, derandomize=True, database=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_double_is_read_back_the_same(value: float) -> None:
    assert float(format_number(value)) == value


def test_the_rfc_example_is_reproduced() -> None:
    text = (
        '{"numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],'
        '"string": "\\u20ac$\\u000F\\u000aA\'\\u0042\\u0022\\u005c\\\\\\"\\/",'
        '"literals": [null, true, false]}'
    )
    expected = (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )
    assert canonical_json(json.loads(text)).decode() == expected


def test_keys_are_ordered_by_utf16() -> None:
    keys = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6", "</script>"]
    ordered = json.loads(canonical_json(dict.fromkeys(keys, 0)))
    assert list(ordered) == ["\r", "1", "</script>", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]


def test_big_integers_are_written_exactly() -> None:
    assert (
        canonical_json([2**53, 2**53 + 1, -(10**40)])
        == b"[9007199254740992,9007199254740993,-1" + b"0" * 40 + b"]"
    )
    one, two = (parse({"root": {"op": "Const", "value": 2**64 + i}}) for i in (0, 1))
    assert compute_composition_id(one) != compute_composition_id(two)


def test_whole_doubles_and_integers_are_equal() -> None:
    assert canonical_json([1.0, 1, -0.0, 1e20]) == b"[1,1,0,100000000000000000000]"


@pytest.mark.parametrize("value", [math.nan, math.inf, {1: 2}, {1}, object()])
def test_values_that_are_not_json_are_refused(value: Any) -> None:
    with pytest.raises(ValueNotJson):
        canonical_json({"x": [value]})


def test_lone_surrogates_and_deep_values_are_accepted() -> None:
    assert canonical_json("\ud800") != canonical_json("\ud801")
    deep: Any = 1
    for _ in range(5000):
        deep = [{"a": deep}]
    assert canonical_json(deep).count(b"[") == 5000


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(values(), st.integers(0, 2**32))
def test_canonical_text_does_not_depend_on_key_order(value: Any, seed: int) -> None:
    order = random.Random(seed)

    def shuffled(part: Any) -> Any:
        if isinstance(part, dict):
            keys = list(part)
            order.shuffle(keys)
            return {key: shuffled(part[key]) for key in keys}
        return [shuffled(item) for item in part] if isinstance(part, list) else part

    text = canonical_json(value)
    assert canonical_json(shuffled(value)) == text
    assert json.loads(text.decode("utf-8", "surrogatepass")) == value


# -- composition ids ----------------------------------------------------------------------------------------

Node = dict[str, Any]
A, B, C = ({"op": "Stage", "id": name} for name in "abc")


def seq(*stages: Node) -> Node:
    return {"op": "Sequential", "stages": list(stages)}


def retry(stage: Node, attempts: int, **more: Any) -> Node:
    return {"op": "Retry", "stage": stage, "max_attempts": attempts, **more}


def let(body: Node, **bindings: Node) -> Node:
    return {"op": "Let", "bindings": bindings, "body": body}


def id_of(root: Node, **head: Any) -> str:
    return compute_composition_id(parse({"root": root, **head}))


def test_the_id_is_the_hash_of_the_canonical_root() -> None:
    root = seq(A, {"op": "Const", "value": {"b": 1.0, "a": None}})
    text = '{"op":"Sequential","stages":[{"id":"a","op":"Stage"},{"op":"Const","value":{"a":null,"b":1}}]}'
    assert id_of(root) == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    ("root", "same"),
    [
        (seq(A), A),
        (seq(seq(A, seq(B)), C), seq(A, B, C)),
        (seq(seq(seq(A))), A),
        (retry(A, 1), A),
        (retry(A, 1, delay_ms=5), A),
        (retry(retry(A, 2, delay_ms=5), 3, delay_ms=5), retry(A, 6, delay_ms=5)),
        (retry(seq(retry(retry(A, 2), 2)), 2), retry(A, 8)),
        (retry(retry(A, 1, delay_ms=7), 3), retry(A, 3)),
        (let(A), A),
        (seq(let(seq(A, B)), C), seq(A, B, C)),
        (let(seq(A), x=seq(B)), let(A, x=B)),
        ({**A, "pinning": "signature", "config": None, "_comment": "x"}, A),
        (retry(A, 2, delay_ms=None), retry(A, 2)),
        (
            {"op": "Parallel", "branches": {"x": A, "y": B}},
            {"op": "Parallel", "branches": {"y": B, "x": seq(A)}},
        ),
        (
            {"op": "Branch", "predicate": seq(A), "if_true": seq(B), "if_false": seq(C)},
            {"op": "Branch", "predicate": A, "if_true": B, "if_false": C},
        ),
        (
            {"op": "Merge", "sources": [seq(A), B], "target": seq(C)},
            {"op": "Merge", "sources": [A, B], "target": C},
        ),
        (
            {"op": "Fanout", "source": seq(A), "targets": [seq(B)]},
            {"op": "Fanout", "source": A, "targets": [B]},
        ),
    ],
)
def test_equivalent_graphs_have_the_same_id(root: Node, same: Node) -> None:
    assert id_of(root) == id_of(same)


@pytest.mark.parametrize(
    ("root", "other"),
    [
        (seq(A, B), seq(B, A)),
        (retry(retry(A, 2, delay_ms=5), 3, delay_ms=6), retry(A, 6, delay_ms=5)),
        (retry(A, 2), A),
        (let(A, x=B), A),
        ({**A, "pinning": "both"}, A),
        ({**A, "config": {}}, A),
        ({**A, "config": {"x": 1}}, {**A, "config": {"x": 2}}),
        (
            {"op": "Fanout", "source": A, "targets": [B, C]},
            {"op": "Fanout", "source": A, "targets": [C, B]},
        ),
    ],
)
def test_different_graphs_have_different_ids(root: Node, other: Node) -> None:
    assert id_of(root) != id_of(other)


def test_description_version_and_unknown_keys_do_not_count() -> None:
    assert id_of(A, description="x", version="9", _note=1) == id_of(A)


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(graphs())
def test_rewriting_twice_changes_nothing(data: Any) -> None:
    once = canonicalize(parse(data).root)
    assert to_json(canonicalize(once)) == to_json(once)
