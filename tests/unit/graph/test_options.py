"""Options of stages: misspelt and missing ones are found before anything runs."""

from __future__ import annotations

import json
from typing import Any, get_type_hints

import pytest
from openai.types.chat import completion_create_params

from gridq.config.settings import Settings
from gridq.errors import GraphError
from gridq.graph.catalogue import Catalogue, StageSpec
from gridq.graph.nodes import list_ignored, parse
from gridq.graph.validate import list_needed_from_input, validate
from gridq.submission.planning import load_local_catalogue
from tests.builders import seq
from tests.builders import stage as st
from workers.model_apis.fields import chat

CATALOGUE = load_local_catalogue(Settings(), {}).extend(
    [
        StageSpec.from_json(
            {
                "name": "shout", "implementation": "python:m:shout", "config": {"times": 2},
                "input": {"kind": "Record", "value": {"text": {"kind": "Text"}}}, "output": {"kind": "Text"},
            }
        ),
        StageSpec.from_json(
            {
                "name": "summarise", "implementation": "llm:complete", "config": {"max_tokens": 60},
                "input": {"kind": "Any"}, "output": {"kind": "Text"},
            }
        ),
    ]
)  # fmt: skip


def check(root: dict[str, Any], catalogue: Catalogue = CATALOGUE) -> None:
    validate(parse(json.dumps({"root": root})), catalogue)


@pytest.mark.parametrize(
    ("node", "path", "fix"),
    [
        (st("llm_complete", prompt="x", max_token=3), "root.config.max_token", "use 'max_tokens'"),
        (st("llm_chat", maxTokens=3), "root.config.maxTokens", "use 'max_tokens'"),
        (st("llm_complete", promt="x"), "root.config.promt", "use 'prompt'"),
        (st("text_template", templte="x"), "root.config.templte", "use 'template'"),
        (st("regex_extract", patern="x"), "root.config.patern", "use 'pattern'"),
        (st("shout", text="a", time=3), "root.config.time", "use 'times'"),
        (st("shout", texts="a"), "root.config.texts", "use 'text'"),
        (st("summarise", sytem="Be brief."), "root.config.sytem", "use 'system'"),
    ],
)
def test_a_misspelt_option_is_named_with_the_one_that_was_meant(
    node: dict[str, Any], path: str, fix: str
) -> None:
    with pytest.raises(GraphError) as caught:
        check(node)
    error = caught.value
    assert (error.code, error.path, error.fix) == ("graph.invalid_field", path, fix)
    assert fix.split("'")[1] in (error.expected or "").split(", ")


@pytest.mark.parametrize(
    "node",
    [
        st("text_template", template="{{variable}}, {{templates}}", variable=3, templates=1),
        st("llm_chat", messages="x", top_k=3, min_p=1, min_tokens=3, provider={}),
        st("contains", items=["a"], item="a"),
        st("merge", deep=True, a={}, b={}),
        st("shout", text="a", _times="a comment"),
    ],
)
def test_other_keys_are_part_of_the_input(node: dict[str, Any]) -> None:
    check(node)


FIELDS = {
    *chat.HINTS,
    *get_type_hints(completion_create_params.CompletionCreateParamsBase),
}


@pytest.mark.parametrize("field", sorted(FIELDS))
def test_no_field_of_a_chat_is_taken_for_a_misspelt_one(field: str) -> None:
    check(st("llm_chat", **{field: 1}))


@pytest.mark.parametrize(
    ("given", "stage", "missing"),
    [
        (st("llm_complete", prompt="x"), st("text_template", text="Hello"), "template"),
        ({"op": "Const", "value": {"a": 1}}, {"op": "Stage", "id": "pick"}, "path"),
        ({"op": "Const", "value": [1]}, st("filter"), "where"),
        ({"op": "Const", "value": "a"}, st("contains", path="x"), "item"),
    ],
)
def test_a_missing_option_is_named(given: dict[str, Any], stage: dict[str, Any], missing: str) -> None:
    with pytest.raises(GraphError) as caught:
        check(seq(given, stage))
    error = caught.value
    assert (error.code, error.path) == ("graph.missing_field", f"root.stages[1].config.{missing}")
    assert missing in (error.fix or "")


def test_an_option_may_come_with_the_input_and_is_then_listed() -> None:
    graph = parse({"root": seq(st("text_template"), st("text_template", template="{{.}}"))})
    validate(graph, CATALOGUE)
    assert list_needed_from_input(graph, CATALOGUE) == ["root.stages[0].config.template"]
    check(seq({"op": "Const", "value": {"template": "a"}}, {"op": "Stage", "id": "text_template"}))


@pytest.mark.parametrize(
    ("graph", "path", "fix"),
    [
        ({"root": {"op": "Stage", "id": "x", "configs": {}}}, "root.configs", "config"),
        ({"root": {"op": "Stage", "id": "x", "Config": {}}}, "root.Config", "config"),
        (
            {"root": {"op": "Retry", "stage": {"op": "Const", "value": 1}, "max_attempts": 2, "delayms": 5}},
            "root.delayms",
            "delay_ms",
        ),
        ({"root": {"op": "Const", "value": 1}, "descripton": "a"}, "descripton", "description"),
    ],
)
def test_a_misspelt_field_of_a_node_is_named(graph: dict[str, Any], path: str, fix: str) -> None:
    with pytest.raises(GraphError) as caught:
        parse(graph)
    assert (caught.value.code, caught.value.path) == ("graph.invalid_field", path)
    assert repr(fix) in (caught.value.fix or "")


def test_a_stage_for_a_text_takes_no_config() -> None:
    text = {"kind": "Text"}
    given = {
        "name": "t",
        "implementation": "python:m:t",
        "input": text,
        "output": text,
        "config": {"times": 2},
    }
    with pytest.raises(GraphError) as caught:
        check({"op": "Stage", "id": "t"}, CATALOGUE.extend([StageSpec.from_json(given)]))
    assert caught.value.code == "graph.type_mismatch"
    assert "Record" in (caught.value.fix or "")


def test_keys_without_a_meaning_are_kept_and_listed_but_not_comments() -> None:
    graph = {
        "root": {
            "op": "Sequential",
            "ui": {"x": 1},
            "stages": [{"op": "Const", "value": 1, "_configs": 1, "input": 2, "name": "a"}],
        }
    }
    assert list_ignored(parse(graph)) == ["root.stages[0].input"]
    assert parse(graph).to_json()["root"] == graph["root"]
