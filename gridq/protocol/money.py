"""Money in words. Inside it is integer micro-dollars everywhere."""

from __future__ import annotations

from collections.abc import Iterable


def format_dollars(micro: int) -> str:
    """Micro-dollars as dollars, exactly, with two decimals or as many as it takes.

    >>> dollars(12_500_000), dollars(-1), dollars(0)
    ('$12.50', '-$0.000001', '$0.00')
    """
    whole, rest = divmod(abs(micro), 1_000_000)
    decimals = f"{rest:06d}".rstrip("0").ljust(2, "0")
    return f"{'-' if micro < 0 else ''}${whole}.{decimals}"


def sum_costs(costs: Iterable[int | None]) -> int | None:
    """What several cost together. None among them: no price is known for that one; it leaves the sum of the
    others as it is, and where that is nothing, no cost is known.

    >>> total([5, None, 0]), total([0, 0]), total([0, None]), total([])
    (5, 0, None, 0)
    """
    known, unknown = 0, False
    for cost in costs:
        known += cost or 0
        unknown = unknown or cost is None
    return None if unknown and not known else known
