"""What a dead child held is free at once, and only what it held."""

from __future__ import annotations

from gridq import queues
from gridq.store.scripts import Scripts
from tests.conftest import GridEnv
from workers.deployment import release


def _live(env: GridEnv, seat: str) -> bool:
    return env.client.zscore(f"{env.prefix}.seats", seat) is not None


def _register(env: GridEnv, seat: str, host: str) -> None:
    scripts = Scripts(env.client, env.settings)
    taken = scripts.register(
        seat, "inc", host=host, lanes=1, budget=None, queues=[queues.LOCAL], ttl_ms=60_000
    )
    assert taken is None


def test_a_seat_whose_worker_died_is_released(grid_env: GridEnv) -> None:
    _register(grid_env, "m.local", "here")
    release(grid_env.settings, "m.local", "here")
    assert not _live(grid_env, "m.local")


def test_a_seat_that_another_machine_has_taken_over_is_left_alone(grid_env: GridEnv) -> None:
    _register(grid_env, "m.local", "elsewhere")
    release(grid_env.settings, "m.local", "here")
    assert _live(grid_env, "m.local")
    release(grid_env.settings, "m.unknown", "here")


def test_a_router_is_known_by_its_name_alone(grid_env: GridEnv) -> None:
    _register(grid_env, "m.router-7", "host:7")
    release(grid_env.settings, "m.router-7")
    assert not _live(grid_env, "m.router-7")
