"""A grid that finds its server through sentinels, and continues after a fail-over."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator

import pytest

from gridq.client import AsyncClient, Client
from gridq.config.settings import Settings
from gridq.messaging.flower_app import PendingWork
from gridq.store.connection import check_server, connect, connect_async
from gridq.tasks import run_graph
from tests.acceptance.grids import whole
from tests.acceptance.homes import GRIDQ
from tests.sentinels import Watched
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

ECHO = {"root": {"op": "Stage", "id": "bench_echo"}}
SLEEP = {"root": {"op": "Stage", "id": "bench_sleep", "config": {"ms": 3000}}}


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with Watched(tmp_path_factory.mktemp("sentinels")) as found:
        yield found


@pytest.fixture(scope="module")
def grid(watched: Watched, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Two routers and a bench seat of two slots that know only the sentinels."""
    with whole(tmp_path_factory.mktemp("grid"), watched.url, {"bench": 2}, routers=2, drain=2) as made:
        yield made.client


def run_by_every_way(client: Client, config: Settings) -> None:
    """Run one job by each way to submit."""

    async def asynchronous() -> object:
        async with AsyncClient(config=config) as other:
            return await other.run(ECHO, "async", timeout=60)

    assert client.run(ECHO, "client", timeout=60) == "client"
    assert run_graph.delay(ECHO, "celery").get(timeout=60) == "celery"
    assert asyncio.run(asynchronous()) == "async"


def test_every_program_accepts_sentinels(grid: Client, watched: Watched) -> None:
    with connect(watched.url) as client:
        check_server(client)

    async def bounded() -> list[object]:
        async with connect_async(watched.url, max_connections=2) as client:
            return await asyncio.gather(*(client.ping() for _ in range(10)))

    assert asyncio.run(bounded()) == [True] * 10
    health = subprocess.run([*GRIDQ, "health"], capture_output=True, text=True, timeout=60, check=False)
    assert health.returncode == 0, health.stderr
    assert "live: " in health.stdout
    lengths = {queue["name"]: queue for queue in asyncio.run(PendingWork().queues())}
    assert lengths["bench:any"]["consumers"] == 2


def test_a_fail_over_loses_no_job_and_stops_no_program(grid: Client, watched: Watched) -> None:
    run_by_every_way(grid, grid.config)
    jobs = [grid.submit(SLEEP, number) for number in range(3)]
    delayed = run_graph.delay(SLEEP, "celery")
    wait_for(lambda: sum(seat.busy for seat in grid.workers()) == 2)
    old = watched.primary
    old.settle()
    old.kill()
    wait_for(lambda: watched.primary is not old, 60)
    for number, job in enumerate(jobs):
        assert grid.result(job, timeout=60) == {"items": number, "ms": 3000}
        assert [row.attempt for row in grid.rows(job)] == [1], "no worker was declared dead"
    assert delayed.get(timeout=60) == {"items": "celery", "ms": 3000}
    run_by_every_way(grid, grid.config)

    # The old primary comes back as a replica, and an operator makes it the primary again. Both run on, and
    # clients of the demoted one get READONLY or are disconnected.
    old.start()
    wait_for(lambda: not old.is_primary, 60)
    job = grid.submit(SLEEP, "meanwhile")
    watched.primary.settle()  # what is not there yet, a fail-over loses: docs/how-to/operator/deploy.md
    watched.fail_over()
    assert watched.primary is old
    assert grid.result(job, timeout=60) == {"items": "meanwhile", "ms": 3000}
    run_by_every_way(grid, grid.config)
