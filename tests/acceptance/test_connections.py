"""Outages of the server, or of the network before it: workers, routers and clients recover by themselves, no
worker is declared dead, and no stage is lost or run twice.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from gridq.client import AsyncClient, Client
from gridq.protocol.models import Json
from gridq.tasks import run_graph
from tests.acceptance.grids import NOTE, whole
from tests.chaos.proxy import Proxy
from tests.waiting import wait_for
from workers.supervisor.embedded_server import EmbeddedServer
from workers.supervisor.grid_processes import GridProcesses

pytestmark = pytest.mark.slow

STAGES = (
    NOTE
    + '''
import time
from gridq import stage

@stage(effects=["Process"], input="Any", output="Any")
def noted(value):
    """Leave a trace outside the server, and run for a while, during which the fault comes."""
    note(os.environ["NOTES"], value)
    time.sleep(float(os.environ["SECONDS"]) if value not in ("before", "after") else 0)
    return value
'''
)

NOTED = {"root": {"op": "Stage", "id": "noted"}}
TWICE = {"root": {"op": "Sequential", "stages": [NOTED["root"], {"op": "Stage", "id": "bench_echo"}]}}
TOKENS = {"root": {"op": "Stage", "id": "bench_tokens"}}
SECONDS = 3.0
"""The run time of a stage, during which the fault comes."""


@dataclass
class Grid:
    """A router, `local` and `bench`, which reach the server through the proxy, like the client."""

    server: EmbeddedServer
    proxy: Proxy
    client: Client
    home: GridProcesses
    direct: redis.Redis
    notes: Path

    def noted(self) -> list[str]:
        return sorted(self.notes.read_text().split()) if self.notes.exists() else []


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grid]:
    """One grid for all faults, one after the other."""
    tmp_path = tmp_path_factory.mktemp("away")
    notes = tmp_path / "notes"
    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedServer(tmp_path / "data", appendonly=True))
        proxy = stack.enter_context(Proxy(("127.0.0.1", server.port)))
        url = server.url.replace(f":{server.port}/", f":{proxy.port}/")
        env = {"NOTES": str(notes), "SECONDS": str(SECONDS)}
        made = stack.enter_context(
            whole(tmp_path, url, {"local": 4, "bench": 4}, stages=STAGES, drain=1, env=env)
        )
        direct = stack.enter_context(redis.Redis(port=server.port, password=server.password))
        yield Grid(server, proxy, made.client, made.home, direct, notes)


@pytest.fixture
def grid(shared: Grid) -> Grid:
    """The grid with all seats live, and without notes of earlier tests."""
    shared.notes.unlink(missing_ok=True)
    wait_for(lambda: len(shared.client.seats()) == 3)
    return shared


class Waiter(threading.Thread):
    """Waits for a job on a thread."""

    def __init__(self, way: Callable[[], Json]) -> None:
        super().__init__(daemon=True)
        self.way = way
        self.found: Json = None
        self.start()

    def run(self) -> None:
        try:
            self.found = self.way()
        except Exception as exc:
            self.found = repr(exc)


def restart(grid: Grid) -> None:
    grid.server.stop()
    grid.server.start()


def kill(grid: Grid) -> None:
    time.sleep(1.1)  # the journal reaches the disk each second; later writes would be lost
    grid.server.kill()
    time.sleep(5)  # longer than a lease
    grid.server.start()


def away(grid: Grid) -> None:
    time.sleep(1.1)
    grid.server.kill()
    time.sleep(30)
    grid.server.start()


def swallow(grid: Grid) -> None:
    """Drop all data on existing and new connections; then reset them."""
    grid.proxy.blackhole(True)
    time.sleep(8)
    grid.proxy.blackhole(False)


def stall(grid: Grid) -> None:
    """Drop all data for longer than any time-out; then the connections continue."""
    grid.proxy.blackhole(True)
    time.sleep(14)
    grid.proxy.blackhole(False, forget=False)


def cut(grid: Grid) -> None:
    for reset in (True, False) * 3:
        grid.proxy.cut(reset=reset)
        time.sleep(0.3)


def client_kill(grid: Grid) -> None:
    for _ in range(10):
        for kind in ("normal", "pubsub"):
            grid.direct.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
        time.sleep(0.2)


@pytest.mark.parametrize("fault", [restart, kill, away, swallow, stall, cut, client_kill])
def test_all_come_back_and_nothing_is_lost_or_doubled(grid: Grid, fault: Callable[[Grid], None]) -> None:
    client = grid.client

    async def asynchronous(job: str) -> Json:
        async with AsyncClient(config=client.config) as other:
            return await other.result(job, timeout=120)

    assert client.run(TWICE, "before", timeout=60) == "before"
    jobs = {name: client.submit(TWICE, name) for name in ("result", "async")}
    delayed = run_graph.delay(TWICE, "get")
    tokens = client.submit(TOKENS, {"n": 20, "ms": 200}, stream=True)
    waits = [
        Waiter(lambda: client.result(jobs["result"], timeout=120)),
        Waiter(lambda: asyncio.run(asynchronous(jobs["async"]))),
        Waiter(lambda: delayed.get(timeout=120)),
        Waiter(lambda: "".join(str(piece.value) for piece in client.stream(tokens, timeout=120))),
    ]
    wait_for(lambda: len(grid.noted()) == 4 and sum(seat.busy for seat in client.workers()) >= 4)
    fault(grid)
    for thread in waits:
        thread.join(120)
    assert [thread.found for thread in waits] == [
        "result",
        "async",
        "get",
        "".join(f"token{number} " for number in range(20)),
    ]
    assert grid.noted() == ["async", "before", "get", "result"], "each ran once"
    for job in (*jobs.values(), delayed.id, tokens):
        assert {row.attempt for row in client.rows(job)} == {1}, "no worker was declared dead"
    # Celery delivers messages again, not only the watchdog.
    assert client.run(TWICE, "after", timeout=60) == "after"
    assert run_graph.delay(TWICE, "after").get(timeout=60) == "after"
    assert all(child.poll() is None for child in grid.home.children.values())
