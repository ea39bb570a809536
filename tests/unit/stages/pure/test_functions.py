"""The built-in stages without effects: their inputs, outputs and errors."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridq.errors import OutputTooLarge, StageError
from gridq.graph.catalogue import StageSpec
from gridq.graph.plan import wrap_input
from gridq.profiles.profile import StageContext
from gridq.protocol.models import StageCall
from gridq.stages import is_pure, load_builtin_specs, run_builtin
from gridq.stages.pure.functions import FUNCTIONS, run_pure
from gridq.stages.runner import NETWORK_STAGES

SPECS = {spec["name"]: spec for spec in load_builtin_specs()}
PURE = [spec for spec in SPECS.values() if is_pure(spec["implementation"])]


def run(name: str, value: Any, config: dict[str, Any] | None = None) -> Any:
    """Run the built-in `name` as a graph's node with `config` does."""
    call = StageCall(id="0", name=name, path="root", implementation=f"builtin:{name}")
    return run_builtin(call, value if config is None else wrap_input(value, config), StageContext())


@pytest.mark.parametrize("spec", PURE, ids=lambda spec: spec["name"])
def test_the_example_of_each_pure_built_in_is_true(spec: dict[str, Any]) -> None:
    for example in spec["examples"]:
        call = StageCall(id="0", name=spec["name"], path="root", implementation=spec["implementation"])
        assert run_builtin(call, example["input"], StageContext()) == example["output"]


def test_every_implementation_has_a_specification_and_the_reverse() -> None:
    built_in = {
        spec["implementation"] for spec in SPECS.values() if spec["implementation"].startswith("builtin:")
    }
    assert built_in == {f"builtin:{name}" for name in (*FUNCTIONS, *NETWORK_STAGES)}


def test_every_specification_is_one_the_catalogue_reads() -> None:
    for spec in SPECS.values():
        read = StageSpec.from_json(spec, spec["name"])
        assert read.to_json()["effects"] == spec["effects"]
        assert read.description
        assert read.examples


def test_the_model_of_an_llm_stage_comes_from_its_config() -> None:
    spec = StageSpec.from_json(SPECS["llm_complete"])
    assert spec.resolve_effects({"model": "claude"})[0].fields == {"model": "claude"}
    assert spec.resolve_effects({})[0].fields == {"model": "any"}


@pytest.mark.parametrize(
    ("name", "value", "config", "output"),
    [
        # A bare text arrives under `items` where there is config; the template's author need not know.
        ("text_template", "Oslo", {"template": "in {{text}}, {{.}}"}, "in Oslo, Oslo"),
        ("text_template", {"city": "Oslo"}, {"template": "{{ city }}"}, "Oslo"),
        ("text_template", {"a": [1, {"b": None}]}, {"template": "{{a[1].b}} {{a}}"}, 'null [1,{"b":null}]'),
        ("text_template", '<"', {"template": "{{.|html}}{{.|json}}{{.|url}}"}, '&lt;&quot;"<\\""%3C%22'),
        ("text_template", {"template": "{{x}}", "variables": {"x": "{{y}}"}, "y": 1}, None, "{{y}}"),
        ("text_template", "x", {"template": '{"a":{"b":"{{.}}"}}'}, '{"a":{"b":"x"}}'),
        ("parse_json", '{"a": [1, 2.5, null]}', None, {"a": [1, 2.5, None]}),
        ("parse_json", {"json_str": "7"}, None, 7),
        ("parse_json", 'So: [1, {"a": 2}] and [3]', {"extract": True}, [1, {"a": 2}]),
        ("parse_json", 'see [note] {"a": 1}', {"extract": True}, {"a": 1}),
        ("format_json", [1, "ü"], None, '[1,"ü"]'),
        ("format_json", [1], {"indent": 2}, "[\n  1\n]"),
        ("format_json", {"items": [1]}, None, '{"items":[1]}'),
        ("pick", {"a": {"b.c": [1, 2]}}, {"path": '$.a["b.c"][-1]'}, 2),
        ("pick", [[5]], {"path": "[0][0]"}, 5),
        ("pick", {"items": [1, 2]}, {"path": "items"}, [1, 2]),
        ("pick", {"items": [1, 2]}, {"path": "[1]"}, 2),
        ("pick", {"a": 1}, {"path": "$"}, {"a": 1}),
        ("pick", {"a": 1}, {"path": "b", "default": None}, None),
        ("map", [{"a": 1}, {"a": 2}], {"pick": "a"}, [1, 2]),
        ("map", ["x", "y"], {"template": "<{{item}}>"}, ["<x>", "<y>"]),
        ("map", {"data": [{"a": 1}]}, {"fields": {"b": "a", "c": "d"}, "default": 0}, [{"b": 1, "c": 0}]),
        ("map", {"source_0": {"a": 1}, "source_1": {"a": 2}}, {"pick": "a"}, [1, 2]),
        ("filter", [1, "1", True, None, 2.0], {"where": {"gte": 1}}, [1, 2.0]),
        ("filter", [{"a": "x"}, {"a": None}, {}], {"where": {"path": "a", "exists": False}}, [{}]),
        ("filter", ["ab", "b"], {"where": {"not": {"any": [{"matches": "^a"}, {"equals": 3}]}}}, ["b"]),
        ("filter", [{"t": ["x"]}, {"t": []}], {"where": {"path": "t", "contains": "x"}}, [{"t": ["x"]}]),
        ("filter", [1, 2, 3], {"where": {"in": [3, 1], "not_equals": 1}}, [3]),
        ("join", ["a", 1, None], {"separator": "-"}, "a-1-null"),
        ("join", {"source_0": "a", "source_1": "b"}, None, "a\nb"),
        ("merge", {"source_0": {"a": 1}, "source_1": None, "source_2": {"a": 2}}, None, {"a": 2}),
        ("merge", [[1], [2, 3]], None, [1, 2, 3]),
        ("merge", [{"a": {"x": 1}}, {"a": {"y": 2}}], {"deep": True}, {"a": {"x": 1, "y": 2}}),
        ("merge", {"left": {"a": 1}, "right": {"b": 2}}, None, {"a": 1, "b": 2}),
        ("merge", [], None, {}),
        ("regex_extract", "id=42;", {"pattern": r"id=(\d+)"}, "42"),
        ("regex_extract", "id=42;", {"pattern": r"id=(?P<n>\d+)", "group": 0}, "id=42"),
        ("regex_extract", "id=42;", {"pattern": r"(i)d=(?P<n>\d+)", "group": "n"}, "42"),
        ("regex_extract", "none", {"pattern": r"\d+"}, None),
        ("regex_extract", "ä1ö2", {"pattern": r"\pL", "all": True}, ["ä", "ö"]),
        ("regex_extract", "ab", {"pattern": "(x)?b"}, None),
        ("matches", "Yes.", {"pattern": "(?i)^yes"}, True),
        ("matches", {"a": 3}, {"pattern": "3", "path": "a"}, False),
        ("equals", "x", {"to": "x"}, True),
        ("equals", 1, {"to": True}, False),
        ("equals", [1, {"a": 2}], {"to": [1.0, {"a": 2.0}]}, True),
        ("equals", {"a": 1}, {"path": "b", "to": None}, True),
        ("contains", ["a", 1], {"item": 1}, True),
        ("contains", [True], {"item": 1}, False),
        ("contains", {"a": 1, "b": 2}, {"item": "b"}, True),
        ("contains", None, {"item": "b"}, False),
        ("is_empty", [], {"path": "[0]"}, True),
        ("is_empty", {}, None, True),
        ("is_empty", 0, None, False),
        ("length", "αβγ", None, 3),
        ("length", {"a": [1, 2]}, {"path": "a"}, 2),
        ("test", 5, {"where": {"gt": 4, "lt": 6}}, True),
        ("test", {"a": {"b": "x"}}, {"where": {"path": "a.b", "is_empty": True}}, False),
        ("http_body", {"status": 200, "headers": {}, "body": "hi"}, None, "hi"),
    ],
)  # fmt: skip
def test_built_ins_give_the_expected_output(
    name: str, value: Any, config: dict[str, Any] | None, output: Any
) -> None:
    actual = run(name, value, config)
    assert actual == output
    assert type(actual) is type(output)


@pytest.mark.parametrize(
    ("name", "value", "config", "message"),
    [
        ("text_template", {"city": "Oslo"}, {"template": "{{citi}}"}, "use 'city'"),
        ("text_template", {"a": 1}, {"template": "{{a"}, "no '}}'"),
        ("text_template", {"a": 1}, {"template": "{{a|shell}}"}, "unknown filter 'shell'"),
        ("text_template", {"a": 1}, {"template": "{{}}"}, "empty placeholder"),
        ("text_template", {"a": 1}, None, "'template' is missing"),
        ("text_template", {"a": 1}, {"template": "{{a}}" * 1001}, "too many placeholders"),
        ("text_template", {"a": "\ud800"}, {"template": "{{a|url}}"}, "surrogate"),
        ("parse_json", "{'a': 1}", None, "line 1, column 2"),
        ("parse_json", "[NaN]", None, "NaN is not JSON"),
        ("parse_json", "1e999", None, "too large for a number"),
        ("parse_json", "9" * 5000, None, "not JSON"),
        ("parse_json", "[" * 100_000, None, "nested too deeply"),
        ("parse_json", "no JSON here", {"extract": True}, "no JSON record or list"),
        ("parse_json", "[" * 100_000, {"extract": True}, "no JSON record or list"),
        ("parse_json", 7, None, "a number, not text"),
        ("format_json", 1, {"indent": 99}, "indent is 99"),
        ("pick", {"abc": {"d": 1}}, {"path": "abd.d"}, "use 'abc'"),
        ("pick", {"a": [1]}, {"path": "a[3]"}, "1 elements, no [3]"),
        ("pick", {"a": 1}, {"path": "a..b"}, "invalid at character"),
        ("pick", {"a": 1}, {"path": "a[*]"}, "stage `map`"),
        ("pick", {"a": 1}, {"path": ""}, "invalid at character 0"),
        ("pick", {"a": 1}, {"path": "a" * 2000}, "2000 characters"),
        ("map", [1], {"pick": "a"}, "Element 0 has nothing"),
        ("map", [1], {"pick": "a", "template": "b"}, "'pick', 'template' and 'fields'"),
        ("map", "x", {"pick": "a"}, "without a list"),
        ("filter", [1], {"where": {"path": "a", "eq": 1}}, "no operator 'eq'"),
        ("filter", [1], {"where": {"path": "a"}}, "no operator"),
        ("filter", [1], {"where": {"gt": None}}, "cannot compare with null"),
        ("filter", [1], {"where": {"in": 3}}, "must be a list"),
        ("filter", [1], {"where": {"in": [0] * 2000}}, "at most 1000"),
        ("filter", [1], {"where": {"all": [{"gt": 1}] * 2000}}, "too large"),
        ("merge", [{"a": 1}, [2]], None, "a list"),
        ("regex_extract", "x", {"pattern": "("}, "not a regular expression"),
        ("regex_extract", "x", {"pattern": r"(a)\1"}, "back-references"),
        ("regex_extract", "x", {"pattern": "a" * 2000}, "2000 characters"),
        ("regex_extract", "x", {"pattern": "a", "group": 1}, "no group 1"),
        ("regex_extract", "a" * 1_000_000, {"pattern": "((a{0,30}){0,30}b)"}, "too large for a text"),
        ("equals", "x", {"path": "a"}, "'to' is missing"),
        ("length", 5, None, "a number, which has no length"),
    ],
)  # fmt: skip
def test_a_wrong_input_is_a_stage_error_that_says_what_helps(
    name: str, value: Any, config: dict[str, Any] | None, message: str
) -> None:
    with pytest.raises(StageError) as caught:
        run(name, value, config)
    assert message in str(caught.value)
    assert caught.value.path == "root"
    assert caught.value.stage == name


def test_a_deeply_nested_condition_is_refused() -> None:
    where: dict[str, Any] = {"gt": 1}
    for _ in range(100):
        where = {"not": where}
    with pytest.raises(StageError, match="too large"):
        run("test", 1, {"where": where})


def test_a_pattern_that_hangs_a_backtracking_engine_does_not_hang_here() -> None:
    assert run("regex_extract", "a" * 50_000 + "!", {"pattern": "^(a+)+$"}) is None


def test_a_pattern_that_scans_to_the_end_for_each_match_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gridq.stages.pure.bounds.MAX_PURE_SECONDS", 0.2)
    with pytest.raises(StageError, match="longer than the limit of pure stages"):
        run("regex_extract", "a" * 2_000_000, {"pattern": "[a-z]*X|a", "all": True})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("text_template", {"template": "{{a}}{{a}}{{a}}", "a": "x" * 800}),
        ("map", {"items": [1] * 300, "template": "ten chars."}),
        ("join", {"items": [""] * 1000, "separator": "xxx"}),
        ("format_json", {"a": list(range(1000))}),
        ("regex_extract", {"text": "abc" * 300, "pattern": "x*", "all": True}),
        ("merge", {"a": ["x" * 900], "b": ["y" * 900], "c": ["z" * 900]}),
    ],
)
def test_an_output_over_the_limit_is_refused(name: str, value: Any, configure: Any) -> None:
    configure(max_value=2048)
    with pytest.raises(OutputTooLarge, match="larger than 2048 bytes"):
        run(name, value)


def test_a_stage_never_changes_its_input() -> None:
    value = {"source_0": {"a": {"b": 1}}, "source_1": {"a": {"c": 2}}, "deep": True}
    before = json.dumps(value)
    assert run("merge", value) == {"a": {"b": 1, "c": 2}}
    assert json.dumps(value) == before


def test_an_implementation_that_is_not_built_in_is_refused() -> None:
    call = StageCall(id="0", name="x", path="root", implementation="builtin:rm")
    with pytest.raises(StageError, match="builtin:rm"):
        run_builtin(call, None, StageContext())
    assert not is_pure("builtin:http_get")
    assert not is_pure("python:os:system")


names = st.sampled_from(["a", "items", "text", "data", "path", "template", "pattern", "where", "to", "pick"])
atoms = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
special = st.sampled_from(["a.b", "$.a[0]", "{{a}}", "{{.|url}}", "(a+)", "[", "{{", "a[", '["'])
values = st.recursive(
    atoms | special,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=5),
    max_leaves=12,
)


@given(name=st.sampled_from(sorted(FUNCTIONS)), value=values)
def test_arbitrary_input_gives_json_or_a_stage_error(name: str, value: Any) -> None:
    try:
        output = run_pure(name, value)
    except StageError:
        return
    assert json.loads(json.dumps(output, allow_nan=False)) == output


@given(
    template=st.text(alphabet="{}ab.|[]0$ \"'", max_size=40),
    path=st.text(alphabet="ab.[]0-$\"' ", max_size=20),
)
def test_templates_and_paths_of_any_form_give_json_or_a_stage_error(template: str, path: str) -> None:
    for name, config in (("text_template", {"template": template}), ("pick", {"path": path})):
        with contextlib.suppress(StageError):
            json.dumps(run(name, {"a": [{"b": 1}, "b"], "b": "x"}, config), allow_nan=False)


@given(value=values)
def test_parse_json_reads_the_output_of_format_json(value: Any) -> None:
    assert run("parse_json", run("format_json", value)) == value
