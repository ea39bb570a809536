"""The check of the server's persistence, and the gate that closes when its memory is nearly full."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import count, islice

import pytest
import redis

from gridq.errors import BrokerEvicts
from gridq.store.capacity import (
    FULL_SHARE,
    FULL_TTL_MS,
    NO_APPEND_ONLY,
    NO_INFO,
    MemoryGate,
    build_grid_full_error,
    check_persistence,
)
from gridq.store.connection import connect
from gridq.store.keys import Keys
from tests.conftest import GridEnv
from tests.unit.store.plans import Grid, one
from workers.supervisor.embedded_server import EmbeddedServer

LIMIT = 20_000_000
LINE = "x" * 10_000


@pytest.fixture
def small_server() -> Iterator[redis.Redis]:
    """A server of its own with little memory."""
    with EmbeddedServer(maxmemory=LIMIT) as server, connect(server.url) as client:
        yield client


def _fill(client: redis.Redis, share: float) -> None:
    """Use the server's memory up to a share of its limit."""
    numbers = count()
    while client.info("memory")["used_memory"] < share * LIMIT:
        pipe = client.pipeline(transaction=False)
        for number in islice(numbers, 20):
            pipe.set(f"fill:{number}", LINE)
        pipe.execute(raise_on_error=False)


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_server_that_evicts_is_refused_with_the_fix(small_server: redis.Redis, policy: str) -> None:
    small_server.config_set("maxmemory-policy", policy)
    with pytest.raises(BrokerEvicts) as caught:
        check_persistence(small_server)
    assert policy in caught.value.message
    assert "maxmemory-policy noeviction" in str(caught.value.fix)


def test_a_server_without_append_only_log_gets_a_one_line_warning(small_server: redis.Redis) -> None:
    assert check_persistence(small_server) == NO_APPEND_ONLY
    assert "\n" not in NO_APPEND_ONLY
    with EmbeddedServer(appendonly=True) as server, connect(server.url) as client:
        assert check_persistence(client) is None


def test_a_server_that_hides_its_settings_is_accepted(small_server: redis.Redis) -> None:
    small_server.acl_setuser(
        "narrow", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-info", "-config"]
    )
    small_server.config_set("maxmemory-policy", "allkeys-lru")
    port = small_server.connection_pool.connection_kwargs["port"]
    with connect(f"redis://narrow:x@127.0.0.1:{port}/0") as client:
        assert check_persistence(client) == NO_INFO


def test_the_gate_closes_at_its_share_and_opens_again(
    small_server: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    keys = Keys("gq:")
    gate = MemoryGate(small_server, keys)
    assert not gate.check()
    assert not small_server.exists(keys("memory_full"))
    _fill(small_server, FULL_SHARE)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert gate.check()
    assert len(caplog.messages) == 1, "told once"
    note = small_server.get(keys("memory_full"))
    assert isinstance(note, bytes)
    error = build_grid_full_error(note.decode())
    assert error.details["limit"] == LIMIT
    assert FULL_SHARE * LIMIT <= error.details["used"] <= LIMIT
    assert error.details["retry_after"] > 0
    assert 0 < small_server.pttl(keys("memory_full")) <= FULL_TTL_MS
    for key in small_server.scan_iter("fill:*", count=1000):
        small_server.delete(key)
    assert not gate.check()
    assert not small_server.exists(keys("memory_full"))


def test_a_server_without_a_limit_is_never_full(small_server: redis.Redis) -> None:
    small_server.config_set("maxmemory", 0)
    assert not MemoryGate(small_server, Keys("gq:")).check()


def test_a_gate_without_permission_for_info_warns_once(
    small_server: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    small_server.acl_setuser("narrow", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-info"])
    port = small_server.connection_pool.connection_kwargs["port"]
    with connect(f"redis://narrow:x@127.0.0.1:{port}/0") as client:
        gate = MemoryGate(client, Keys("gq:"))
        with caplog.at_level(logging.WARNING):
            assert not gate.check()
            assert not gate.check()
    assert caplog.messages == [NO_INFO]


def test_the_gate_works_when_memory_is_exhausted(small_server: redis.Redis) -> None:
    """The note that the grid is full may itself be refused: then the server refuses what is new."""
    _fill(small_server, 0.9)
    small_server.config_set("maxmemory", small_server.info("memory")["used_memory"] - 1_000_000)
    assert MemoryGate(small_server, Keys("gq:")).check()


def test_a_long_output_is_recorded_on_a_full_server_without_scripts(
    small_server: redis.Redis, grid_env: GridEnv
) -> None:
    """A server that restarts full has forgotten the scripts too; a call that comes again is a repeat."""
    grid = Grid(small_server, grid_env.settings)
    grid.seat()
    grid.job(one(), "j1")
    claim = grid.take()
    small_server.config_set("maxmemory", 1)
    small_server.script_flush()
    long = b"x" * 100_000
    link = b"@" + claim.lease.encode()
    assert grid.complete(claim, link, long=long) == (1, "plain", "none")
    assert small_server.get(grid.keys("value", claim.lease)) == long
    assert grid.complete(claim, link, long=long) == (0, "", "none")
    assert small_server.get(grid.keys("value", claim.lease)) == long
