"""Histograms of durations."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

BOUNDS = (0.005, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Upper bounds of the buckets, in seconds."""


class Distribution:
    """Durations in buckets."""

    __slots__ = ("buckets", "sum")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.buckets[bisect_left(BOUNDS, seconds)] += 1
        self.sum += seconds

    def cumulated(self) -> list[tuple[str, float]]:
        """(upper bound, how many are at most that long), as Prometheus has them."""
        names = [*(repr(bound) for bound in BOUNDS), "+Inf"]
        return list(zip(names, map(float, accumulate(self.buckets)), strict=True))
