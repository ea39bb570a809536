"""The built-ins as graphs use them: types that fit each other, config, wrapping."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gridq.errors import TypeMismatch
from gridq.graph.catalogue import Catalogue, StageSpec
from gridq.graph.compile import Placement, compile_plan
from gridq.graph.nodes import parse
from gridq.graph.plan import evaluate
from gridq.graph.validate import validate
from gridq.profiles.profile import StageContext
from gridq.protocol import queue_names
from gridq.protocol.models import Json, StageCall
from gridq.stages import is_pure, load_builtin_specs, run_builtin
from tests.unit.stages.conftest import Configure, Server

CATALOGUE = Catalogue(map(StageSpec.from_json, load_builtin_specs()))


def node(name: str, **config: Json) -> dict[str, Json]:
    return {"op": "Stage", "id": name, **({"config": config} if config else {})}


def pipe(*stages: dict[str, Json]) -> dict[str, Json]:
    return {"op": "Sequential", "stages": list(stages)}


def run(root: dict[str, Json], value: Json, catalogue: Catalogue = CATALOGUE) -> Json:
    """Validate, compile and run a graph without branches in this process."""
    graph = parse({"description": "", "version": "0.1.0", "root": root})
    validate(graph, catalogue)
    plan = compile_plan(
        graph,
        catalogue,
        lambda spec, effects, path: Placement(
            queue_names.PURE if is_pure(spec.implementation) else queue_names.LOCAL
        ),
    )
    outputs: dict[int, Json] = {}
    for number, step in enumerate(plan.steps):
        done: list[Json] = []
        for op in step.ops:
            given = evaluate(op.input, lambda: value, outputs.__getitem__, done)
            call = StageCall(id=op.id, name=op.name, path=op.path, implementation=op.implementation)
            done.append(run_builtin(call, given, StageContext()))
        outputs[number] = evaluate(step.value, lambda: value, outputs.__getitem__, done)
    return outputs[plan.answer]


def weather(web: Server, stage_of: Any = node) -> dict[str, Json]:
    return pipe(
        stage_of("text_template", template=web.url("/{{city|url}}?format=j1")),
        stage_of("http_get"),
        stage_of("http_body"),
        stage_of("parse_json"),
        {
            "op": "Parallel",
            "branches": {
                "temp": stage_of("json_path", path="$.current_condition[0].temp_C"),
                "sky": stage_of("json_path", path="$.current_condition[0].weatherDesc[0].value"),
            },
        },
        stage_of("text_template", template="{{sky}}, {{temp}} °C"),
    )


@pytest.fixture
def forecast(web: Server, configure: Configure) -> Server:
    configure(http_allow="127.0.0.1")
    found = {"current_condition": [{"temp_C": "7", "weatherDesc": [{"value": "Rain"}]}]}
    web.routes["/S%C3%A3o%20Paulo"] = lambda h: h.answer(json.dumps(found).encode())
    return web


def test_a_foreign_graph_runs_with_stage_files_that_state_its_ids(forecast: Server) -> None:
    ids = {
        "text_template": "b4dfc6b0", "http_get": "39731ebb", "http_body": "62bdb044",
        "parse_json": "b89d34eb", "json_path": "c7d35f7c",
    }  # fmt: skip
    files = [
        {
            **CATALOGUE.resolve(name).to_json(),
            "id": start.ljust(64, "0"),
            "description": "as another catalogue has it",
        }
        for name, start in ids.items()
    ]
    catalogue = CATALOGUE.extend(map(StageSpec.from_json, files))

    def foreign(name: str, **config: Json) -> dict[str, Json]:
        return {**node(name, **config), "id": ids[name], "pinning": "both"}

    graph = weather(forecast, foreign)
    assert run(graph, {"city": "São Paulo"}, catalogue) == "Rain, 7 °C"


@pytest.mark.parametrize(
    ("root", "value", "output"),
    [
        (
            pipe(node("map", template="{{name}}"), node("join", separator=", ")),
            [{"name": "a"}, {"name": "b"}],
            "a, b",
        ),
        (
            pipe(node("pick", path="rows"), node("filter", where={"path": "n", "gt": 1})),
            {"rows": [{"n": 2}]},
            [{"n": 2}],
        ),
        (pipe(node("length"), node("equals", to=2)), "ab", True),
        (
            {"op": "Merge", "sources": [node("parse_json"), node("pick", path="a")], "target": node("merge")},
            {"source_0": '{"x": 1}', "source_1": {"a": {"y": 2}}},
            {"x": 1, "y": 2},
        ),
        (
            {
                "op": "Fanout",
                "source": node("format_json"),
                "targets": [node("length"), node("matches", pattern="b")],
            },
            ["b"],
            [5, True],
        ),
    ],
)
def test_built_ins_fit_each_other(root: dict[str, Json], value: Json, output: Json) -> None:
    assert run(root, value) == output


def test_a_remote_stage_node_posts_what_flows_into_it(web: Server, configure: Configure) -> None:
    configure(http_allow="127.0.0.1")
    web.routes["/s"] = lambda h: h.answer(b'{"ok": true, "data": {"output": 3}}')
    any_type = {"kind": "Any"}
    root = {"op": "RemoteStage", "url": web.url("/s"), "input": any_type, "output": any_type}
    assert run(root, {"input": 1}) == 3
    assert json.loads(web.requests[0][3]) == {"input": {"input": 1}}


@pytest.mark.parametrize(
    "root",
    [
        pipe(node("length"), node("parse_json")),
        pipe(node("text_template", template="x"), node("map", pick="a"), node("http_body")),
        pipe(node("matches", pattern="a"), node("join")),
    ],
)
def test_built_ins_that_do_not_fit_are_refused_before_they_run(root: dict[str, Json]) -> None:
    with pytest.raises(TypeMismatch):
        validate(parse({"description": "", "version": "0.1.0", "root": root}), CATALOGUE)
