"""A chaos plan depends only on its seed and has the outcome that its graphs define."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from gridq.config.settings import Settings
from gridq.errors import ConfigError, StageError
from gridq.graph.catalogue import StageSpec
from gridq.graph.interpreter import Interpreter
from gridq.graph.nodes import parse
from gridq.profiles.profile import load_profiles
from gridq.submission.planning import compile_text, load_local_catalogue
from tests.chaos import plan
from tests.chaos.endpoints.calls import make_answer, parse_system_text
from tests.chaos.graphs import JOB, GraphGenerator, spends
from tests.chaos.profile import PROFILE
from tests.chaos.witness import ORDERS, answer

CONFIG = Settings(profiles=(PROFILE, "llm"), stages=("tests.chaos.stages",))
CATALOGUE = load_local_catalogue(CONFIG, load_profiles(CONFIG.profiles))


class Calls:
    """Runs stages as a grid without faults does: each call is the next attempt."""

    def __init__(self) -> None:
        self.attempts: dict[str, int] = {}

    def __call__(self, spec: StageSpec, value: Any, path: str) -> Any:
        implementation = spec.implementation
        if implementation == "builtin:format_json":
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        if implementation == "llm:complete":
            return make_answer(parse_system_text(value["system"])[1], value["items"])
        orders = value[ORDERS]
        self.attempts[path] = self.attempts.get(path, 0) + 1
        if (
            orders.get("fail")
            or self.attempts[path] <= orders.get("flaky", 0)
            or orders["ms"] == 5000
            or orders.get("die", 0) > 1
        ):
            raise StageError("it was told to fail", {"path": path})
        return answer(value)


@pytest.mark.parametrize("failing", [0.0, 0.15])
def test_the_expected_outcome_matches_the_reference(failing: float) -> None:
    generator = GraphGenerator(random.Random(int(failing * 100)))
    generator.asking = plan.ASKING
    has_errors = set()
    models: set[str] = set()
    for _ in range(150):
        made = generator.generate(failing=failing)
        models.update(made.asked)
        outcome = Interpreter(CATALOGUE, Calls()).run(parse(made.graph).root, made.input)
        assert made.outcome.errors.keys() == outcome.failures.keys()
        if not outcome.failed:
            assert made.outcome.value == outcome.value
        has_errors.add(outcome.failed)
        compile_text(json.dumps(made.graph), CATALOGUE, CONFIG, load_profiles(CONFIG.profiles))
    assert has_errors == ({False} if not failing else {False, True})
    assert models


@pytest.mark.parametrize("layered", [False, True])
def test_a_huge_graph_has_its_size_and_the_expected_outcome(layered: bool) -> None:
    generator = GraphGenerator(random.Random(1))
    generator.asking = plan.ASKING
    made = generator.generate_huge(1000, layered=layered)
    assert 800 < plan.count_stages(made) <= 1000
    assert made.asked
    outcome = Interpreter(CATALOGUE, Calls()).run(parse(made.graph).root, made.input)
    assert outcome.value == made.outcome.value
    stages = [node["config"][ORDERS] for node in find_stages(made.graph) if ORDERS in node.get("config", {})]
    assert max(orders["ms"] for orders in stages) <= 2
    assert not any(orders.keys() & {"die", "seat", "size", "emit"} for orders in stages)


def find_stages(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict) and node.get("op") == "Stage":
        yield node
    elif isinstance(node, dict | list):
        for inner in node.values() if isinstance(node, dict) else node:
            yield from find_stages(inner)


def test_a_part_of_the_stages_is_in_huge_graphs_and_model_calls_name_their_job() -> None:
    made = plan.make_plan(10_000, 4, 500, tuple(plan.FAULTS), 1.5)
    huge = [job for job in made.jobs if job.made.graph["description"] == "huge"]
    assert sum(plan.count_stages(job.made) for job in huge) == pytest.approx(4000, rel=0.25)
    largest = max(huge, key=lambda job: plan.count_stages(job.made))
    assert plan.count_stages(largest.made) > 2000
    assert (largest.cancel, largest.made.outcome.errors) == (None, {})
    assert len(made.requests) == 10_000 // plan.STAGES_PER_REQUEST
    assert made.asked > len(made.requests)
    for job in made.jobs:
        text = json.dumps(job.made.graph)
        assert JOB not in text
        assert text.count(job.id) == len(job.made.asked)


def test_faults_of_endpoints_leave_those_of_the_grid_as_they_are() -> None:
    kinds = tuple(kind for kind in plan.FAULTS if kind not in plan.ENDPOINT_FAULTS)
    made = plan.make_plan(1000, 4, 500, tuple(plan.FAULTS), 1.5)
    assert {fault.kind for fault in made.faults} > plan.ENDPOINT_FAULTS
    without = plan.make_plan(1000, 4, 500, kinds, 1.5)
    assert [fault for fault in made.faults if fault.kind not in plan.ENDPOINT_FAULTS] == without.faults
    assert (without.jobs, without.requests) == (made.jobs, made.requests)


def test_a_plan_uses_every_operator_and_distinct_stage_ids() -> None:
    made = plan.make_plan(1000, 5, 60, (), 1.5)
    text = json.dumps([job.made.graph for job in made.jobs])
    for op in ("Sequential", "Parallel", "Branch", "Retry", "Fanout", "Merge", "Let", "Const"):
        assert f'"op": "{op}"' in text
    for job in made.jobs:
        assert len(set(job.made.stages.values())) == len(job.made.stages)
    assert 1000 <= made.stages < 1100


def test_the_seed_determines_the_plan() -> None:
    one, same, other = (plan.make_plan(300, seed, 30, plan.parse_faults("all"), 1.5) for seed in (7, 7, 8))
    assert one == same
    assert one.jobs[0].id != other.jobs[0].id
    assert plan.make_plan(300, 7, 30, ("kill",), 1.5).jobs == one.jobs, "other faults are no other jobs"
    assert {fault.kind for fault in plan.make_plan(300, 7, 30, ("kill",), 1.5).faults} == {"kill"}


def test_jobs_use_all_channels_and_keyed_jobs_are_submitted_twice() -> None:
    jobs = plan.make_plan(2000, 5, 60, (), 1.5).jobs
    assert {(job.channel, "idempotency_key" in job.options) for job in jobs} == {
        (channel, keyed) for channel in ("server", "celery", "gateway") for keyed in (False, True)
    }
    keyed = [job for job in jobs if "idempotency_key" in job.options]
    assert all(job.again is not None for job in keyed)
    # What a router refuses leaves its key free, for another job.
    assert not any(job.allowed_errors & plan.REFUSED for job in keyed)
    assert any("deadline" in job.options for job in jobs)


def test_jobs_of_limited_agents_are_submitted_once_and_retry_no_stage() -> None:
    jobs = [
        job
        for job in plan.make_plan(4000, 5, 60, (), 1.5).jobs
        if job.options["agent"] in plan.LIMITED_AGENTS
    ]
    assert {job.options["agent"] for job in jobs} == set(plan.LIMITED_AGENTS)
    for job in jobs:
        assert job.again is None
        assert "idempotency_key" not in job.options
        assert job.allowed_errors >= plan.QUOTAS
        assert '"op": "Retry"' not in json.dumps(job.made.graph)


def test_the_planned_spending_of_stages_is_computed() -> None:
    stages = [
        {"op": "Stage", "id": name, "config": {ORDERS: {"id": name, "spend": spend}}}
        for name, spend in (("chaos_seat", 100), ("chaos_rare", 0), ("chaos_seat", 500))
    ]
    local = {"op": "Stage", "id": "chaos_local", "config": {ORDERS: {"id": "x"}}}
    root = {
        "op": "Fanout",
        "source": {"op": "Const", "value": {"id": "chaos_seat"}},
        "targets": [*stages, local],
    }
    assert list(spends({"description": "x", "root": root})) == [100, 0, 500]
    made = plan.make_plan(300, 7, 30, (), 1.5)
    assert 100 < len(made.spends) < made.stages
    assert set(made.spends) == {0, 100, 500}


def test_faults_are_selected_by_name() -> None:
    assert plan.parse_faults("cut, kill") == ("kill", "cut")
    assert plan.parse_faults("all") == tuple(plan.FAULTS)
    assert plan.parse_faults("none") == ()
    with pytest.raises(ConfigError, match="flood"):
        plan.parse_faults("kill,flood")
