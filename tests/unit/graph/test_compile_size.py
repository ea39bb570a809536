"""Plans stay small: linear in the graph and of bounded depth. `place` is called once per stage."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from gridq.errors import GraphTooLarge, UnknownStage
from gridq.graph.catalogue import Catalogue, StageSpec, make_stage_spec
from gridq.graph.compile import Placement, compile_plan
from gridq.graph.expressions import MAX_EXPRESSION_DEPTH
from gridq.graph.nodes import parse
from gridq.graph.plan import Op, Step, dump_step, evaluate, load_step
from gridq.graph.source import measure_nesting
from gridq.protocol.models import Effect
from tests.builders import branch, const, fanout, let, parallel, retry, seq, stage
from tests.generators import CATALOGUE, Calls, place
from tests.simulate import Simulation
from tests.unit.graph.test_compile import plan_of

# -- size ---------------------------------------------------------------------------------------------------


def test_a_large_input_is_computed_once() -> None:
    heavy = parallel(**{f"b{i}": stage() for i in range(40)})
    plan = plan_of(seq(heavy, parallel(**{f"b{i}": stage() for i in range(40)})))
    joins = [number for number, step in enumerate(plan.steps) if not step.ops and number != plan.answer]
    assert joins == [40]
    assert all(step.after == (40,) for step in plan.steps[41:81])


def test_many_to_many_dependencies_go_through_a_join() -> None:
    wide = fanout(const(1), *[stage()] * 200)
    plan = plan_of(seq(wide, const(0), fanout(const(1), *[stage()] * 200)))
    assert sum(len(step.after) for step in plan.steps) < 700


def test_ten_thousand_steps_stay_linear() -> None:
    shapes = [
        seq(*[stage()] * 10_000),
        seq(*[stage("echo")] * 10_000),
        parallel(**{f"b{i}": stage() for i in range(10_000)}),
        seq(fanout(stage(), *[stage()] * 5_000), fanout(stage(), *[stage()] * 5_000)),
    ]
    for root in shapes:
        plan = plan_of(root)
        edges = sum(len(step.after) for step in plan.steps)
        size = sum(len(dump_step(step)) for step in plan.steps)
        assert edges <= 30_100
        assert size < 3_000_000


@pytest.mark.parametrize("operator", ["Sequential", "Parallel", "Let", "Retry", "Branch", "Merge", "Fanout"])
def test_depth_costs_no_stack(operator: str) -> None:
    node = stage()
    for _ in range(390):
        node = {
            "Sequential": seq(node),
            "Parallel": parallel(a=node, b=const(1)),
            "Let": let(node, a=stage("echo")),
            "Retry": retry(node),
            "Branch": branch(const(True), node, const(1)),
            "Merge": {"op": "Merge", "sources": [node], "target": stage("echo")},
            "Fanout": fanout(const(1), node),
        }[operator]
    plan = plan_of(node)
    Simulation(plan, {"a": True}, Calls(), random.Random(1)).run()
    assert (
        max(measure_nesting(json.loads(dump_step(step))) for step in plan.steps)
        < 2 * MAX_EXPRESSION_DEPTH + 20
    )


def test_a_plan_with_too_many_steps_is_refused() -> None:
    graph = parse({"root": seq(*[stage()] * 11)})
    assert len(compile_plan(graph, CATALOGUE, place, max_steps=11).steps) == 11
    with pytest.raises(GraphTooLarge) as caught:
        compile_plan(graph, CATALOGUE, place, max_steps=10)
    assert caught.value.path == "root.stages[10]"


def test_unknown_stages_name_the_path() -> None:
    with pytest.raises(UnknownStage) as caught:
        plan_of(parallel(weather=stage("slow_ecko")))
    assert caught.value.path == "root.branches.weather"
    assert "slow_echo" in str(caught.value.fix)


# -- placing ------------------------------------------------------------------------------------------------


def test_place_is_called_once_per_distinct_node_with_its_effects() -> None:
    chat = make_stage_spec(
        "chat", "llm:chat", effects=[Effect(effect="Llm", model={"$config": "model", "default": "any"})]
    )
    calls: list[tuple[str, list[dict[str, Any]], str]] = []

    def record(spec: StageSpec, effects: list[Effect], path: str) -> Placement:
        calls.append((spec.name, [effect.model_dump() for effect in effects], path))
        return Placement(f"llm:{effects[0].fields['model']}", 5)

    root = seq(stage("chat"), stage("chat", model="claude"), stage("chat"), stage("chat", temperature=0))
    plan = compile_plan(parse({"root": root}), Catalogue([chat]), record)
    assert [step.queue for step in plan.steps] == ["llm:any", "llm:claude", "llm:any", "llm:any"]
    assert [path for _, _, path in calls] == ["root.stages[0]", "root.stages[1]"]
    assert plan.effects == ({"effect": "Llm", "model": "any"}, {"effect": "Llm", "model": "claude"})
    assert plan.steps[1].ops[0].effects == ({"effect": "Llm", "model": "claude"},)


def test_a_step_survives_the_round_trip() -> None:
    op = Op("root.a", "1f", "chat", "llm:chat", ["cfg", ["in"], {"π": 10**30}], ({"effect": "Llm"},), 2.5)
    step = Step(
        "root",
        "llm:any",
        (op,),
        ["rec", {"a": ["op", 0], "b": ["out", 3]}],
        (3,),
        (3,),
        True,
        (1, True),
        0,
        9,
    )
    loaded = load_step(dump_step(step))
    assert loaded.ops == step.ops
    assert (loaded.path, loaded.queue, loaded.value) == (step.path, step.queue, step.value)
    assert (loaded.refs, loaded.reads_input) == (step.refs, True)


def test_phi_evaluates_only_the_taken_arm() -> None:
    def outputs(number: int) -> Any:
        return {0: True, 1: "taken"}[number]

    phi = ["phi", ["out", 0], ["out", 1], ["out", 2]]
    assert evaluate(phi, lambda: None, outputs) == "taken"
    with pytest.raises(ValueError, match="unknown expression"):
        evaluate(["nonsense"], lambda: None, outputs)
