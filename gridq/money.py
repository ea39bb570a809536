"""Money in words. Inside it is integer micro-dollars everywhere."""

from __future__ import annotations


def dollars(micro: int) -> str:
    """Micro-dollars as dollars, exactly, with two decimals or as many as it takes.

    >>> dollars(12_500_000), dollars(-1), dollars(0)
    ('$12.50', '-$0.000001', '$0.00')
    """
    whole, rest = divmod(abs(micro), 1_000_000)
    decimals = f"{rest:06d}".rstrip("0").ljust(2, "0")
    return f"{'-' if micro < 0 else ''}${whole}.{decimals}"
