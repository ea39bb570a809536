"""Routers, workers and server restarted one after the other under load: what was accepted runs once."""

from __future__ import annotations

import secrets
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
from gridq.settings import Settings
from gridq.tasks import run_graph
from tests.pointed import pointed_at
from tests.waiting import wait_for
from workers.embedded import EmbeddedServer
from workers.home import Home

pytestmark = pytest.mark.slow

STAGES = '''
import os, time
from gridq import stage

@stage(effects=["Process"], input="Any", output="Any")
def noted(value):
    """Leave a trace outside the server, half way through."""
    time.sleep(0.1)
    handle = os.open(os.environ["NOTES"], os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
    os.write(handle, f"{value}\\n".encode())
    os.close(handle)
    time.sleep(0.1)
    return value
'''

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
    (tmp_path / "own_stages.py").write_text(STAGES)
    (tmp_path / "home").mkdir(mode=0o700)
    (tmp_path / "home" / "seats.toml").write_text("[bench]\nlanes = 2\n[local]\nlanes = 4\n")
    notes = tmp_path / "notes"
    env = {
        "GRIDQ_STAGES": "own_stages",
        "PYTHONPATH": str(tmp_path),
        "NOTES": str(notes),
        "GRIDQ_DRAIN": "20",
    }
    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedServer(tmp_path / "data", appendonly=True))
        config = Settings(
            broker_url=server.url, prefix=f"roll{secrets.token_hex(3)}:", home=tmp_path / "home",
            profiles=("bench",), drain=20,
        )  # fmt: skip
        client = stack.enter_context(pointed_at(config, env))
        home = Home(config, ["local", "bench"], routers=2, folder=tmp_path / "logs", env=env)
        stack.enter_context(home)
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
