"""A dead child's leases are released, and a deployment cleans up at its end."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from gridq.config.home import GRID_RECORD, is_locked
from gridq.config.settings import Settings
from gridq.protocol import queue_names
from gridq.store.scripts import Scripts
from tests.acceptance.homes import processes
from tests.conftest import GridEnv
from workers.supervisor import embedded_server, up
from workers.supervisor.control_socket import query
from workers.supervisor.deployment import Deployment, release_leases


def _live(env: GridEnv, seat: str) -> bool:
    return env.client.zscore(f"{env.prefix}.seats", seat) is not None


def _register(env: GridEnv, seat: str, host: str) -> None:
    scripts = Scripts(env.client, env.settings)
    taken = scripts.register(
        seat, "inc", host=host, concurrency=1, queues=[queue_names.LOCAL], record_ttl_ms=60_000
    )
    assert taken is None


def test_a_seat_whose_worker_died_is_released(grid_env: GridEnv) -> None:
    _register(grid_env, "m.local", "here")
    release_leases(grid_env.settings, "m.local", "died", "here")
    assert not _live(grid_env, "m.local")


def test_a_seat_that_another_machine_has_taken_over_is_left_alone(grid_env: GridEnv) -> None:
    _register(grid_env, "m.local", "elsewhere")
    release_leases(grid_env.settings, "m.local", "go", "here")
    assert _live(grid_env, "m.local")
    release_leases(grid_env.settings, "m.unknown", "go", "here")


def test_a_dead_router_is_released_by_its_name(grid_env: GridEnv) -> None:
    _register(grid_env, "m.router-7", "host:7")
    release_leases(grid_env.settings, "m.router-7", "died")
    assert not _live(grid_env, "m.router-7")


def test_a_failing_exit_callback_does_not_prevent_cleanup(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    messages: list[str] = []

    def broken() -> None:
        raise OSError("no more disk")

    with (
        pytest.raises(OSError, match="no more disk"),
        Deployment(Settings(home=tmp_path), GRID_RECORD, messages.append) as grid,
    ):
        grid.exit_callbacks += [broken, lambda: messages.append("the second too")]
    assert messages == ["the second too"]
    assert not is_locked(tmp_path, GRID_RECORD)
    assert query(tmp_path, GRID_RECORD) is None
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_ends_gridq_up_while_its_server_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "slow-server"
    slow.write_text("#!/bin/sh\nexec sleep 100\n")
    slow.chmod(0o755)
    monkeypatch.setattr(embedded_server, "find_server_program", lambda: slow)
    messages: list[str] = []

    def report(line: str) -> None:
        messages.append(line)
        threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGTERM]).start()

    up.run(
        Settings(home=tmp_path / "home"),
        up.UpOptions(),
        report=report,
        on_ready=lambda state: pytest.fail("ready"),
    )
    assert messages == [f"Starting the grid of {tmp_path / 'home'}"]
    assert not is_locked(tmp_path / "home", GRID_RECORD)
    assert not [line for line in processes(tmp_path) if "sleep" in line]
