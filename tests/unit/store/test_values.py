"""Values on their way to the store and back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridq.errors import InputTooLarge, OutputTooLarge, ValueGone, ValueNotJson
from gridq.store import values
from gridq.store.keys import Keys
from tests.conftest import GridEnv

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(ANY_JSON)
def test_json_values_survive_the_round_trip(value: Any) -> None:
    data = values.encode(value, limit=1 << 30)
    assert values.decode(data) == value
    assert not values.is_link(data)


def test_a_lone_surrogate_survives() -> None:
    assert values.decode(values.encode({"a": "\ud800"}, limit=100)) == {"a": "\ud800"}


def _cycle() -> list[Any]:
    around: list[Any] = []
    around.append(around)
    return around


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), {1, 2}, b"bytes", object(), _cycle(), {(1, 2): 3}]
)
def test_values_that_are_not_json_are_refused_with_their_path(value: Any) -> None:
    with pytest.raises(ValueNotJson) as caught:
        values.encode(value, limit=100, path="root.x")
    assert caught.value.path == "root.x"


def test_a_value_over_the_limit_is_refused_as_input_or_output() -> None:
    assert values.encode("x" * 98, limit=100)
    with pytest.raises(OutputTooLarge):
        values.encode("x" * 99, limit=100)
    with pytest.raises(InputTooLarge):
        values.encode("x" * 99, limit=100, what="input")


def test_a_long_value_is_read_in_chunks(grid_env: GridEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "CHUNK_BYTES", 7)
    keys = Keys(grid_env.prefix)
    for length in (1, 6, 7, 8, 14, 100):
        grid_env.client.set(keys("value", "j:0:x"), json.dumps("y" * length), px=10_000)
        assert values.decode(values.read(grid_env.client, keys, b"@j:0:x")) == "y" * length


def test_a_missing_value_is_an_error(grid_env: GridEnv) -> None:
    with pytest.raises(ValueGone):
        values.read(grid_env.client, Keys(grid_env.prefix), b"@j:0:x")
