"""A request's body: what is JSON, what is too much of it, and what each says."""

from __future__ import annotations

import asyncio
import gc
import json
from typing import Any

import pytest
from starlette.types import Message

from gridq.errors import GridError, InputTooLarge, InvalidJson
from gridq.gateway.http.body_memory import LARGE_BODY_BYTES
from gridq.gateway.http.request_body import MAX_VALUES, check_keys, parse_body, read_json
from gridq.store import values

VALUES = [
    "0", "-0", "-0.0", "1.50", "1.0e2", "1E5", "0.1", "1e-400", "5e-324", "1.7976931348623157e308", "1e400",
    "9223372036854775808", "18446744073709551615", "18446744073709551616", "-9223372036854775809",
    "123456789012345678901234567890", "9" * 4300, '"\\ud800"', '"\\udc00x"', '{"\\ud800":"\\ud83d"}',
    '"\\ud83d\\ude00 \\u00fc\\u0000\\/"', '"\x7f ü 😀"', '{"a":1,"b":2,"a":3}', " [ 1 ,\t2\r\n] ", "[[[[]]]]",
    '"1234567890123456789012"', '""', '{"":{}}', '"\\\\"', '"\\\\\\""',
]  # fmt: skip
NO_VALUES = [
    "", "[", "[1,]", '{"a"}', "{1:2}", "01", "1.", ".5", "+1", "-", "NaN", "Infinity", "-Infinity", "nul",
    "'a'", '"a\tb"', '"\x00"', '"\\x"', '"\\ud8"', '"', "1 2", "\x0b1", "\xa01", "\ufeff1", "9" * 4301,
    "// a",
]  # fmt: skip


def refused(raw: bytes, depth: int = 20) -> GridError:
    with pytest.raises(GridError) as caught:
        parse_body(raw, depth)
    return caught.value


@pytest.mark.parametrize("text", VALUES)
def test_valid_json_is_read_as_python_reads_it(text: str) -> None:
    raw = ('{"x":' + text + ',"y":1}').encode()
    # `repr` tells 1 from 1.0, 0.0 from -0.0, and one order of keys from another.
    assert repr(parse_body(raw, 20)) == repr(json.loads(raw))


def test_a_byte_order_mark_is_left_out() -> None:
    async def receive() -> Message:
        return {"type": "http.request", "body": b'\xef\xbb\xbf{"x":1}'}

    assert asyncio.run(read_json(receive, 20)) == ({"x": 1}, b'{"x":1}')
    assert asyncio.run(read_json(receive, 20, b"[", b"]")) == ({"x": 1}, b'[{"x":1}]')


@pytest.mark.parametrize("text", NO_VALUES)
def test_invalid_json_is_refused_with_reason_and_place(text: str) -> None:
    error = refused(('{"x":' + text + "}").encode())
    assert isinstance(error, InvalidJson)
    assert error.path == "body"
    assert error.details["reason"]
    if "NaN" not in text and "Infinity" not in text and len(text) < 4000:
        assert "line 1 column" in error.details["reason"] or "char" in error.details["reason"]


def test_a_number_with_too_many_digits_has_its_own_reason() -> None:
    assert refused(b'{"x":' + b"9" * 4301 + b"}").details["reason"] == "a number has more than 4300 digits"


@pytest.mark.parametrize("raw", [b"[]", b"null", b'"x"', b"1"])
def test_a_body_that_is_not_an_object_is_refused(raw: bytes) -> None:
    assert refused(raw).expected == "a JSON object"


@pytest.mark.parametrize("raw", [b'{"x":"\xff"}', b'{"x":"\xed\xa0\x80"}', '{"x":1}'.encode("utf-16")])
def test_a_body_that_is_not_utf_8_is_refused(raw: bytes) -> None:
    assert "at byte" in str(refused(raw).reason)


@pytest.mark.parametrize("opens", ["[", '{"a":'])
def test_a_body_nested_too_deeply_is_refused(opens: str) -> None:
    closes = "]" if opens == "[" else "}"

    def nested(levels: int) -> bytes:  # with the object around it
        inner = levels - 1
        return ('{"x":' + opens * inner + "1" + closes * inner + "}").encode()

    parse_body(nested(20), 20)
    for levels in (21, 200, 1023, 1024, 1025, 5000):
        error = refused(nested(levels))
        assert isinstance(error, InvalidJson), levels
        assert error.expected == "at most 20 levels of nesting", levels
    assert "[" * 30 in parse_body(json.dumps({"x": "[" * 30}).encode(), 20)["x"]


@pytest.mark.parametrize(
    ("unit", "each"),
    [("[]", 2), ("{}", 2), ("1", 1), ('""', 1), ('"a,[b"', 1), ("[[[[1,2],[]]]]", 8), ('{"a":{"b":0}}', 3)],
)
def test_a_body_with_too_many_values_is_refused(unit: str, each: int) -> None:
    many = MAX_VALUES // each
    body = '{"model":"m","messages":['
    error = refused((body + ",".join([unit] * (many + 2)) + "]}").encode())
    assert isinstance(error, InputTooLarge)
    assert error.path == "body"
    assert str(MAX_VALUES) in error.details["expected"]
    assert error.details["fix"]
    few = (body + ",".join([unit] * (many - 5)) + "]}").encode()
    assert len(parse_body(few, 20)["messages"]) == many - 5


def test_a_body_with_too_many_keys_is_refused() -> None:
    assert isinstance(refused(b'{"x":{' + b'"":0,' * MAX_VALUES + b'"":0}}'), InputTooLarge)
    assert isinstance(refused(b'{"x":["' + b'","' * 2 * MAX_VALUES + b'"]}'), InputTooLarge)


def test_too_many_values_are_refused_before_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*text: Any) -> Any:
        raise AssertionError("decoded")

    monkeypatch.setattr(values, "parse_json", never)
    assert isinstance(refused(b'{"x":[' + b"[]," * MAX_VALUES), InputTooLarge)


@pytest.mark.parametrize(
    "text",
    [
        "1,2,3\n" * 1_000_000,
        'a,"b",[c]\n' * 500_000,
        "f({[\\,\\\"]});\\" * 400_000,
        "\\" * 1_000_001 + '",' * 1_000_000,
        "ü,😀\u2028" * 300_000,
    ],
    ids=["csv", "quoted", "code", "backslashes", "beyond-ascii"],
)  # fmt: skip
def test_a_long_text_is_one_value(text: str) -> None:
    given = {"model": "m", "messages": [{"role": "user", "content": text}], "after": [text[:9], ",["]}
    assert parse_body(json.dumps(given).encode(), 20) == given
    assert parse_body(json.dumps(given, ensure_ascii=False).encode(), 20) == given


def test_garbage_is_collected_again_after_a_large_body(monkeypatch: pytest.MonkeyPatch) -> None:
    decode, enabled = values.parse_json, []

    def watched(*text: Any) -> Any:
        enabled.append(gc.isenabled())
        return decode(*text)

    monkeypatch.setattr(values, "parse_json", watched)
    assert gc.isenabled()
    parse_body(b'{"x":1}', 20)
    parse_body(b'{"x":"%b"}' % (b"a" * LARGE_BODY_BYTES), 20)
    assert gc.isenabled()
    refused(b'{"x":"%b"' % (b"a" * LARGE_BODY_BYTES))
    assert gc.isenabled()
    assert enabled == [True, False, False]
    gc.disable()
    try:
        parse_body(b'{"x":"%b"}' % (b"a" * LARGE_BODY_BYTES), 20)
        assert not gc.isenabled(), "who had paused it goes on without"
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('{"a":1,"a":2}', "a"),
        ('{"x":[{"b\\"c" : 1, "b\\"c": 2}]}', 'x[0]["b\\"c"]'),
        ('{"x":{"y":"\\\\","y":":"}}', "x.y"),
        ('{"\\u0061":1,"a":2}', "a"),
    ],
)
def test_a_key_that_stands_twice_in_one_object_is_refused_by_its_place(text: str, path: str) -> None:
    raw = text.encode()
    with pytest.raises(InvalidJson) as caught:
        check_keys(raw, parse_body(raw, 20))
    assert caught.value.path == path


@pytest.mark.parametrize(
    "text",
    ['{"a":":","b":"\\":","c":[{"a":1},{"a":1}]}', '{"a\\\\":"x","a":{"a":"\\\\"}}', "{}", '{"":"\\n:"}'],
)
def test_keys_are_told_from_strings(text: str) -> None:
    check_keys(text.encode(), parse_body(text.encode(), 20))


def test_a_doubled_key_in_a_body_that_is_nested_deeply_is_found() -> None:
    raw = b'{"x":' * 400 + b'{"a":1,"a":2}' + b"}" * 400
    with pytest.raises(InvalidJson) as caught:
        check_keys(raw, parse_body(raw, 1000))
    assert str(caught.value.path).endswith(".x.a")
