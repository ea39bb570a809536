"""Routers, workers and server restarted one after the other under load: what was accepted runs once."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from gridq.client import Client
from gridq.errors import BrokerUnreachable, NoLiveSeat
from gridq.jobs import new_id
from gridq.tasks import run_graph
from tests.acceptance.grids import NOTE, whole
from tests.waiting import wait_for
from workers.embedded import EmbeddedServer

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
    """Submits one job after the other, by both doors, until it is told to stop; what is refused is submitted
    again under the same id.
    """

    def __init__(self, client: Client) -> None:
        super().__init__(daemon=True)
        self.client = client
        self.stop = threading.Event()
        self.accepted: list[str] = []
        self.unexpected: list[Exception] = []
        self.start()

    def run(self) -> None:
        while not self.stop.wait(0.02):
            job = new_id()
            while not self.stop.is_set():
                try:
                    if len(self.accepted) % 2:
                        self.client.submit(GRAPH, job, job=job)
                    else:
                        run_graph.apply_async((GRAPH, job), task_id=job)
                except (BrokerUnreachable, NoLiveSeat):
                    time.sleep(0.1)
                except Exception as exc:
                    self.unexpected.append(exc)
                    return
                else:
                    self.accepted.append(job)
                    break


@pytest.mark.timeout(300)  # five programs end and start one after the other: long on a busy machine
def test_a_rolling_restart_loses_nothing_and_runs_nothing_twice(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedServer(tmp_path / "data", appendonly=True))
        seats, env = {"local": 4, "bench": 2}, {"NOTES": str(notes)}
        grid = stack.enter_context(
            whole(tmp_path, server.url, seats, stages=STAGES, routers=2, drain=20, env=env)
        )
        client, home = grid.client, grid.home
        load = Load(client)
        stack.callback(load.stop.set)
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
        ran: list[str] = []
        refused = 0
        for job in load.accepted:
            try:
                assert client.result(job, timeout=60) == job
            except NoLiveSeat:  # what a router could not admit while a seat was gone was never begun
                refused += 1
            else:
                ran.append(job)
        assert Counter(notes.read_text().split()) == Counter(ran)
        for job in ran:
            assert [row.attempt for row in client.rows(job)] == [1, 1]
        assert len(ran) > 40, f"{refused} refused"
