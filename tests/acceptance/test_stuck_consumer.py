"""Celery's consumer hangs while gridq's own connections work: the process lives and takes no message.

A proxy between Celery and the server drops all data; gridq does not use it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from gridq.client import Client
from gridq.tasks import run_graph
from tests.acceptance.grids import whole
from tests.chaos.proxy import Proxy
from tests.waiting import wait_for
from workers.supervisor.embedded_server import EmbeddedServer
from workers.supervisor.grid_processes import GridProcesses

pytestmark = pytest.mark.slow

HOOK = """\
import os
from gridq.app import app
app.conf.update(broker_url=os.environ["BY_PROXY"])
"""
"""A start hook of Python that sends only Celery's messages through the proxy."""

ECHO = {"root": {"op": "Stage", "id": "bench_echo"}}
SLEEP = {"root": {"op": "Stage", "id": "bench_sleep", "config": {"ms": 60_000}}}


@dataclass
class Grid:
    client: Client
    home: GridProcesses
    proxy: Proxy

    def read_log(self, name: str) -> str:
        return (self.home.folder / f"{name}.log").read_text()


@contextmanager
def grid(folder: Path, server: EmbeddedServer, **env: str) -> Iterator[Grid]:
    """Run a router and a bench seat in which only Celery uses the proxy."""
    (folder / "sitecustomize.py").write_text(HOOK)
    with ExitStack() as stack:
        proxy = stack.enter_context(Proxy(("127.0.0.1", server.port)))
        more = {"BY_PROXY": server.url.replace(f":{server.port}/", f":{proxy.port}/"), **env}
        made = stack.enter_context(whole(folder, server.url, {"bench": 2}, drain=1, env=more))
        stack.callback(proxy.blackhole, False)
        yield Grid(made.client, made.home, proxy)


def test_work_continues_while_celery_hangs(tmp_path: Path, server: EmbeddedServer) -> None:
    with grid(tmp_path, server, GRIDQ_WATCHDOG="0") as stuck:
        assert run_graph.delay(ECHO, "well").get(timeout=30) == "well"
        stuck.proxy.blackhole(True)
        for number in range(3):
            assert stuck.client.run(ECHO, number, timeout=60) == number, "the worker's wake-ups"
            assert run_graph.delay(ECHO, number).get(timeout=60) == number, "and the router's"
        for name in ("bench", "router0"):
            assert stuck.read_log(name).count("Celery has taken no message") == 1
            assert stuck.home.children[name].poll() is None
        stuck.proxy.blackhole(False)
        wait_for(
            lambda: all("delivers messages again" in stuck.read_log(name) for name in ("bench", "router0")),
            60,
        )
        assert run_graph.delay(ECHO, "well").get(timeout=30) == "well"


def test_a_stuck_program_hands_back_and_ends(tmp_path: Path, server: EmbeddedServer) -> None:
    with grid(tmp_path, server, GRIDQ_WATCHDOG="6") as stuck:
        stuck.proxy.blackhole(True)
        job = stuck.client.submit(SLEEP, 1)
        waiting = run_graph.delay(ECHO, 2)
        wait_for(lambda: all(child.poll() is not None for child in stuck.home.children.values()), 60)
        assert {child.poll() for child in stuck.home.children.values()} == {os.EX_TEMPFAIL}
        for name in ("bench", "router0"):
            assert stuck.read_log(name).count("this process ends") == 1
        [stage] = stuck.client.view(job).stages
        assert stage.state == "ready", "it was handed back"
        assert not stuck.client.seats(), "they have deregistered"
        stuck.proxy.blackhole(False)
        stuck.home.start()
        wait_for(lambda: stuck.client.view(job).stages[0].state == "running")
        assert stuck.client.view(job).stages[0].failures == 0
        assert waiting.get(timeout=30) == 2
        stuck.client.cancel(job)
