"""Pools of connections are made as they are needed, and used again."""

from __future__ import annotations

from contextlib import ExitStack

from gridq.client.connection_pools import POOL_SIZE, Pools


def test_a_pool_is_filled_before_the_next_one_is_made() -> None:
    made = iter(range(9))
    pools = Pools(lambda: next(made))
    with ExitStack() as stack:
        taken = [stack.enter_context(pools.acquire()) for _ in range(2 * POOL_SIZE + 1)]
    assert taken == [0] * POOL_SIZE + [1] * POOL_SIZE + [2]
    with pools.acquire() as again:
        assert again == 0
    assert pools.pools == [0, 1, 2]


def test_a_failure_returns_the_connection() -> None:
    pools = Pools(object)
    for _ in range(POOL_SIZE + 1):
        try:
            with pools.acquire():
                raise ValueError
        except ValueError:
            continue
    assert len(pools.pools) == 1
