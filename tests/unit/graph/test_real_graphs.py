"""Graphs made for another runtime of the format, and our own of the same shapes."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from gridq.graph.catalogue import Catalogue, StageSpec, make_stage_spec
from gridq.graph.compile import Placement, compile_plan
from gridq.graph.nodes import Stage, parse
from gridq.graph.plan import Plan
from gridq.graph.validate import validate
from gridq.profiles.profile import StageContext
from gridq.protocol import queue_names
from gridq.protocol.models import Effect, StageCall
from gridq.stages import is_pure, load_builtin_specs, run_builtin
from tests.builders import walk_nodes
from tests.simulate import simulate
from tests.unit.graph.test_plan_meaning import check_plan

TOP = Path(__file__).parents[3]
SHARED = Path(os.environ.get("GRIDQ_TEST_GRAPHS", TOP.parent / "shared" / "graphs"))
BUILTINS = Catalogue([StageSpec.from_json(spec) for spec in load_builtin_specs()])


def place(spec: StageSpec, effects: list[Effect], path: str) -> Placement:
    if is_pure(spec.implementation):
        return Placement(queue_names.PURE)
    return Placement("llm:any" if spec.implementation.startswith("llm:") else queue_names.LOCAL)


@pytest.mark.parametrize(
    ("name", "steps", "stages"),
    [
        ("caloron-kickoff", 6, 6),
        ("caloron-sprint_tick_core", 9, 9),
        ("noether-travel-intelligence", 9, 9),
        ("noether-weather-report", 8, 8),
    ],
)
def test_real_graphs_parse_validate_and_compile(name: str, steps: int, stages: int) -> None:
    file = SHARED / f"{name}.json"
    if not file.exists():
        pytest.skip(f"the real graphs are not here: {file.parent} (GRIDQ_TEST_GRAPHS names their folder)")
    graph = parse(file.read_bytes())
    refs = {node.id for _, node in walk_nodes(graph.root) if isinstance(node, Stage)}
    specs = [make_stage_spec(f"s{ref[:8]}", f"test:{ref}", id=ref.ljust(64, "0")) for ref in refs]
    catalogue = Catalogue(specs)
    validate(graph, catalogue)
    plan = compile_plan(graph, catalogue, place)
    check_plan(plan)
    assert len(plan.steps) == steps
    assert sum(len(step.ops) for step in plan.steps) == stages
    assert [effect["effect"] for effect in plan.effects] == ["Unknown"]
    assert parse(graph.to_json()) == graph
    assert graph.to_json() == json.loads(file.read_text("utf-8"))


def examples() -> list[Path]:
    return sorted(file for file in (TOP / "examples").glob("*.json") if "input" not in file.name)


def test_each_shape_has_an_example() -> None:
    assert {"kickoff", "tick", "travel", "weather"} <= {file.stem for file in examples()}


@pytest.mark.parametrize("file", examples(), ids=lambda file: file.stem)
def test_examples_use_built_in_stages_only(file: Path) -> None:
    graph = parse(file.read_bytes())
    validate(graph, BUILTINS)
    check_plan(compile_plan(graph, BUILTINS, place))


WEATHER = {"temp_C": "7", "weatherDesc": [{"value": "Rain"}], "humidity": "93"}
BODIES = {
    "https://wttr.in/S%C3%A3o%20Paulo?format=j1": {"current_condition": [WEATHER]},
    "https://api.open-meteo.com/v1/forecast?latitude=-23.5&longitude=-46.6&current_weather=true": {
        "current_weather": {"temperature": 7.5}
    },
    "https://nominatim.openstreetmap.org/search?q=S%C3%A3o%20Paulo&format=json&limit=1": [
        {"display_name": "São Paulo & <more>"}
    ],
}


def call(implementation: str, value: Any, path: str) -> Any:
    """The built-in stages themselves; other hosts and models stand in by what they would say."""
    if implementation == "builtin:http_get":
        url = (
            next(part for part in value.values() if isinstance(part, str))
            if isinstance(value, dict)
            else value
        )
        return {"status": 200, "headers": {}, "body": json.dumps(BODIES[url])}
    if implementation == "llm:complete":
        prompt = next(part for name, part in value.items() if name in ("items", "prompt", "text"))
        if "JSON array" in prompt:
            return 'Sure:\n```json\n[{"title": "Dig", "why": "first"}, {"note": 1}]\n```'
        if "urgent" in prompt:
            return " Yes."
        return "Said of: " + prompt.splitlines()[-1]
    return run_builtin(
        StageCall(id="", name="", path=path, implementation=implementation), value, StageContext()
    )


@pytest.mark.parametrize(
    ("name", "value", "answer"),
    [
        ("kickoff", {"brief": "a garden"}, "- Dig: first"),
        (
            "tick",
            {"ticket": "It rains in.", "customer": "Ada"},
            "[urgent: Yes] Said of: It rains in.\n\n"
            "Said of: Write two friendly sentences to Ada about: Said of: It rains in.",
        ),
        (
            "travel",
            {"city": "São Paulo", "lat": -23.5, "lon": -46.6},
            "<h1>São Paulo &amp; &lt;more&gt;</h1>\n<p>7.5 °C</p>",
        ),
        ("weather", {"city": "São Paulo"}, "Rain, 7 °C, humidity 93 %"),
    ],
)
def test_examples_give_their_answer(name: str, value: Any, answer: str) -> None:
    graph = parse((TOP / "examples" / f"{name}.json").read_bytes())
    plan: Plan = compile_plan(graph, BUILTINS, place)
    for seed in range(5):
        assert simulate(plan, value, call, random.Random(seed)) == answer
