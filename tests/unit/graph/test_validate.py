"""Types are checked wherever both sides are known, before anything runs."""

from __future__ import annotations

from typing import Any

import pytest

from gridq.errors import TypeMismatch, UnknownStage
from gridq.graph.catalogue import Catalogue, make_stage_spec
from gridq.graph.nodes import parse
from gridq.graph.types import ANY, BOOL, NUMBER, TEXT, Type, make_list, make_record, make_union
from gridq.graph.validate import validate

CATALOGUE = Catalogue(
    [
        make_stage_spec("any", "t:any"),
        make_stage_spec("text", "t:text", output=TEXT),
        make_stage_spec("number", "t:number", output=NUMBER),
        make_stage_spec("takes_text", "t:takes_text", input=TEXT, output=TEXT),
        make_stage_spec("takes_list", "t:takes_list", input=make_list(TEXT), output=BOOL),
        make_stage_spec(
            "takes_record", "t:takes_record", input=make_record({"a": TEXT, "n": NUMBER}), output=TEXT
        ),
        make_stage_spec(
            "gives_record", "t:gives_record", output=make_record({"a": TEXT, "n": NUMBER, "more": BOOL})
        ),
        make_stage_spec(
            "takes_sources",
            "t:takes_sources",
            input=make_record({"source_0": TEXT, "source_1": NUMBER}),
            output=BOOL,
        ),
    ]
)


def st(name: str, **config: Any) -> dict[str, Any]:
    return {"op": "Stage", "id": name} | ({"config": config} if config else {})


def const(value: Any) -> dict[str, Any]:
    return {"op": "Const", "value": value}


def seq(*stages: Any) -> dict[str, Any]:
    return {"op": "Sequential", "stages": list(stages)}


def parallel(**branches: Any) -> dict[str, Any]:
    return {"op": "Parallel", "branches": branches}


def let(body: Any, **bindings: Any) -> dict[str, Any]:
    return {"op": "Let", "bindings": bindings, "body": body}


def merge(target: Any, *sources: Any) -> dict[str, Any]:
    return {"op": "Merge", "sources": list(sources), "target": target}


def branch(if_true: Any, if_false: Any) -> dict[str, Any]:
    return {"op": "Branch", "predicate": const(True), "if_true": if_true, "if_false": if_false}


def remote(given: str, output: str) -> dict[str, Any]:
    return {"op": "RemoteStage", "url": "https://h", "input": {"kind": given}, "output": {"kind": output}}


def check(root: Any, given: Type = ANY) -> Type:
    return validate(parse({"root": root}), CATALOGUE, given)


@pytest.mark.parametrize(
    ("root", "output"),
    [
        (seq(st("text"), st("takes_text")), TEXT),
        (seq(st("any"), st("takes_record")), TEXT),
        (seq(st("gives_record"), st("takes_record")), TEXT),
        (seq(parallel(a=st("text"), n=st("number")), st("takes_record")), TEXT),
        (let(st("takes_record"), a=st("text"), n=const(1)), TEXT),
        (seq(const({"a": 1}), let(st("takes_record"), a=st("text"), n=const(1))), TEXT),
        (seq(const({"n": "wrong"}), st("takes_record", a="x", n=1)), TEXT),
        ({"op": "Fanout", "source": st("text"), "targets": [st("takes_text"), st("text")]}, make_list(TEXT)),
        (seq({"op": "Fanout", "source": st("text"), "targets": [st("text")]}, st("takes_list")), BOOL),
        (merge(st("takes_sources"), st("text"), st("number")), BOOL),
        (seq(const({"source_0": "x"}), merge(st("any"), st("takes_text"), st("takes_text"))), ANY),
        (branch(st("text"), st("number")), make_union((TEXT, NUMBER))),
        (seq(branch(st("text"), const("x")), st("takes_text")), TEXT),
        ({"op": "Retry", "stage": st("number"), "max_attempts": 2}, NUMBER),
        (seq(st("text"), remote("Text", "Number")), NUMBER),
        (seq(st("text"), const([1]), st("any")), ANY),
        (seq(const([]), st("takes_list")), BOOL),
    ],
)
def test_compatible_graphs_validate_to_their_output_type(root: Any, output: Type) -> None:
    assert check(root) == output


@pytest.mark.parametrize(
    ("root", "path"),
    [
        (seq(st("number"), st("takes_text")), "root.stages[1]"),
        (seq(st("any"), st("text"), st("takes_record")), "root.stages[2]"),
        (seq(parallel(a=st("text"), n=st("text")), st("takes_record")), "root.stages[1]"),
        (seq(parallel(a=st("text")), st("takes_record")), "root.stages[1]"),
        (seq(const({"x": 1}), parallel(x=st("takes_text"))), "root.stages[1].branches.x"),
        (seq(const({"y": 1}), parallel(x=st("takes_text"))), "root.stages[1].branches.x"),
        (let(st("takes_text"), a=st("text")), "root.body"),
        (let(st("takes_record"), a=st("number")), "root.body"),
        (seq(const(1), let(const(1), a=st("takes_text"))), "root.stages[1].bindings.a"),
        (st("takes_record", a="x", n="no number"), "root"),
        (st("takes_text", a=1), "root"),
        (
            {"op": "Fanout", "source": st("number"), "targets": [st("any"), st("takes_text")]},
            "root.targets[1]",
        ),
        (
            seq({"op": "Fanout", "source": st("any"), "targets": [st("number")]}, st("takes_list")),
            "root.stages[1]",
        ),
        (merge(st("takes_sources"), st("text"), st("text")), "root.target"),
        (seq(const({"source_0": 1}), merge(st("any"), st("takes_text"))), "root.stages[1].sources[0]"),
        (seq(const(1), merge(st("any"), st("takes_text"))), "root.stages[1].sources[0]"),
        (seq(branch(st("text"), st("number")), st("takes_text")), "root.stages[1]"),
        (seq(const(1), branch(const(1), st("takes_text"))), "root.stages[1].if_false"),
        (
            seq(const(1), {"op": "Retry", "stage": st("takes_text"), "max_attempts": 1}),
            "root.stages[1].stage",
        ),
        (seq(st("number"), remote("Text", "Any")), "root.stages[1]"),
        (seq(remote("Any", "Number"), st("takes_text")), "root.stages[1]"),
        (seq(const([1, 2]), st("takes_list")), "root.stages[1]"),
        (seq(st("text"), parallel(a=st("any")), st("takes_text")), "root.stages[2]"),
        (seq(st("text"), st("takes_record", n=1)), "root.stages[1]"),
    ],
)
def test_incompatible_graphs_are_refused_with_the_path(root: Any, path: str) -> None:
    with pytest.raises(TypeMismatch) as caught:
        check(root)
    assert caught.value.path == path
    assert caught.value.expected
    assert caught.value.details["got"]


def test_a_mismatch_names_both_types() -> None:
    with pytest.raises(TypeMismatch, match=r"'takes_text' takes Text but gets Number"):
        check(seq(st("number"), st("takes_text")))


def test_the_jobs_own_input_may_be_known() -> None:
    assert check(st("takes_text"), TEXT) == TEXT
    with pytest.raises(TypeMismatch):
        check(st("takes_text"), NUMBER)


def test_an_unknown_stage_anywhere_is_found() -> None:
    with pytest.raises(UnknownStage) as caught:
        check(branch(const(1), let(const(1), x=st("nothing"))))
    assert caught.value.path == "root.if_false.bindings.x"


def test_large_and_deep_graphs_validate() -> None:
    check(seq(*[st("takes_text")] * 10_000))
    check(parallel(**{f"b{i}": st("any") for i in range(10_000)}))
    node: Any = st("text")
    for i in range(390):
        node = (
            parallel(a=node, b=const(i)),
            let(node, x=node if i < 3 else const(i)),
            branch(node, const(i)),
        )[i % 3]
    check(node)
