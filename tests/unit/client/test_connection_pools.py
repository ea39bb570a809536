"""Pools of connections are made as they are needed, and used again."""

from __future__ import annotations

from contextlib import ExitStack

from gridq.client.connection_pools import SIZE, Pools


def test_a_pool_is_filled_before_the_next_is_made() -> None:
    made = iter(range(9))
    pools = Pools(lambda: next(made))
    with ExitStack() as stack:
        taken = [stack.enter_context(pools.one()) for _ in range(2 * SIZE + 1)]
    assert taken == [0] * SIZE + [1] * SIZE + [2]
    with pools.one() as again:
        assert again == 0
    assert pools.made == [0, 1, 2]


def test_a_pool_is_given_back_by_who_fails() -> None:
    pools = Pools(object)
    for _ in range(SIZE + 1):
        try:
            with pools.one():
                raise ValueError
        except ValueError:
            continue
    assert len(pools.made) == 1
