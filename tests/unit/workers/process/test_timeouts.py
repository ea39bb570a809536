"""Effective timeouts, and warnings about those that differ from their settings."""

from __future__ import annotations

import logging

import pytest

from gridq.app import app
from gridq.store.scripts import Scripts
from tests.conftest import GridEnv
from tests.unit.store.plans import Grid
from workers.process.timeouts import read_timeouts


def test_timeouts_are_read_from_open_connections_and_the_server(grid_env: GridEnv) -> None:
    grid = Grid(grid_env.client, grid_env.settings)
    grid.seat()
    found = read_timeouts(app, grid.scripts, grid_env.settings, "m.a")
    assert found["message"] == app.conf.broker_transport_options["socket_timeout"]
    assert found["command"] == 10
    assert found["result"] == app.conf.redis_socket_timeout
    assert 2 < found["lease"] <= 3
    assert found["stage"] == grid_env.settings.stage_timeout


def test_a_timeout_that_differs_from_its_setting_is_logged(
    grid_env: GridEnv, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The lease is what the seat's script wrote, whatever this program believes."""
    other = grid_env.settings.model_copy(update={"lease_ms": 60_000})
    Grid(grid_env.client, other).seat()
    monkeypatch.setitem(app.conf.broker_transport_options, "socket_timeout", None)
    with caplog.at_level(logging.WARNING):
        found = read_timeouts(app, Scripts(grid_env.client, other), grid_env.settings, "m.a")
    assert found["lease"] > 50
    assert found["message"] == 0
    assert "the effective lease is " in caplog.text
    assert "GRIDQ_LEASE_MS is 3000" in caplog.text
    assert "there is no effective message timeout" in caplog.text
