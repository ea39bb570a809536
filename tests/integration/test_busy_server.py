"""A server that carries out nothing for longer than leases last: it stands still, is busy with a script, or
refuses writes. All parties wait for it.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from benchmarks.grids import BenchGrid
from gridq.store.connection import connect
from gridq.store.redis_retries import ServerNotReady
from tests.waiting import wait_for

STILL_SECONDS = 9.0
"""The time for which the server serves nobody: three leases, and longer than scripts may take in Redis before
it answers BUSY."""

JOBS = 12

_SPIN = """
local began = redis.call('TIME')
repeat local now = redis.call('TIME')
until (now[1] - began[1]) * 1000 + (now[2] - began[2]) / 1000 >= tonumber(ARGV[1])
"""


def run_script(grid: BenchGrid) -> None:
    """Occupy the server with a script. After five seconds it answers others that it is busy."""
    with connect(grid.server.url, timeout=60, retry=False) as client:
        client.eval(_SPIN, 0, str(int(STILL_SECONDS * 1000)))


def answer_busy(grid: BenchGrid) -> None:
    """Occupy the server with a script, and let it answer others at once that it is busy: the workers hold
    finished results all the while.
    """
    grid.store.config_set("busy-reply-threshold", 10)
    try:
        run_script(grid)
    finally:
        grid.store.config_set("busy-reply-threshold", 5000)


def list_charged(grid: BenchGrid, jobs: list[str]) -> list[tuple[str, str]]:
    """Return what the ledger has of each attempt of these jobs, with the job."""
    entries = [fields[b"e"].decode().split(" ") for _, fields in grid.store.xrange(grid.make_key("ledger"))]  # type: ignore[union-attr]
    return sorted((job, what) for what, job, *_ in entries if job in jobs)


def suspend_server(grid: BenchGrid) -> None:
    """Stop the server's process for a while."""
    pid = grid.server.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(STILL_SECONDS)
    finally:
        os.kill(pid, signal.SIGCONT)


def miss_replicas(grid: BenchGrid) -> None:
    """Let the server refuse all writes for a while, as one that has lost its replicas."""
    grid.store.config_set("min-replicas-to-write", 1)
    try:
        time.sleep(STILL_SECONDS)
    finally:
        grid.store.config_set("min-replicas-to-write", 0)


def fill_disk(grid: BenchGrid) -> None:
    """Let the server refuse all writes for a while, as one that cannot save its data."""
    obstacle = grid.server.folder / "dump.rdb"
    obstacle.mkdir()
    grid.store.config_set("save", "3600 1000000")
    grid.store.bgsave()
    wait_for(lambda: grid.store.info("persistence")["rdb_last_bgsave_status"] == "err")  # type: ignore[index]
    try:
        with pytest.raises(ServerNotReady, match="RDB"), connect(grid.server.url, retry=False) as client:
            client.delete(grid.make_key("x"))
        time.sleep(STILL_SECONDS)
    finally:
        grid.store.config_set("save", "")
        obstacle.rmdir()


def fill_memory(grid: BenchGrid) -> None:
    """Let the server's memory be full for a while, and let all parties connect anew meanwhile."""
    grid.store.config_set("maxmemory", 1)
    try:
        grid.store.client_kill_filter(_type="normal", skipme=True)
        time.sleep(STILL_SECONDS)
        grid.store.client_kill_filter(_type="normal", skipme=True)
        time.sleep(1.0)
    finally:
        grid.store.config_set("maxmemory", 0)


@pytest.fixture(scope="module")
def grid() -> Iterator[BenchGrid]:
    with BenchGrid(2, JOBS // 2, gateway=True) as made:
        yield made


@pytest.mark.parametrize(
    "stand_still", [run_script, answer_busy, suspend_server, miss_replicas, fill_disk, fill_memory]
)
def test_no_stage_runs_twice_and_no_process_ends(
    grid: BenchGrid, stand_still: Callable[[BenchGrid], None]
) -> None:
    """Stages that end while the server stands still are recorded as soon as it goes on."""
    jobs = [grid.submit_sleep(3_000) for _ in range(JOBS)]
    wait_for(lambda: sum(map(len, grid.list_running_jobs().values())) == JOBS)
    thread = threading.Thread(target=stand_still, args=(grid,))
    thread.start()
    for job in jobs:
        assert grid.client.result(job, 60) == {"ms": 3_000}
    thread.join()
    assert [stage.attempts for job in jobs for stage in grid.client.view(job).stages] == [1] * JOBS
    assert [len(grid.client.rows(job)) for job in jobs] == [1] * JOBS
    assert list_charged(grid, jobs) == sorted((job, "done") for job in jobs), "each result is charged once"
    assert grid.store.hget(grid.make_key("attempts_lost"), "count") is None
    assert [child.poll() for child in (*grid.home.children.values(), grid.gateway)] == [None] * 4
    job = grid.submit_sleep(0)
    assert grid.gateway_client.result(job, 10) == {"ms": 0}, "all go on"


def test_programs_start_while_memory_is_full(grid: BenchGrid) -> None:
    """What waits is run by those that start, which frees memory."""
    waiting = [grid.submit_sleep(0) for _ in range(JOBS)]
    killed = ["router0", *grid.names]
    for name in killed:
        grid.home.children[name].kill()
        grid.home.children[name].wait()
    late = [grid.submit_sleep(0, wait_for_seat=True) for _ in range(JOBS)]
    grid.store.config_set("maxmemory", 1)
    try:
        for name in killed:
            grid.home.spawn(name)
        for job in waiting + late:
            assert grid.client.result(job, 60) == {"ms": 0}
        assert [child.poll() for child in grid.home.children.values()] == [None] * 3
    finally:
        grid.store.config_set("maxmemory", 0)
