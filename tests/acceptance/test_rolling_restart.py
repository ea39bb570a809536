"""Restart gateways, routers, workers and the server one after the other under load: each accepted job runs
once.
"""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from gridq.client import Client
from gridq.errors import BrokerUnreachable, GatewayUnreachable, NoLiveSeat
from gridq.jobs.record import make_job_id
from gridq.tasks import run_graph
from tests.acceptance.grids import NOTE, WholeGrid, whole
from tests.acceptance.homes import listens
from tests.waiting import wait_for
from workers.supervisor import programs
from workers.supervisor.embedded_server import EmbeddedServer, find_free_port

pytestmark = pytest.mark.slow

STAGES = (
    NOTE
    + '''
import time
from gridq import stage

@stage(effects=["Process"], input="Any", output="Any")
def noted(value):
    """Leave a trace outside the server, half way through."""
    time.sleep(0.1)
    note(os.environ["NOTES"], value)
    time.sleep(0.1)
    return value
'''
)

GRAPH = {
    "root": {
        "op": "Sequential",
        "stages": [{"op": "Stage", "id": "noted"}, {"op": "Stage", "id": "bench_echo"}],
    }
}


class Load(threading.Thread):
    """Submits jobs by each way in turn until `stop`; a refused job is submitted again with the same id.

    `gateways` is a client of two gateways, one of which is always live.
    """

    def __init__(self, client: Client, gateways: Client) -> None:
        super().__init__(daemon=True)
        self.ways = [
            lambda job: client.submit(GRAPH, job, job=job),
            lambda job: run_graph.apply_async((GRAPH, job), task_id=job),
            lambda job: gateways.submit(GRAPH, job, job=job),
        ]
        self.stop = threading.Event()
        self.accepted: list[str] = []
        self.unexpected: list[Exception] = []
        self.start()

    def run(self) -> None:
        while not self.stop.wait(0.02):
            job = make_job_id()
            while not self.stop.is_set():
                try:
                    self.ways[len(self.accepted) % len(self.ways)](job)
                except GatewayUnreachable as exc:
                    self.unexpected.append(exc)
                    return
                except (BrokerUnreachable, NoLiveSeat):
                    time.sleep(0.1)
                except Exception as exc:
                    self.unexpected.append(exc)
                    return
                else:
                    self.accepted.append(job)
                    break


class Gateways:
    """Two gateways of a grid with fixed ports; `url` names both."""

    def __init__(self, grid: WholeGrid) -> None:
        self.ports = [find_free_port(), find_free_port()]
        self.url = ",".join(f"http://127.0.0.1:{port}" for port in self.ports)
        self.folder = grid.home.folder / "gateways"
        self.env = programs.make_environment(grid.config, {"GRIDQ_DRAIN": "20"})
        self.children = [self._start(number) for number in (0, 1)]

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        port = self.ports[number]
        child = programs.make_gateway(port, self.folder / str(number), self.env, 30).start()
        wait_for(lambda: listens(port))
        return child

    def restart(self, number: int) -> None:
        """Stop a gateway by SIGTERM, and start it again."""
        old = self.children[number]
        old.send_signal(signal.SIGTERM)
        assert old.wait(60) == 0
        self.children[number] = self._start(number)

    def end(self) -> None:
        """Stop both."""
        programs.stop_processes([(child, 30.0) for child in self.children])


@pytest.mark.timeout(300)  # seven programs end and start one after the other: long on a busy machine
def test_a_rolling_restart_loses_nothing_and_runs_nothing_twice(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedServer(tmp_path / "data", appendonly=True))
        seats, env = {"local": 4, "bench": 2}, {"NOTES": str(notes)}
        grid = stack.enter_context(
            whole(tmp_path, server.url, seats, stages=STAGES, routers=2, drain=20, env=env)
        )
        client, home = grid.client, grid.home
        gateways = Gateways(grid)
        stack.callback(gateways.end)
        through = stack.enter_context(Client(gateways.url, config=grid.config))
        load = Load(client, through)
        stack.callback(load.stop.set)
        for number in (0, 1):
            goal = len(load.accepted) + 10
            gateways.restart(number)
            wait_for(lambda: len(load.accepted) >= goal or load.unexpected)  # noqa: B023
        for name in ("router0", "local", "router1", "bench"):
            old = home.children[name]
            goal = len(load.accepted) + 10
            old.send_signal(signal.SIGTERM)
            assert wait_for(lambda: [old.poll()] if old.poll() is not None else [], 60) == [0]  # noqa: B023
            home.spawn(name)
            wait_for(lambda: len(client.seats()) == 4 and len(load.accepted) >= goal)  # noqa: B023
        server.stop()
        server.start()
        goal = len(load.accepted) + 10
        wait_for(lambda: len(client.seats()) == 4 and len(load.accepted) >= goal)
        load.stop.set()
        load.join(60)
        assert not load.unexpected
        assert {child.poll() for child in gateways.children} == {None}
        ran: list[str] = []
        refused = 0
        for job in load.accepted:
            try:
                assert through.result(job, timeout=60) == job
            except NoLiveSeat:  # what a router could not admit while a seat was gone was never begun
                refused += 1
            else:
                ran.append(job)
        assert Counter(notes.read_text().split()) == Counter(ran)
        for job in ran:
            assert [row.attempt for row in client.rows(job)] == [1, 1]
        assert len(ran) > 40, f"{refused} refused"
