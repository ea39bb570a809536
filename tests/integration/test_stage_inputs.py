"""What a stage reads is bounded: neither the script, nor a router or worker, holds more in its memory."""

from __future__ import annotations

import pytest

from gridq.errors import InputTooLarge
from gridq.protocol.models import Json
from tests.conftest import GridEnv
from tests.fakes.bench_profile import BENCH
from tests.local_grid import DEFAULT_SEATS, LocalGrid
from tests.unit.store.plans import Grid, plan, step

LIMIT = 20_000


def join(width: int, branch: Json) -> Json:
    branches = {f"b{number}": branch for number in range(width)}
    stages = [{"op": "Parallel", "branches": branches}, {"op": "Stage", "id": "bench_echo"}]
    return {"root": {"op": "Sequential", "stages": stages}}


@pytest.mark.parametrize("inline", [0, 1 << 20], ids=["stored apart", "inline"])
def test_inputs_that_are_too_long_together_fail_the_stage_with_their_sum(
    grid_env: GridEnv, key_hygiene: None, inline: int
) -> None:
    changes = {"profiles": (BENCH,), "max_stage_input": LIMIT, "inline_value": inline}
    config = grid_env.settings.model_copy(update=changes)
    with LocalGrid(grid_env.client, config, DEFAULT_SEATS) as grid:
        graph = join(10, {"op": "Stage", "id": "bench_echo"})
        assert grid.client.run(graph, "x" * 1500, timeout=60) == {f"b{n}": "x" * 1500 for n in range(10)}
        with pytest.raises(InputTooLarge) as caught:
            grid.client.run(graph, "x" * 3000, timeout=60)
    error = caught.value
    assert error.path == "root.stages[1]"
    assert (error.details["bytes"], error.details["limit"]) == (10 * 3002, LIMIT)
    assert "GRIDQ_MAX_STAGE_INPUT" in (error.fix or "")


def test_a_claim_with_too_long_values_carries_none(grid_env: GridEnv) -> None:
    grid = Grid(grid_env.client, grid_env.settings.model_copy(update={"max_stage_input": 1024}))
    grid.seat()
    width = 1200  # more than are read at once
    grid.job(plan(*(step() for _ in range(width)), step(*range(width))))
    for _ in range(width):
        grid.done(grid.take(), b'"xx"')
    claim = grid.take()
    assert (claim.excess_bytes, claim.refs, claim.values, claim.input) == (width * 4, (), (), b"")
