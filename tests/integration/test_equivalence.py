"""Random graphs of every operator have the same answer on a grid, with real scripts and sessions, as by the
reference interpreter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, currently_in_test_context, given, settings
from hypothesis import strategies as st

from gridq.config.settings import Settings
from gridq.errors import GridError, StageError
from gridq.graph.catalogue import Catalogue
from gridq.graph.compile import compile_plan
from gridq.graph.interpreter import Interpreter, Outcome
from gridq.graph.nodes import Graph, parse
from gridq.graph.plan import Plan
from gridq.profiles.profile import StageContext
from gridq.protocol import queue_names
from gridq.protocol.models import Json, StageCall
from gridq.store.connection import connect
from gridq.submission.admission import Admission
from tests.generators import CATALOGUE, Calls, graphs, place, values
from tests.local_grid import LocalGrid
from workers.supervisor.embedded_server import EmbeddedServer

MAX_CALLS = 1_500
"""Nested Retries around a stage that always fails multiply its calls; such graphs show nothing new."""


class TestAdmission(Admission):
    """Admission over the generators' catalogue."""

    __test__ = False

    def _compile_text(self, text: bytes, catalogue: Catalogue) -> tuple[Graph, Plan]:
        graph = parse(text, max_depth=1000)
        return graph, compile_plan(graph, CATALOGUE, place, max_steps=100_000)


class CallsRunner:
    """Runs the generators' stages, and counts their calls for each job."""

    def __init__(self) -> None:
        self.calls: dict[str, Calls] = {}

    def __call__(self, stage: StageCall, value: Json, context: StageContext) -> Json:
        calls = self.calls.setdefault(context.job, Calls())
        return calls(stage.implementation, value, stage.path)


@pytest.fixture(scope="module")
def grid(server: EmbeddedServer) -> Iterator[LocalGrid]:
    config = Settings(
        broker_url=server.url, prefix="teq:", profiles=(), retry_backoff=0.1, sweep_ms=50, inline_value=200
    )
    client = connect(server.url)
    seats = {
        "m.router": [queue_names.PURE],
        "m.local": [queue_names.LOCAL],
        "m.a": ["bench:any"],
        "m.b": ["bench:any"],
    }
    with LocalGrid(client, config, seats, runner=CallsRunner()) as grid:
        grid.client._admission = TestAdmission(grid.scripts, config, {})
        yield grid
    for key in client.scan_iter("teq:*", count=1000):
        client.unlink(key)


def reference(graph: dict[str, Any], value: Json) -> Outcome:
    """Return the expected outcome; discard generated graphs that take thousands of calls."""
    calls = Calls()
    outcome = Interpreter(CATALOGUE, calls.call).run(parse(json.dumps(graph), max_depth=1000).root, value)
    if currently_in_test_context():
        assume(calls.counts.total() < MAX_CALLS)
    return outcome


def check(grid: LocalGrid, graph: dict[str, Any], value: Json) -> None:
    expected = reference(graph, value)
    compare(grid, grid.client.submit(graph, value), expected)


def compare(grid: LocalGrid, job: str, expected: Outcome) -> None:
    """Check that the job has the expected answer, or fails at one of the expected stages."""
    try:
        answer = grid.client.result(job, timeout=60)
    except StageError as exc:
        assert exc.path in expected.failures, (exc.path, expected)  # noqa: PT017 no error is expected of most
    except GridError as exc:
        raise AssertionError(f"{exc}; expected {expected}") from exc
    else:
        assert not expected.failed
        assert json.dumps(answer, sort_keys=True) == json.dumps(expected.value, sort_keys=True)


COMMON = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    derandomize=False,
)


@settings(COMMON, max_examples=150)
@given(graph=graphs(), value=values())
def test_any_graph_answers_as_the_reference(grid: LocalGrid, graph: dict[str, Any], value: Json) -> None:
    check(grid, graph, value)


@settings(COMMON, max_examples=60)
@given(graph=graphs(concurrent=False), value=values())
def test_a_graph_without_concurrency_answers_exactly_as_the_reference(
    grid: LocalGrid, graph: dict[str, Any], value: Json
) -> None:
    check(grid, graph, value)


@settings(COMMON, max_examples=10)
@given(data=st.lists(graphs(), min_size=20, max_size=20))
def test_many_jobs_at_once_do_not_mix(grid: LocalGrid, data: list[dict[str, Any]]) -> None:
    expected = [reference(graph, number) for number, graph in enumerate(data)]
    jobs = [grid.client.submit(graph, number) for number, graph in enumerate(data)]
    for job, outcome in zip(jobs, expected, strict=True):
        compare(grid, job, outcome)


def test_a_fan_out_of_a_thousand(grid: LocalGrid) -> None:
    stage = {"op": "Stage", "id": "slow_echo"}
    check(
        grid, {"root": {"op": "Parallel", "branches": {str(n): stage for n in range(1000)}}}, {"7": "seven"}
    )
    check(grid, {"root": {"op": "Fanout", "source": stage, "targets": [stage] * 1000}}, [])


def test_the_grid_is_empty_afterwards(grid: LocalGrid) -> None:
    keys = grid.scripts.keys
    client = grid.scripts.client
    for name in ("leases", "lease_info", "deadlines", "inbox", "answers"):
        assert not client.exists(keys(name)), name
    for pattern in ("classes:*", "waiting:*", "ready:*", "slots:*", "job:*", "submitted:*", "values:*"):
        assert not list(client.scan_iter(keys(pattern))), pattern
