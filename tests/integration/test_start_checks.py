"""Routers, workers and `gridq up` do not start on a server that throws away what it accepted."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest
from celery import Celery

from gridq import router
from gridq.app import app as celery_app
from gridq.errors import BrokerEvicts
from gridq.settings import settings
from gridq.store.capacity import NOT_KEPT
from gridq.store.connection import connect
from tests.conftest import GridEnv
from workers.embedded import EmbeddedServer
from workers.lifecycle import Worker
from workers.probing import find


@pytest.fixture
def evicting(grid_env: GridEnv, monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    """The settings point at a server that evicts."""
    with EmbeddedServer() as server, connect(server.url) as client:
        client.config_set("maxmemory-policy", "volatile-lru")
        monkeypatch.setenv("GRIDQ_BROKER_URL", server.url)
        monkeypatch.setenv("GRIDQ_PROFILES", "bench")
        settings.cache_clear()
        yield celery_app


def _serve(app: Celery) -> Worker:
    seat = find(settings(), {}).chosen(["local"])[0]
    return Worker(app, settings(), seat, ["gridq:local"], 1)


@pytest.mark.parametrize("start", [lambda app: router.build(app, 1), _serve])
def test_a_program_of_the_grid_refuses_it(start: object, evicting: Celery) -> None:
    assert callable(start)
    with pytest.raises(BrokerEvicts, match="volatile-lru"):
        start(evicting)


@pytest.mark.parametrize("command", ["up", "health"])
def test_a_command_refuses_it(command: str, evicting: Celery) -> None:
    program = [sys.executable, "-c", "from gridq.cli import main; main()", command]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "broker.evicts" in done.stderr
    assert "Fix: maxmemory-policy noeviction" in done.stderr


def test_one_that_keeps_no_log_is_told_of(grid_env: GridEnv, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        router.build(celery_app, 1)
    assert caplog.messages == [NOT_KEPT]
