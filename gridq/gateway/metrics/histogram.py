"""Histograms of durations."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

BUCKETS_SECONDS = (0.005, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Upper bounds of the buckets."""


class Histogram:
    """A histogram of durations."""

    __slots__ = ("buckets", "sum")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BUCKETS_SECONDS) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.buckets[bisect_left(BUCKETS_SECONDS, seconds)] += 1
        self.sum += seconds

    def cumulative_buckets(self) -> list[tuple[str, float]]:
        """Return (upper bound, number of durations up to it) for each bucket, as Prometheus expects them."""
        names = [*(repr(bound) for bound in BUCKETS_SECONDS), "+Inf"]
        return list(zip(names, map(float, accumulate(self.buckets)), strict=True))
