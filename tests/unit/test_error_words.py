"""No error shows Python's words for JSON, or repeats a value at length: odd values at every field."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gridq.config.settings import Settings
from gridq.errors import GridError, quote
from gridq.errors.base import MAX_DETAIL_CHARACTERS, MAX_MESSAGE_CHARACTERS, MAX_PATH_CHARACTERS
from gridq.gateway.routes.job_spec import read_spec
from gridq.graph.catalogue import StageSpec
from gridq.graph.effects import parse_effects
from gridq.graph.nodes import parse
from gridq.graph.types import parse_type
from gridq.jobs.record import parse_options
from gridq.limits import quotas_file
from gridq.profiles.profile import load_profiles
from gridq.submission.planning import compile_text, load_local_catalogue

PYTHON = re.compile(
    r"\b(None|True|False|NoneType|dict|str|tuple|int|float|bool|frozenset|TypeError|KeyError|ValueError"
    r"|object at|Traceback|pydantic)\b|<class|\bInput should\b"
)
LONG = "x" * 100_000
ODD: list[Any] = [
    None, True, False, 0, -1, 2.5, 1e300, 10**400, "", LONG, [], [None], [[]], {}, {"a": None}, {LONG: LONG},
]  # fmt: skip
STAGE = {"op": "Stage", "id": "text_template", "config": {"template": "x"}, "pinning": "both"}
NODES: list[Any] = [
    STAGE,
    {"op": "RemoteStage", "url": "http://a.example", "input": {"kind": "Text"}, "output": {"kind": "Any"}},
    {"op": "Const", "value": 1},
    {"op": "Sequential", "stages": [STAGE]},
    {"op": "Parallel", "branches": {"a": STAGE}},
    {"op": "Branch", "predicate": STAGE, "if_true": STAGE, "if_false": STAGE},
    {"op": "Fanout", "source": STAGE, "targets": [STAGE]},
    {"op": "Merge", "sources": [STAGE], "target": STAGE},
    {"op": "Retry", "stage": STAGE, "max_attempts": 2, "delay_ms": 1},
    {"op": "Let", "bindings": {"a": STAGE}, "body": STAGE},
]
FILE = {
    "name": "mine", "implementation": "builtin:text.template", "id": "a" * 64, "description": "d",
    "input": {"kind": "Any"}, "output": {"kind": "List", "value": {"kind": "Text"}},
    "effects": [
        {"effect": "Cost", "cents": 5}, {"effect": "Llm", "model": ["a", {"model": "b", "context": 5}]},
    ],
    "lifecycle": "Active", "config": {"a": 1}, "examples": [{}], "tags": ["a"], "aliases": ["b"],
    "timeout": 5, "options": {"a": True},
}  # fmt: skip
BODY = {
    "graph": {"root": STAGE}, "input": 1, "job": "j", "agent": "a", "priority": "batch", "deadline": 5,
    "queue_timeout": 5, "budget_cents": 5, "wait_for_seat": True, "session": "s", "prefer": "a",
    "avoid": ["a"], "pin": "a", "stream": True, "idempotency_key": "k", "deadline_secs": 5, "name": "n",
}  # fmt: skip


def vary(value: Any) -> Iterator[Any]:
    """Yield copies of a value with an odd one at each of its places, and with an unknown key."""
    yield from copy.deepcopy(ODD)
    if isinstance(value, dict):
        for key in value:
            yield {name: part for name, part in value.items() if name != key}
            yield {**{name: part for name, part in value.items() if name != key}, key + "x": value[key]}
            for part in vary(value[key]):
                yield {**value, key: part}
        yield {**value, LONG: 1}
    elif isinstance(value, list):
        for number, element in enumerate(value):
            for part in vary(element):
                yield [*value[:number], part, *value[number + 1 :]]


def check(error: GridError) -> None:
    assert len(error.message) < MAX_MESSAGE_CHARACTERS + 50
    for name, text in error.details.items():
        shown = text if isinstance(text, str) else json.dumps(text)
        assert len(shown) < (MAX_PATH_CHARACTERS if name == "path" else MAX_DETAIL_CHARACTERS) + 50, name
        assert not PYTHON.search(shown), (name, shown[:300])
    assert not PYTHON.search(error.message), error.message[:300]


@pytest.fixture(scope="module")
def compile_graph() -> Callable[[Any], object]:
    config = Settings(profiles=("llm",))
    profiles = load_profiles(config.profiles)
    catalogue = load_local_catalogue(config, profiles)
    return lambda graph: compile_text(json.dumps(graph).encode(), catalogue, config, profiles)


@pytest.mark.parametrize("node", NODES, ids=[node["op"] for node in NODES])
def test_graphs(node: Any, compile_graph: Callable[[Any], object]) -> None:
    for root in vary(node):
        for door in (compile_graph, lambda graph: parse(graph, max_depth=20)):
            try:
                door({"root": root})
            except GridError as exc:
                check(exc)


@pytest.mark.parametrize("key", list(FILE))
def test_stage_files_types_and_effects(key: str) -> None:
    doors: dict[str, Callable[[Any], object]] = {
        "input": lambda data: parse_type(data, "input"),
        "output": lambda data: parse_type(data, "output"),
        "effects": lambda data: parse_effects(data, "effects"),
    }
    for data in vary(FILE[key]):
        for door in (lambda value: StageSpec.from_json({**FILE, key: value}), doors.get(key, lambda _: None)):
            try:
                door(data)
            except GridError as exc:
                check(exc)


@pytest.mark.parametrize("key", list(BODY))
def test_bodies_and_options(key: str) -> None:
    for value in ODD:
        with_it = {**BODY, key: value}
        about = {
            name: part
            for name, part in with_it.items()
            if name not in ("graph", "input", "job", "deadline_secs")
        }
        for door in (lambda: read_spec(json.dumps(with_it).encode(), 50), lambda: parse_options(about)):  # noqa: B023
            try:
                door()
            except GridError as exc:
                check(exc)


@pytest.mark.parametrize("value", [*ODD, [{"dollars": None}], [{"tokens": True, "per": 5}], {"dollars": "x"}])
def test_quotas_files(value: Any) -> None:
    for data in (
        value, {"agents": value}, {"agents": {"a": value}}, {"agents": {"a": {"budgets": value}}},
        {"queues": {"llm:any": value}}, {"queues": {"llm:any": {"max_pending": value}}}, {"models": value},
        {"models": {"a": value}}, {"seats": {"a": {"budget_dollars": value, "period": value}}},
    ):  # fmt: skip
        try:
            quotas_file.parse(json.dumps(data), "quotas.json")
        except GridError as exc:
            check(exc)


def test_a_quoted_value_is_json_and_short() -> None:
    assert [quote(value) for value in (None, True, 5, 2.5, "a", [1], {"a": 1})] == [
        "null", "true", "5", "2.5", "'a'", "a list", "an object",
    ]  # fmt: skip
    assert len(quote(LONG)) < 100
    assert len(quote(10**5000)) < 100
