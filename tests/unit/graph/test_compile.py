"""The shapes of plans: steps, expressions and the order between them."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from gridq.graph.compile import compile_plan
from gridq.graph.interpreter import Interpreter
from gridq.graph.nodes import parse
from gridq.graph.plan import MAX_TIMEOUT_SECONDS, Op, Plan
from gridq.protocol import queue_names
from tests.builders import Node, branch, const, fanout, let, parallel, retry, seq, stage
from tests.generators import CATALOGUE, Calls, place
from tests.simulate import Simulation
from tests.unit.graph.test_plan_meaning import check_plan


def plan_of(root: Node) -> Plan:
    plan = compile_plan(parse({"description": "", "version": "0.1.0", "root": root}), CATALOGUE, place)
    check_plan(plan)
    return plan


def outcome(root: Node, value: Any = None) -> tuple[Any, list[str]]:
    """The answer (or the failed path) of the plan, equal to the reference's in 20 orders, and what ran."""
    parsed = parse({"description": "", "version": "0.1.0", "root": root})
    plan = compile_plan(parsed, CATALOGUE, place)
    check_plan(plan)
    for seed in range(20):
        reference = Interpreter(CATALOGUE, Calls().call)
        expected = reference.run(parsed.root, value)
        run = Simulation(plan, value, Calls(), random.Random(seed))
        actual = run.outcome()
        assert actual.failures.keys() <= expected.failures.keys()
        assert actual.failed or actual == expected
    return next(iter(actual.failures), actual.value), [path for path, _ in run.calls]


# -- operators that are only expressions ---------------------------------------------------------------------


def test_a_graph_of_constants_is_one_value_step() -> None:
    plan = plan_of(
        seq(
            const(1),
            parallel(a=const(2), b=fanout(const(3), const(4), const([]))),
            let(const({"x": 1}), y=const(2)),
        )
    )
    (step,) = plan.steps
    assert (step.queue, step.ops, step.after) == (queue_names.PURE, (), ())
    assert plan.answer == 0


def test_a_stage_alone_is_the_answer() -> None:
    plan = plan_of(stage())
    (step,) = plan.steps
    assert (step.path, step.queue, step.micro_dollars, step.reads_input) == ("root", "bench:any", 7, True)
    assert step.ops[0].input == ["in"]
    assert step.value == ["op", 0]


def test_config_is_merged_into_the_input_and_no_config_keeps_it() -> None:
    plan = plan_of(seq(stage(), stage("slow_echo", b=1), stage("labelled", b=2), {**stage(), "config": {}}))
    inputs = [op.input for step in plan.steps for op in step.ops]
    assert inputs[0] == ["in"]
    assert inputs[1] == ["cfg", ["out", 0], {"b": 1}]
    assert inputs[2] == ["cfg", ["out", 1], {"label": "x", "b": 2}]
    assert inputs[3] == ["cfg", ["out", 2], {}]


def test_remote_stage_is_a_local_step_on_url_and_input() -> None:
    any_type = {"kind": "Any"}
    plan = plan_of({"op": "RemoteStage", "url": "https://a.example", "input": any_type, "output": any_type})
    (step,) = plan.steps
    (op,) = step.ops
    assert step.queue == queue_names.LOCAL
    assert op.implementation == "builtin:remote_stage"
    assert op.input == ["rec", {"url": ["const", "https://a.example"], "input": ["in"]}]
    assert [effect["effect"] for effect in op.effects] == ["Network", "Fallible"]


# -- control ------------------------------------------------------------------------------------------------


def test_sequential_waits_where_no_data_flows() -> None:
    plan = plan_of(seq(stage(), const(1), stage()))
    assert plan.steps[1].after == (0,)
    assert plan.steps[1].refs == ()


def test_unused_bindings_still_run_and_can_fail() -> None:
    plan = plan_of(let(const("body"), a=stage(), b=stage()))
    assert plan.steps[plan.answer].after == (0, 1)
    assert outcome(let(const("body"), a=stage("slow_fail"))) == (
        "root.bindings.a",
        ["root.bindings.a"],
    )


def test_a_let_body_waits_for_all_bindings_and_shadows() -> None:
    root = let(let(stage(), a=stage("size")), a=stage(), b=const(2))
    assert outcome(root, {"a": 0, "c": 3})[0] == {
        "a": len('{"a": {"a": 0, "c": 3}, "c": 3, "b": 2}'),
        "b": 2,
        "c": 3,
    }
    assert outcome(let(stage(), a=const(1)), "no record")[0] == {"a": 1}
    assert outcome({"op": "Let", "bindings": {}, "body": stage()}, "no record")[0] == {}


def test_a_merge_target_waits_for_sources_that_it_does_not_read() -> None:
    plan = plan_of({"op": "Merge", "sources": [stage(), const(1)], "target": seq(const(0), stage())})
    assert plan.steps[1].after == (0,)


def test_merge_gives_null_for_a_missing_source_and_the_whole_value_if_all_are_missing() -> None:
    root = {"op": "Merge", "sources": [stage(), stage()], "target": stage()}
    assert outcome(root, {"source_1": 5})[0] == {"source_0": None, "source_1": 5}
    assert outcome(root, [1])[0] == {"source_0": [1], "source_1": [1]}


# -- Branch -------------------------------------------------------------------------------------------------


def test_the_predicates_step_is_the_gate_and_arms_depend_on_it() -> None:
    plan = plan_of(branch(stage("slow_true"), stage(), stage("size")))
    assert [arms.gate for arms in plan.arms] == [0]
    assert (plan.arms[0].if_true, plan.arms[0].if_false) == ((1,), (2,))
    assert plan.steps[1].guard == (0, True)
    assert plan.steps[1].after == plan.steps[2].after == (0,)
    last = plan.steps[plan.answer]
    assert last.value == ["phi", ["out", 0], ["out", 1], ["out", 2]]
    assert last.after == (0, 1, 2)


def test_a_predicate_without_a_step_gets_one() -> None:
    plan = plan_of(branch(const(True), stage(), const(0)))
    assert plan.steps[0].value == ["const", True]
    assert plan.steps[0].queue == queue_names.PURE
    assert plan.arms[0].if_false == ()


@pytest.mark.parametrize("value", [True, False, None, 1, "true", [True], {"a": True}])
def test_only_json_true_is_true(value: Any) -> None:
    answer, calls = outcome(branch(stage(), const("yes"), const("no")), value)
    assert answer == ("yes" if value is True else "no")
    assert calls == ["root.predicate"]


def test_the_arm_taken_gets_the_original_input_and_the_other_never_runs() -> None:
    root = branch(seq(stage("size"), const(False)), stage("slow_fail"), stage())
    assert outcome(root, "original") == ("original", ["root.predicate.stages[0]", "root.if_false"])


def test_branches_on_equal_predicates_have_separate_gates() -> None:
    same = branch(const(True), stage(), stage("size"))
    plan = plan_of(seq(same, same, parallel(a=same, b=same)))
    assert len({arms.gate for arms in plan.arms}) == len(plan.arms) == 4


def test_a_step_inside_a_retry_is_not_a_gate() -> None:
    plan = plan_of(branch(retry(stage("slow_true")), stage(), const(0)))
    assert [arms.gate for arms in plan.arms] == [1]
    assert (plan.steps[1].scope, plan.steps[1].value) == (None, ["out", 0])


def test_a_nested_gate_is_itself_guarded_and_skipped() -> None:
    inner = branch(stage("slow_true"), stage(), stage("size"))
    plan = plan_of(branch(stage("slow_true"), inner, const(0)))
    outer, nested = plan.arms
    assert plan.steps[nested.gate].guard == (outer.gate, True)
    assert set(outer.if_true) >= {nested.gate, *nested.if_true, *nested.if_false}
    assert outcome(branch(stage("slow_true"), inner, const(0)), False) == (0, ["root.predicate"])


def test_a_branch_may_be_the_predicate_of_a_branch() -> None:
    root = branch(branch(stage("slow_true"), const(False), const(True)), const("a"), stage())
    assert outcome(root, True)[0] is True
    assert outcome(root, 3)[0] == "a"


def test_a_step_after_an_empty_arm_waits_for_the_gate() -> None:
    plan = plan_of(seq(branch(stage("slow_true"), const(1), stage()), const(0), stage()))
    assert plan.steps[2].after == (0, 1)


# -- Retry --------------------------------------------------------------------------------------------------


def test_a_retry_is_a_scope_with_the_steps_inside_it() -> None:
    plan = plan_of(seq(stage(), retry(seq(stage(), retry(stage(), 3, delay_ms=5), stage()), 2), stage()))
    outer, inner = plan.scopes
    assert (outer.path, outer.parent, outer.max_attempts, outer.delay_ms) == ("root.stages[1]", None, 2, 0)
    assert outer.steps == ((1, 0), (2, 1), (3, 1))
    assert (inner.path, inner.parent, inner.max_attempts, inner.delay_ms) == (
        "root.stages[1].stage.stages[1]",
        0,
        3,
        5,
    )
    assert inner.steps == ((2, 0),)
    assert [step.scope for step in plan.steps] == [None, 0, 1, 0, None]


def test_a_retry_without_a_step_vanishes() -> None:
    plan = plan_of(seq(retry(const(1)), retry(retry(seq(stage(), retry(const(2)))))))
    assert [(scope.path, scope.parent) for scope in plan.scopes] == [
        ("root.stages[1]", None),
        ("root.stages[1].stage", 0),
    ]


def test_steps_outside_a_retry_wait_only_for_its_last_step() -> None:
    plan = plan_of(seq(retry(parallel(a=stage(), b=stage("slow_fail"))), stage()))
    join, after = plan.steps[2], plan.steps[3]
    assert (join.scope, join.after) == (0, (0, 1))
    assert after.after == (2,)


def test_tries_are_counted_and_the_last_error_is_the_error() -> None:
    assert outcome(retry(stage("flaky", fails=2), 3), 1)[1] == ["root.stage"] * 3
    assert outcome(retry(stage("flaky", fails=3), 3), 1) == ("root.stage", ["root.stage"] * 3)
    nested = retry(seq(stage(), retry(stage("flaky", fails=3), 2)), 2)
    assert outcome(nested, 1)[1] == ["root.stage.stages[0]", *["root.stage.stages[1].stage"] * 2] * 2


def test_branches_and_retries_nest() -> None:
    inner = retry(seq(branch(stage("slow_true"), stage("flaky", fails=1), const(9)), stage("size")), 2)
    answer, calls = outcome(branch(stage("slow_true"), inner, const(0)), True)
    assert answer == len(json.dumps({"items": True, "fails": 1}))
    assert calls.count("root.if_true.stage.stages[0].if_true") == 2
    assert calls.count("root.if_true.stage.stages[1]") == 1


def test_a_retry_on_outer_steps_does_not_run_them_again() -> None:
    root = let(
        retry(seq(parallel(a=stage(), b=stage()), stage("flaky", fails=1)), 2), a=stage("size"), b=stage()
    )
    _, calls = outcome(root, {})
    assert calls.count("root.bindings.a") == calls.count("root.bindings.b") == 1
    assert calls.count("root.body.stage.stages[0].branches.a") == 2


# -- fusion -------------------------------------------------------------------------------------------------


def test_a_run_of_pure_stages_is_one_step() -> None:
    plan = plan_of(seq(stage(), stage("echo"), stage("wrap", b=1), stage("first"), stage()))
    assert [step.queue for step in plan.steps] == ["bench:any", queue_names.PURE, "bench:any"]
    fused = plan.steps[1]
    assert [op.path for op in fused.ops] == [f"root.stages[{i}]" for i in (1, 2, 3)]
    assert [op.input for op in fused.ops] == [["out", 0], ["cfg", ["op", 0], {"b": 1}], ["op", 1]]
    assert (fused.path, fused.value, fused.after, fused.refs) == ("root.stages[1]", ["op", 2], (0,), (0,))


def test_final_pure_stages_are_fused_too() -> None:
    plan = plan_of(parallel(a=seq(stage("echo"), stage("wrap")), b=const(1)))
    (step,) = plan.steps
    assert step.value == ["rec", {"a": ["op", 1], "b": ["const", 1]}]


def test_a_fused_step_reads_the_input_where_any_of_it_does() -> None:
    root = let(stage("echo"), a=seq(const(1), stage("echo")))
    (step,) = plan_of(root).steps
    assert step.reads_input
    assert outcome(root, {"b": 2})[0] == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("root", "steps"),
    [
        (seq(stage("echo"), retry(stage("echo"))), 2),
        (seq(retry(stage("echo")), stage("echo")), 2),
        (seq(stage("echo"), retry(seq(stage("echo"), stage("flaky", fails=1)))), 3),
        (branch(stage("echo"), stage("echo"), const(0)), 3),
        (branch(stage("echo"), const(1), const(0)), 2),
        (fanout(stage("echo"), stage("echo"), stage("wrap")), 4),
        (seq(stage("echo"), branch(const(True), stage("echo"), const(0))), 4),
    ],
)
def test_no_fusion_over_a_guard_a_scope_a_gate_or_a_second_reader(root: Node, steps: int) -> None:
    assert len(plan_of(root).steps) == steps
    _, calls = outcome(root, True)
    if "flaky" in json.dumps(root):
        assert calls.count("root.stages[1].stage.stages[0]") == 2


@pytest.mark.parametrize(("stated", "means"), [(None, None), (2.5, 2.5), (10**400, MAX_TIMEOUT_SECONDS)])
def test_a_stages_call_has_a_timeout_that_fits(stated: float | None, means: float | None) -> None:
    op = Op("root", "a", "a", "python:m:f", ["in"], ({"effect": "Network"},), stated)
    call = op.make_call("gridq:local")
    assert call.timeout == means
    assert (call.queue, [effect.effect for effect in call.effects]) == ("gridq:local", ["Network"])
