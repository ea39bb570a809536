"""`gridq explain` and `gridq job` with graphs of thousands of stages: what they print is bounded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gridq import cli
from gridq.cli.commands.explain import _format_steps
from gridq.client import Client
from gridq.config.settings import settings
from gridq.protocol.models import HistoryRow
from gridq.store.replies import Claim
from tests.conftest import GridEnv
from tests.fakes.bench_profile import BENCH
from tests.unit.store.plans import ANY, Grid, plan, step, usage

STAGES = 1_500
MAX_PRINTED_BYTES = 100_000

pytestmark = pytest.mark.usefixtures("key_hygiene")


@pytest.fixture
def client(grid_env: GridEnv, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("GRIDQ_PROFILES", BENCH)
    settings.cache_clear()
    with Client(config=grid_env.settings) as made:
        yield made


def gridq(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, arguments)


def write_graph(folder: Path) -> str:
    """Write a graph of stages side by side, joined by one step, in as many queues as stages."""
    branches = {
        f"b{number}": {"op": "Stage", "id": "bench_echo", "config": {"slug": f"q{number}"}}
        for number in range(STAGES)
    }
    file = folder / "wide.json"
    file.write_text(json.dumps({"root": {"op": "Parallel", "branches": branches}}))
    return str(file)


@pytest.mark.usefixtures("client")
def test_explain_prints_a_bounded_table_of_a_wide_graph(tmp_path: Path) -> None:
    graph = write_graph(tmp_path)
    done = gridq("explain", graph)
    assert done.exit_code == 0, done.output
    assert len(done.stdout) < MAX_PRINTED_BYTES
    assert done.stdout.count("more") >= 2, "of the steps and of the reasons"
    report: dict[str, Any] = json.loads(gridq("explain", graph, "--json").stdout)
    assert len(report["steps"]) == STAGES + 1
    assert report["steps"][-1]["after"] == list(range(STAGES))


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], "-"),
        ([3], "3"),
        ([0, 1], "0,1"),
        ([0, 1, 2], "0-2"),
        ([0, 2, 4, 5, 6], "0,2,4-6"),
        (list(range(0, 20, 2)), "0,2,4,6 and 6 more"),
        ([*range(9), 20, 22, 24, *range(30, 40)], "0-8,20,22,24 and 10 more"),
    ],
)
def test_steps_are_named_as_ranges(numbers: list[int], text: str) -> None:
    assert _format_steps(numbers) == text


def complete(grid: Grid, claim: Claim) -> Claim | str:
    """Complete a claim with a row of one token; return the next claim."""
    row = HistoryRow(path="root", stage="bench_echo", queue=ANY, worker="m.a", tokens_in=1)
    found = grid.scripts.complete(
        claim.lease, b"1", used=usage(0), rows=json.dumps([row.model_dump()]), seat="m.a", incarnation="i1",
        slot="0", nonce=claim.lease, go_on=True,
    )  # fmt: skip
    return found[2]


def test_job_counts_what_all_stages_of_a_large_job_used(client: Client) -> None:
    """Its view has only the last records."""
    grid = Grid(client.redis, client.config)
    job = grid.job(plan(*(step() for _ in range(STAGES))))
    grid.seat()
    claim: Claim | str = grid.take()
    for done in range(1, STAGES + 1):
        assert isinstance(claim, Claim)
        claim = complete(grid, claim)
        if done in (STAGES - 1, STAGES):  # it runs, and it has ended
            shown = gridq("job", job)
            assert shown.exit_code == 0, shown.output
            assert f" {done} tokens in" in shown.stdout
            assert len(shown.stdout) < MAX_PRINTED_BYTES
    assert len(json.loads(gridq("job", job, "--json").stdout)["rows"]) == STAGES
