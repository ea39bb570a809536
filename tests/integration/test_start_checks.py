"""Checks of the server at the start of routers, workers, `gridq up` and clients."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from celery import Celery

from gridq.app import app as celery_app
from gridq.client import Client
from gridq.config.settings import settings
from gridq.errors import BrokerEvicts, SchemaMismatch
from gridq.router.router import Router
from gridq.store.capacity import NO_APPEND_ONLY
from gridq.store.connection import connect
from gridq.tasks import run_graph
from tests.conftest import GridEnv
from tests.fakes.bench_profile import BENCH
from workers.machine.probing import probe_machine
from workers.process.worker import Worker
from workers.supervisor.embedded_server import EmbeddedServer


@pytest.fixture
def evicting(grid_env: GridEnv, monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    """Point the settings to a server that evicts keys."""
    with EmbeddedServer() as server, connect(server.url) as client:
        client.config_set("maxmemory-policy", "volatile-lru")
        monkeypatch.setenv("GRIDQ_BROKER_URL", server.url)
        monkeypatch.setenv("GRIDQ_PROFILES", BENCH)
        settings.cache_clear()
        yield celery_app


def _serve(app: Celery) -> Worker:
    seat = probe_machine(settings(), {}).select(["local"])[0]
    return Worker(app, settings(), seat, ["gridq:local"], 1)


@pytest.mark.parametrize("start", [lambda app: Router(app, 1), _serve])
def test_routers_and_workers_refuse_an_evicting_server(start: object, evicting: Celery) -> None:
    assert callable(start)
    with pytest.raises(BrokerEvicts, match="volatile-lru"):
        start(evicting)


@pytest.mark.parametrize("command", ["up", "health"])
def test_commands_refuse_an_evicting_server(command: str, evicting: Celery) -> None:
    program = [sys.executable, "-c", "from gridq.cli import main; main()", command]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "broker.evicts" in done.stderr
    assert "expected noeviction" in done.stderr
    assert "Fix: " in done.stderr


def test_a_server_without_append_only_is_a_warning(
    grid_env: GridEnv, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        Router(celery_app, 1)
    assert caplog.messages == [NO_APPEND_ONLY]


@pytest.mark.parametrize(
    "what", [["gridq.app", "worker", "-Q", "gridq:router"], ["workers", "worker", "--seat", "local"]]
)
def test_a_program_of_another_schema_ends_with_one_line(what: list[str], grid_env: GridEnv) -> None:
    grid_env.client.set(f"{grid_env.prefix}.schema", "99")
    program = [sys.executable, "-m", "celery", "--quiet", "-A", *what, "--without-gossip", "--without-mingle"]
    env = {**os.environ, **grid_env.environ(), "GRIDQ_PROFILES": BENCH, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=60, env=env)
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if "appendonly" not in line]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("broker.schema: The grid's data has schema 99")
    assert "install the version of gridq that the grid runs" in lines[0]
    assert not grid_env.client.exists(f"{grid_env.prefix}.seats", f"{grid_env.prefix}.wake-ups")


def test_a_submitter_of_another_schema_is_refused(grid_env: GridEnv) -> None:
    grid_env.client.set(f"{grid_env.prefix}.schema", "99")
    graph = {"root": {"op": "Const", "value": 1}}
    with Client(config=settings()) as client, pytest.raises(SchemaMismatch):
        client.submit(graph)
    with pytest.raises(SchemaMismatch):
        run_graph.delay(graph)
    assert list(grid_env.client.scan_iter(f"{grid_env.prefix}*")) == [f"{grid_env.prefix}.schema".encode()]
