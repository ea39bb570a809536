"""Money as text, and sums of costs. Everywhere else money is an integer of micro-dollars."""

from __future__ import annotations

from collections.abc import Iterable


def format_dollars(micro: int) -> str:
    """Return micro-dollars as dollars, exactly, with at least two decimals.

    >>> format_dollars(12_500_000), format_dollars(-1), format_dollars(0)
    ('$12.50', '-$0.000001', '$0.00')
    """
    whole, rest = divmod(abs(micro), 1_000_000)
    decimals = f"{rest:06d}".rstrip("0").ljust(2, "0")
    return f"{'-' if micro < 0 else ''}${whole}.{decimals}"


def sum_costs(costs: Iterable[int | None]) -> int | None:
    """Return the sum of costs; None in `costs` is an unknown price and adds nothing.

    The sum is None if it is zero and one of the prices is unknown.

    >>> sum_costs([5, None, 0]), sum_costs([0, 0]), sum_costs([0, None]), sum_costs([])
    (5, 0, None, 0)
    """
    known, unknown = 0, False
    for cost in costs:
        known += cost or 0
        unknown = unknown or cost is None
    return None if unknown and not known else known
