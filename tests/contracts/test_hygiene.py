"""The check for keys without a TTL can fail."""

from __future__ import annotations

from gridq.views.audit import find_keys_without_ttl
from tests.conftest import GridEnv


def test_keys_without_a_ttl_are_found(grid_env: GridEnv) -> None:
    client, prefix = grid_env.client, grid_env.prefix
    client.set(f"{prefix}.forgotten", 1)
    client.set(f"{prefix}llm:a", "no queue, only named like one")
    client.set(f"{prefix}.mortal", 1, ex=60)
    client.rpush(f"{prefix}llm:claude%20opus", "a wake-up")
    client.zadd(f"{prefix}.leases", {"a": 1})
    client.sadd(f"{prefix}_kombu.binding.celery.pidbox", "x")
    assert find_keys_without_ttl(client, prefix) == [".forgotten", "llm:a"]
