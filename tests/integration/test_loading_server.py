"""Routers, workers and gateways that start while their server loads its data wait for it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gridq.app import app
from gridq.cli.commands.gateway import _check_grid
from gridq.config.settings import settings
from gridq.errors import ConfigError
from gridq.gateway.options import load_options
from gridq.router.router import Router
from tests.fakes.bench_profile import BENCH
from tests.fakes.slow_server import SlowServer
from workers.machine.probing import probe_machine
from workers.process.worker import Worker
from workers.supervisor import up
from workers.supervisor import worker as seats_worker
from workers.supervisor.up import UpOptions

LOADING = "the server is loading its data"


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlowServer]:
    with SlowServer(tmp_path_factory.mktemp("slow")) as server:
        yield server.fill()


@pytest.fixture
def log_lines(slow: SlowServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Point the settings to a server that loads until a program logs that it waits; yield the log."""
    monkeypatch.setenv("GRIDQ_BROKER_URL", slow.url)
    monkeypatch.setenv("GRIDQ_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GRIDQ_PROFILES", BENCH)
    settings.cache_clear()
    collector = LogCollector(slow)
    logging.getLogger("gridq").addHandler(collector)
    slow.load_slowly()
    yield collector.lines
    logging.getLogger("gridq").removeHandler(collector)
    settings.cache_clear()


class LogCollector(logging.Handler):
    """Collects lines of the log and of the terminal. The server loads quickly once a program waits for it."""

    def __init__(self, server: SlowServer) -> None:
        super().__init__(logging.WARNING)
        self.server = server
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.report(record.getMessage())

    def report(self, line: str) -> None:
        self.lines.append(line)
        if LOADING in line:
            self.server.hurry()


def _router(report: Callable[[str], None]) -> None:
    Router(app, 1).scripts.adopt()


def _worker(report: Callable[[str], None]) -> None:
    seat = probe_machine(settings(), {}).select(["local"])[0]
    worker = Worker(app, settings(), seat, ["gridq:local"], 1)
    worker.session.scripts.adopt()
    worker.lock.close()


def _gateway(report: Callable[[str], None]) -> None:
    assert _check_grid(load_options(host=None, port=None, certfile=None, keyfile=None)) is False


def _gridq_worker(report: Callable[[str], None]) -> None:
    with pytest.raises(ConfigError, match="no seat 'none'"):
        seats_worker.run(
            settings(), ["none"], report=report, on_found=lambda seats: None, on_ready=lambda state: None
        )


def _gridq_up(report: Callable[[str], None]) -> None:
    with pytest.raises(ConfigError, match="no seat 'none'"):
        up.run(settings(), UpOptions(("none",), routers=0), report=report, on_ready=lambda state: None)


@pytest.mark.parametrize("start", [_router, _worker, _gateway, _gridq_worker, _gridq_up])
def test_a_program_waits_for_a_loading_server(
    start: Callable[[Callable[[str], None]], None], slow: SlowServer, log_lines: list[str]
) -> None:
    [collector] = [each for each in logging.getLogger("gridq").handlers if isinstance(each, LogCollector)]
    start(collector.report)
    assert [LOADING in line for line in log_lines].count(True) == 1, log_lines
    assert not [line for line in log_lines if "appendonly" in line], (
        "the server shows that only once it has loaded"
    )
