"""Routers, workers and gateways that start while their server reads its data wait for it, and then go on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gridq.app import app
from gridq.cli.commands.gateway import _check_grid
from gridq.config.settings import settings
from gridq.errors import ConfigError
from gridq.gateway.options import gateway_options
from gridq.router.router import Router
from tests.fakes.bench_profile import BENCH
from tests.fakes.slow_server import SlowServer
from workers.machine.probing import probe_machine
from workers.process.worker import Worker
from workers.supervisor import up
from workers.supervisor import worker as seats_worker
from workers.supervisor.up import UpOptions

SAYS = "the server is loading its data"


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlowServer]:
    with SlowServer(tmp_path_factory.mktemp("slow")) as server:
        yield server.fill()


@pytest.fixture
def log_lines(slow: SlowServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The settings point at a server that reads its data until somebody says that it waits; what was said."""
    monkeypatch.setenv("GRIDQ_BROKER_URL", slow.url)
    monkeypatch.setenv("GRIDQ_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GRIDQ_PROFILES", BENCH)
    settings.cache_clear()
    heard = Heard(slow)
    logging.getLogger("gridq").addHandler(heard)
    slow.load_slowly()
    yield heard.lines
    logging.getLogger("gridq").removeHandler(heard)
    settings.cache_clear()


class Heard(logging.Handler):
    """What is said in the log or to a terminal; the server hurries once somebody waits for it."""

    def __init__(self, server: SlowServer) -> None:
        super().__init__(logging.WARNING)
        self.server = server
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.report(record.getMessage())

    def report(self, line: str) -> None:
        self.lines.append(line)
        if SAYS in line:
            self.server.hurry()


def _router(report: Callable[[str], None]) -> None:
    Router(app, 1).scripts.adopt()


def _worker(report: Callable[[str], None]) -> None:
    seat = probe_machine(settings(), {}).select(["local"])[0]
    worker = Worker(app, settings(), seat, ["gridq:local"], 1)
    worker.session.scripts.adopt()
    worker.lock.close()


def _gateway(report: Callable[[str], None]) -> None:
    assert _check_grid(gateway_options(host=None, port=None, certfile=None, keyfile=None)) is False


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
    [heard] = [each for each in logging.getLogger("gridq").handlers if isinstance(each, Heard)]
    start(heard.report)
    assert [SAYS in line for line in log_lines].count(True) == 1, log_lines
    assert not [line for line in log_lines if "appendonly" in line], (
        "the server tells that only when it has read"
    )
