"""Deadline, queue timeout, stage timeout and cancel on a grid of real processes, with code that does not stop
and with suspended workers.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import gridq
from gridq import errors
from gridq.app import app
from gridq.protocol.states import JobState, StageState
from tests.acceptance.grids import WholeGrid
from tests.builders import stage
from tests.processes import is_running
from tests.waiting import wait_for

pytestmark = pytest.mark.usefixtures("whole_grid")

ECHO = {"root": stage("bench_echo")}
PID = {"root": stage("pid")}
UNSERVED = {"root": stage("bench_echo", slug="nobody")}
STUBBORN = {"root": stage("stubborn")}


@contextmanager
def suspended(grid: WholeGrid, part: str) -> Iterator[None]:
    """Suspend a child of the grid within the block."""
    grid.home.children[part].send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        grid.home.children[part].send_signal(signal.SIGCONT)


def count_running(grid: WholeGrid, name: str) -> int:
    """Return the number of stages that the seat `name` runs; -1 if it is not live."""
    found = [seat.busy for seat in grid.client.seats() if seat.seat.endswith(f".{name}")]
    return found[0] if found else -1


@contextmanager
def suspended_while_running(grid: WholeGrid, file: Path, **options: Any) -> Iterator[str]:
    """Yield a job whose stage runs on `local`, which is suspended. `file` is what the stage waits for.

    If the stage's time was over before, because the machine is slow, another one is tried.
    """
    client = grid.client
    for _ in range(20):
        job = client.submit(STUBBORN, str(file), wait_for_seat=True, **options)
        wait_for(lambda: count_running(grid, "local") == 1 or client.status(job) is not JobState.RUNNING)  # noqa: B023
        with suspended(grid, "local"):
            if client.view(job).find_stages(StageState.RUNNING):
                yield job
                return
    raise AssertionError("no stage was seen to run")


def test_a_stage_that_no_seat_takes_expires(whole_grid: WholeGrid) -> None:
    options: dict[str, Any] = {"wait_for_seat": True, "queue_timeout": 0.3}
    gridq.run_graph.delay(ECHO, 1).get(timeout=30)  # the router has started
    with pytest.raises(errors.QueueTimeout) as by_celery:
        gridq.run_graph.delay(UNSERVED, 1, **options).get(timeout=30)
    with pytest.raises(errors.QueueTimeout) as by_client:
        whole_grid.client.run(UNSERVED, 1, timeout=30, **options)
    for caught in (by_celery, by_client):
        assert caught.value.code == "job.queue_timeout"
        assert caught.value.details["queue"] == "bench:nobody"
        assert caught.value.details["seconds"] == 0.3
        assert caught.value.path == "root"
        assert caught.value.reason == "no live seat serves it and takes work"


def test_a_stage_that_ignores_its_timeout_frees_its_slot(whole_grid: WholeGrid, tmp_path: Path) -> None:
    client, release = whole_grid.client, tmp_path / "release"
    jobs = [client.submit(STUBBORN, str(release)) for _ in range(4)]  # as many as there are slots
    for job in jobs:
        with pytest.raises(errors.StageTimeout) as caught:
            client.result(job, timeout=30)
        assert (caught.value.code, caught.value.path) == ("stage.timeout", "root")
        assert "longer than 1" in caught.value.message
    try:
        found = [client.submit(PID) for _ in range(8)]
        assert len({client.result(job, timeout=30) for job in found}) == 1
    finally:
        release.touch()
    assert [client.status(job) for job in jobs] == [JobState.FAILED] * 4
    found = [client.submit(PID) for _ in range(8)]
    assert len({client.result(job, timeout=30) for job in found}) == 1


def test_a_stage_times_out_while_its_worker_is_suspended(whole_grid: WholeGrid, tmp_path: Path) -> None:
    with suspended_while_running(whole_grid, tmp_path / "never") as job:
        # its lease lapses, and the stage waits for a seat
        wait_for(lambda: whole_grid.client.redis.zcard(whole_grid.client.keys("leases")) == 0)
    with pytest.raises(errors.StageTimeout):
        whole_grid.client.result(job, timeout=30)
    (tmp_path / "never").touch()
    assert whole_grid.client.run(PID, timeout=30, wait_for_seat=True)


def test_a_suspended_worker_does_not_keep_the_job(whole_grid: WholeGrid, tmp_path: Path) -> None:
    running = suspended_while_running(whole_grid, tmp_path / "never", queue_timeout=0.5)
    with running as job, pytest.raises(errors.QueueTimeout):
        whole_grid.client.result(job, timeout=30)
    (tmp_path / "never").touch()
    assert whole_grid.client.run(PID, timeout=30, wait_for_seat=True)
    assert whole_grid.client.status(job) is JobState.EXPIRED


def test_a_deadline_holds_while_a_worker_is_suspended(whole_grid: WholeGrid, tmp_path: Path) -> None:
    running = suspended_while_running(whole_grid, tmp_path / "never", deadline=0.8)
    with running as job, pytest.raises(errors.DeadlineExceeded) as caught:
        whole_grid.client.result(job, timeout=30)
    assert caught.value.path == "root"
    assert str(caught.value.reason).startswith("it was running on ")
    (tmp_path / "never").touch()
    assert whole_grid.client.run(PID, timeout=30, wait_for_seat=True)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says which thread started a child")
def test_a_cancel_ends_the_stages_children(whole_grid: WholeGrid, tmp_path: Path) -> None:
    file = tmp_path / "pids"
    job = gridq.run_graph.delay({"root": stage("family")}, str(file))
    wait_for(lambda: file.exists() and file.read_text().endswith("\n"))
    pids = file.read_text().split()
    assert all(map(is_running, pids))
    job.revoke()
    with pytest.raises(errors.JobCancelled):
        job.get(timeout=30)
    wait_for(lambda: not any(map(is_running, pids)))
    wait_for(lambda: count_running(whole_grid, "local") == 0)


def test_a_revoke_holds_while_the_router_is_suspended(whole_grid: WholeGrid) -> None:
    with suspended(whole_grid, "router0"):
        job = gridq.run_graph.delay(ECHO, 1)
        app.control.revoke(job.id)
        with pytest.raises(errors.JobCancelled, match="revoked"):
            job.get(timeout=10)
    assert gridq.run_graph.delay(ECHO, 2).get(timeout=30) == 2
    assert whole_grid.client.status(job.id) is JobState.CANCELLED
    assert whole_grid.client.rows(job.id) == []


def test_one_key_is_one_job_by_client_and_celery(whole_grid: WholeGrid) -> None:
    first = gridq.run_graph.delay(PID, 1, idempotency_key="a key")
    assert whole_grid.client.submit(PID, 1, idempotency_key="a key") == first.id
    again = gridq.run_graph.delay(PID, 1, idempotency_key="a key")
    assert (again.id, again.get(timeout=30)) == (first.id, first.get(timeout=30))
    assert whole_grid.client.submit(PID, 1, idempotency_key="a key") == first.id
    assert len(whole_grid.client.rows(first.id)) == 1
    with pytest.raises(errors.IdempotencyConflict):
        gridq.run_graph.delay(PID, 2, idempotency_key="a key")


def test_a_refused_job_frees_its_key(whole_grid: WholeGrid) -> None:
    with pytest.raises(errors.NoLiveSeat):
        gridq.run_graph.delay(UNSERVED, 1, idempotency_key="k").get(timeout=30)
    assert gridq.run_graph.delay(ECHO, 2, idempotency_key="k").get(timeout=30) == 2
