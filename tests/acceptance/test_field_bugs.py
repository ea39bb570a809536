"""Faults that are reported of task queues on Redis, tried on a grid of real processes.

docs/guarantees.md lists all of them, with the tests in other files.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import gridq
from gridq import errors
from gridq.app import app
from gridq.cli import app as cli
from gridq.config.settings import settings as own_settings
from gridq.protocol.states import JobState, StageState
from tests.acceptance.grids import NOTE, WholeGrid, whole
from tests.builders import parallel, seq, stage
from tests.fakes.bench_profile import BENCH
from tests.waiting import wait_for
from workers.supervisor.embedded_server import EmbeddedServer

STAGES = (
    NOTE
    + '''
import time
from gridq import stage

@stage(effects=["Process"], input="Any", output="Any")
def slow(value):
    """Notes that it runs, runs for `seconds`, notes that it has ended."""
    note(value["folder"] + "/witness", "start")
    time.sleep(value["seconds"])
    note(value["folder"] + "/witness", "end")
    return "done"

@stage(effects=["Process"], input="Any", output="Any")
def deadly(value):
    """Ends the process that runs it, as a machine without memory does."""
    note(value["folder"] + "/witness", "start")
    os._exit(9)

@stage(effects=["Process"], input="Any", output="Any")
def broken(value):
    raise ValueError("it cannot be done")
'''
)

LEASE = 2.0
"""Seconds: short, yet longer than a busy machine keeps a process from renewing it each 0.3."""


@pytest.fixture(scope="module")
def grid(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeGrid]:
    """A router, `local` and `bench`, with short leases."""
    given = {
        "lease_ms": int(LEASE * 1000), "renew_ms": 300, "sweep_ms": 200, "max_losses": 3, "drain": 10,
        "heartbeat": 1,
    }  # fmt: skip
    folder, seats = tmp_path_factory.mktemp("field"), {"local": 4, "bench": 2}
    with whole(folder, server.url, seats, stages=STAGES, **given) as made:
        yield made


def run(root: dict[str, Any], value: Any, **options: Any) -> Any:
    return gridq.run_graph.delay({"root": root}, value, **options)


def witness(folder: Path) -> list[str]:
    file = folder / "witness"
    return file.read_text().split() if file.exists() else []


def read_incarnation(grid: WholeGrid, name: str) -> Any:
    """Return the incarnation of the live seat `name`; None if it is not live."""
    client = grid.client
    names = [
        seat for seat in client.redis.zrange(client.keys("seats"), 0, -1) if seat.endswith(name.encode())
    ]
    return client.redis.hget(client.keys("seat", names[0].decode()), "incarnation") if names else None


def restart(grid: WholeGrid, name: str) -> None:
    """Start a child again once it has ended, and wait until its seat is live."""
    grid.home.children[name].wait(20)
    before = read_incarnation(grid, name)
    grid.home.spawn(name)
    wait_for(lambda: read_incarnation(grid, name) not in (None, before))


def test_a_stage_longer_than_every_timeout_of_a_message_runs_once(grid: WholeGrid, tmp_path: Path) -> None:
    """celery 5935, 5306: it was delivered again after the visibility timeout, and ran twice."""
    job = run(stage("slow"), {"folder": str(tmp_path), "seconds": 3 * LEASE})
    assert job.get(timeout=30) == "done"
    assert witness(tmp_path) == ["start", "end"]
    assert [row.attempt for row in grid.client.rows(job.id)] == [1]


def test_stages_of_a_killed_worker_are_ready_within_its_lease(grid: WholeGrid) -> None:
    """celery 3541: kill -9 of a worker lost the task. Here the worker is not restarted before the lease
    expires.
    """
    client = grid.client
    job = run(stage("bench_sleep", ms=3000), 1)
    wait_for(lambda: client.view(job.id).find_stages(StageState.RUNNING))
    grid.home.children["bench"].kill()
    wait_for(lambda: client.view(job.id).find_stages(StageState.READY), 10 * LEASE)
    restart(grid, "bench")
    job.get(timeout=30)
    assert [row.attempt for row in client.rows(job.id)] == [2]


def test_a_stage_that_kills_its_worker_fails_after_its_last_attempt(grid: WholeGrid, tmp_path: Path) -> None:
    """celery 1628: it was acknowledged and forgotten, or killed one worker after the other."""
    job = run(stage("deadly"), {"folder": str(tmp_path)})
    while grid.client.status(job.id) in (JobState.QUEUED, JobState.RUNNING):
        child = grid.home.children["local"]
        wait_for(lambda child=child: child.poll() is not None or grid.client.status(job.id).is_final)  # type: ignore[misc]
        if child.poll() is not None:
            restart(grid, "local")
    with pytest.raises((errors.AttemptsExhausted, errors.StageQuarantined)) as caught:
        job.get(timeout=20)
    assert caught.value.path == "root"
    assert len(witness(tmp_path)) == grid.config.max_losses
    assert run(stage("slow"), {"folder": str(tmp_path / ".."), "seconds": 0}).get(timeout=20) == "done"


def test_a_shutdown_before_the_acknowledgement_runs_nothing_twice(grid: WholeGrid, tmp_path: Path) -> None:
    """celery 3802. The message of a stage is acknowledged when its slot looks for no more work."""
    job = run(stage("slow"), {"folder": str(tmp_path), "seconds": 1.5})
    wait_for(lambda: witness(tmp_path))
    child = grid.home.children["local"]
    child.send_signal(signal.SIGTERM)
    assert child.wait(30) == 0
    restart(grid, "local")
    assert job.get(timeout=20) == "done"
    assert run(stage("slow"), {"folder": str(tmp_path), "seconds": 0}).get(timeout=20) == "done"
    assert witness(tmp_path) == ["start", "end"] * 2


def test_a_failure_in_a_chain_in_a_parallel_part_fails_the_job_in_time(
    grid: WholeGrid, tmp_path: Path
) -> None:
    """celery 6220: a client waited for a chord of chains for ever."""
    chain = seq(stage("bench_echo"), stage("broken"), stage("bench_echo"))
    both = parallel(good=stage("bench_echo"), bad=chain)
    job = run(seq(both, stage("bench_echo")), 1)
    with pytest.raises(errors.StageError) as caught:
        job.get(timeout=10)
    assert caught.value.path == "root.stages[0].branches.bad.stages[1]"
    assert "it cannot be done" in str(caught.value)
    assert grid.client.status(job.id) is JobState.FAILED


def test_a_cancel_without_a_live_worker_holds(grid: WholeGrid, tmp_path: Path) -> None:
    """celery 7529, hatchet 1010: a revoke was stored only by the workers that received it."""
    grid.home.children["local"].send_signal(signal.SIGTERM)
    assert grid.home.children["local"].wait(30) == 0
    job = run(stage("slow"), {"folder": str(tmp_path), "seconds": 0}, wait_for_seat=True)
    wait_for(lambda: grid.client.status(job.id) is JobState.RUNNING)
    assert grid.client.cancel(job.id)
    restart(grid, "local")
    assert run(stage("slow"), {"folder": str(tmp_path), "seconds": 0}).get(timeout=20) == "done"
    assert witness(tmp_path) == ["start", "end"], "only the other job ran"
    with pytest.raises(errors.JobCancelled):
        job.get(timeout=10)


def test_health_shows_the_timeouts_in_effect(grid: WholeGrid, monkeypatch: pytest.MonkeyPatch) -> None:
    """celery 9339: a timeout that was set was not the one in effect, and nothing showed it."""
    for name, value in {
        "BROKER_URL": grid.config.broker_url.get_secret_value(), "PREFIX": grid.config.prefix,
        "HOME": str(grid.config.home), "PROFILES": BENCH,
    }.items():  # fmt: skip
        monkeypatch.setenv(f"GRIDQ_{name}", value)
    own_settings.cache_clear()
    try:
        done = CliRunner().invoke(cli, ["health", "--json"])
    finally:
        own_settings.cache_clear()
    assert done.exit_code == 0, done.output
    shown = json.loads(done.stdout)["timeouts"]
    (bench,) = [timeouts for seat, timeouts in shown.items() if seat.endswith(".bench")]
    options = app.conf.broker_transport_options
    assert bench["message"] == options["socket_timeout"]
    assert bench["command"] > 0
    assert bench["result"] > 0
    assert bench["redelivery"] == 0
    assert 0.5 * LEASE <= bench["lease"] <= LEASE, "not the default"
    assert (bench["renew"], bench["drain"]) == (0.3, 10)
