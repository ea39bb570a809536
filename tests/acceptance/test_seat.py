"""`gridq seat`, used by the owner of a running worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from gridq.config.settings import Settings
from tests.acceptance.grids import WholeGrid, whole
from tests.acceptance.homes import GRIDQ
from tests.fakes.bench_profile import BENCH
from tests.waiting import wait_for
from workers.supervisor.embedded_server import EmbeddedServer

pytestmark = pytest.mark.slow

LONG = {"root": {"op": "Stage", "id": "bench_sleep", "config": {"ms": 60_000}}}
ECHO = {"root": {"op": "Stage", "id": "bench_echo"}}


@pytest.fixture(scope="module")
def grid(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeGrid]:
    folder = tmp_path_factory.mktemp("seat")
    with whole(
        folder, server.url, {"bench": 2}, terms="budget = 5\nlend = { share = 0.6 }\n", drain=1
    ) as made:
        yield made


def gridq(
    grid: WholeGrid, *arguments: str, server: Settings | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `gridq` with access only to the given server."""
    quiet = {name: value for name, value in os.environ.items() if not name.startswith("GRIDQ_")}
    env = {
        **quiet,
        "GRIDQ_HOME": str(grid.config.home),
        "GRIDQ_BROKER_URL": "redis://127.0.0.1:1/0",
        "GRIDQ_PROFILES": BENCH,
        "COLUMNS": "100",
    }
    if server is not None:
        env |= {"GRIDQ_BROKER_URL": server.broker_url.get_secret_value(), "GRIDQ_PREFIX": server.prefix}
    return subprocess.run(
        [*GRIDQ, *arguments], capture_output=True, text=True, timeout=60, env=env, check=False
    )


def gridq_json(grid: WholeGrid, *arguments: str, server: Settings | None = None) -> Any:
    done = gridq(grid, *arguments, "--json", server=server)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def state(grid: WholeGrid) -> str:
    return ",".join(seat.state for seat in grid.client.workers())


def test_the_owner_pauses_and_resumes_a_seat(grid: WholeGrid) -> None:
    job = grid.client.submit(LONG, {})
    wait_for(lambda: [seat for seat in grid.client.workers() if seat.busy])
    [row] = gridq_json(grid, "seat", "pause", "bench", "--for", "2h", "--reason", "a talk")
    assert (row["seat"], row["state"], row["served"], row["applied"]) == ("bench", "paused", True, True)
    assert row["until"] - row["since"] == pytest.approx(7200, abs=1)
    seat = wait_for(lambda: grid.client.workers()[0], true=lambda seat: not seat.busy)
    assert (seat.state, seat.since, seat.until) == ("paused", row["since"], row["until"])
    [stage] = grid.client.view(job).stages
    assert (stage.state, stage.failures, stage.losses) == ("ready", 0, 0)
    grid.client.cancel(job)
    [row] = gridq_json(grid, "seat", "resume")
    assert (row["state"], row["applied"], row["until"]) == ("lent", True, None)
    wait_for(lambda: state(grid) == "ready")
    assert grid.client.run(ECHO, 3, timeout=20) == 3


def test_a_lent_share_limits_the_budget(grid: WholeGrid) -> None:
    spend = {"root": {"op": "Stage", "id": "bench_spend"}}
    grid.client.run(spend, {"micro_dollars": 2_500_000}, timeout=20)
    [seat] = grid.client.workers()
    assert (seat.budget_left, seat.budget, seat.share, seat.whole_budget) == (
        500_000,
        3_000_000,
        0.6,
        5_000_000,
    )
    [row] = gridq_json(grid, "seat", "status", server=grid.config)
    assert (row["budget_left"], row["budget"], row["whole_budget"]) == (500_000, 3_000_000, 5_000_000)


def test_a_pause_survives_a_restart(grid: WholeGrid) -> None:
    gridq_json(grid, "seat", "pause")
    wait_for(lambda: state(grid) == "paused")
    worker = grid.home.children["bench"]
    worker.send_signal(signal.SIGTERM)
    wait_for(lambda: worker.poll() is not None)
    [row] = gridq_json(grid, "seat", "status")
    assert (row["state"], row["served"]) == ("paused", False)
    grid.home.spawn("bench")
    wait_for(lambda: state(grid) == "paused")
    job = grid.client.submit(ECHO, 4, wait_for_seat=True)
    assert not grid.client.wait(job, 1.5)
    gridq_json(grid, "seat", "resume", "bench")
    assert grid.client.result(job, 20) == 4
