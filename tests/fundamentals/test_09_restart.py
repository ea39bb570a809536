"""Lose a worker, but not its job."""

from __future__ import annotations

import secrets
from pathlib import Path

from gridq.config.settings import Settings
from tests.fakes.bench_profile import BENCH
from tests.grid_environment import use_grid
from tests.waiting import wait_for
from workers.supervisor.embedded_server import EmbeddedServer
from workers.supervisor.grid_processes import GridProcesses


def test_a_job_outlives_its_worker(server: EmbeddedServer, tmp_path: Path) -> None:
    """An accepted job is stored on the server. If a worker dies, its lease expires after three seconds, and
    then another worker with the same capability runs its stage.
    """
    config = Settings(
        broker_url=server.url, prefix=f"f{secrets.token_hex(3)}:", home=tmp_path / "home", profiles=(BENCH,)
    )
    sleep = {"root": {"op": "Stage", "id": "bench_sleep", "config": {"ms": 1_000}}}
    with use_grid(config) as client, GridProcesses(config, ["bench"], folder=tmp_path / "logs") as grid:
        job = client.submit(sleep)
        wait_for(lambda: any(stage.state == "running" for stage in client.view(job).stages))
        worker = grid.children["bench"]
        worker.kill()
        worker.wait()
        grid.spawn("bench")
        assert client.result(job, timeout=30)["ms"] == 1_000
        (row,) = client.rows(job)
        assert (row.attempt, row.losses) == (2, 1), "one attempt was lost with the worker"
