"""`gridq health`: seats of this machine that renew their lease."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from gridq.cli import app
from gridq.config.machine_id import get_machine_id
from gridq.protocol import queue_names
from gridq.store.capacity import NO_APPEND_ONLY
from tests.conftest import GridEnv
from tests.local_grid import LocalGrid


def health(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["health", *arguments])
    return done.exit_code, done.output


def test_seats_of_this_machine_are_live(grid_env: GridEnv) -> None:
    machine = get_machine_id(grid_env.settings.home)
    seats = {f"{machine}.local": [queue_names.LOCAL], "elsewhere.router": [queue_names.PURE]}
    with LocalGrid(grid_env.client, grid_env.settings, seats):
        assert health() == (0, f"live: {machine}.local\nserver: {NO_APPEND_ONLY}\n")
        assert health("--seat", "local")[0] == 0
        code, out = health("--json")
        assert (code, json.loads(out)) == (
            0,
            {"machine": machine, "live": [f"{machine}.local"], "server": NO_APPEND_ONLY, "timeouts": {}},
        )
        code, out = health("--seat", "cpu")
        assert code == 4
        assert f"{machine}.cpu is not live" in out
    assert health()[0] == 4


def test_an_expired_lease_is_not_live_before_a_sweep(grid_env: GridEnv) -> None:
    machine = get_machine_id(grid_env.settings.home)
    seconds, _ = grid_env.client.time()
    key = f"{grid_env.prefix}.seats"
    grid_env.client.zadd(key, {f"{machine}.hung": (seconds - 1) * 1000})
    assert health()[0] == 4
    grid_env.client.zadd(key, {f"{machine}.hung": (seconds + 60) * 1000})
    assert health()[0] == 0


def test_an_unreachable_server_is_unhealthy(grid_env: GridEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    from gridq.config.settings import settings

    monkeypatch.setenv("GRIDQ_BROKER_URL", "redis://127.0.0.1:1/0")
    settings.cache_clear()
    code, out = health()
    assert code == 2
    assert "broker.unreachable" in out
