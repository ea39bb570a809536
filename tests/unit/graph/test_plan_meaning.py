"""A plan means what its graph means: any order of its steps gives the reference's answer or a permitted
error."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gridq.graph.compile import compile_plan
from gridq.graph.interpreter import Interpreter
from gridq.graph.nodes import parse
from gridq.graph.plan import Plan
from tests.generators import CATALOGUE, Calls, graphs, place, values
from tests.simulate import Simulation

BOUNDS = settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)


def _sorted(calls: list[tuple[str, Any]]) -> list[tuple[str, str]]:
    return sorted((path, repr(value)) for path, value in calls)


@BOUNDS
@given(graphs(), values(), st.integers(0, 2**32))
def test_any_order_gives_the_reference_answer_or_a_permitted_error(
    graph: dict[str, Any], value: Any, seed: int
) -> None:
    root = parse(graph)
    plan = compile_plan(root, CATALOGUE, place)
    check_plan(plan)
    reference = Interpreter(CATALOGUE, Calls().call)
    expected = reference.run(root.root, value)
    run = Simulation(plan, value, Calls(), random.Random(seed))
    actual = run.outcome()
    assert actual.failures.keys() <= expected.failures.keys()
    if not actual.failed:
        assert actual == expected
        # Each stage ran once, on the same input, and no stage of an arm not taken.
        assert _sorted(run.calls) == _sorted(reference.calls)


@BOUNDS
@given(graphs(concurrent=False), values(), st.integers(0, 2**32))
def test_a_plan_without_concurrency_makes_the_reference_calls(
    graph: dict[str, Any], value: Any, seed: int
) -> None:
    root = parse(graph)
    plan = compile_plan(root, CATALOGUE, place)
    reference = Interpreter(CATALOGUE, Calls().call)
    expected = reference.run(root.root, value)
    run = Simulation(plan, value, Calls(), random.Random(seed))
    actual = run.outcome()
    assert (actual.value, actual.failures.keys()) == (expected.value, expected.failures.keys())
    assert [(path, repr(value)) for path, value in run.calls] == [
        (path, repr(value)) for path, value in reference.calls
    ]


def check_plan(plan: Plan) -> None:
    """Check the properties of every plan."""
    assert plan.steps[plan.answer].guard is None
    gates = [arms.gate for arms in plan.arms]
    assert len(set(gates)) == len(gates)
    for number, step in enumerate(plan.steps):
        assert all(before < number for before in step.after)
        assert set(step.refs) <= set(step.after)
        assert list(step.after) == sorted(set(step.after))
        if step.guard is not None:
            gate, arm = step.guard
            arms = next(arms for arms in plan.arms if arms.gate == gate)
            assert number in (arms.if_true if arm else arms.if_false)
        if step.scope is not None:
            assert number in dict(plan.scopes[step.scope].steps)
    for arms in plan.arms:
        assert not set(arms.if_true) & set(arms.if_false)
        assert all(number > arms.gate for number in (*arms.if_true, *arms.if_false))
    for scope in plan.scopes:
        assert scope.steps
        inside = dict(scope.steps)
        for number, count in scope.steps:
            assert count == sum(before in inside for before in plan.steps[number].after)
