"""Run times of stages: a decayed mean and variance for each queue, as one seat has measured them."""

from __future__ import annotations

import math
import threading
from collections.abc import Collection

from gridq.protocol.models import ServiceTime

MEMORY_STAGES = 50
"""After this many stages, older ones count for about a third: a queue's work changes over the day."""

MAX_QUEUES = 256
"""The queues that a seat remembers; beyond that it forgets the least recently served one."""

P90_DEVIATIONS = 1.2816
"""Standard deviations between the median and the 90th percentile of a normal distribution."""


class RunTimes:
    """The run times of one seat, by queue. Threads may share it."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float, float]] = {}  # queue → count, mean, variance
        self._lock = threading.Lock()

    def record(self, queue: str, seconds: float) -> None:
        """Add one stage of `queue` that occupied its slot for `seconds`."""
        with self._lock:
            count, mean, variance = self._seen.pop(queue, (0, 0.0, 0.0))
            count += 1
            weight = max(1 / count, 1 / MEMORY_STAGES)
            off = seconds - mean
            mean += weight * off
            variance = (1 - weight) * (variance + weight * off * off)
            self._seen[queue] = count, mean, variance
            while len(self._seen) > MAX_QUEUES:
                del self._seen[next(iter(self._seen))]

    def get_service_times(self) -> dict[str, ServiceTime]:
        """Return the service times by queue, as the seat advertises them."""
        with self._lock:
            seen = dict(self._seen)
        return {queue: summarize(*one) for queue, one in seen.items()}

    def estimate_ms(self, queues: Collection[str]) -> dict[str, int]:
        """Return the ms within which nine of ten stages finish, for each of `queues` that was measured.

        A few measurements are assumed to vary more than they did: for n stages, the standard deviation is at
        least 1/√n of their mean.
        """
        with self._lock:
            seen = {queue: one for queue, one in self._seen.items() if queue in queues}
        return {
            queue: math.ceil(
                1000 * summarize(n, mean, max(variance, mean * mean / min(n, MEMORY_STAGES))).p90
            )
            for queue, (n, mean, variance) in seen.items()
        }


def summarize(n: int, mean: float, variance: float) -> ServiceTime:
    """Return the median and the 90th percentile of `n` run times with this mean and variance.

    Run times are never negative and have a long tail, so they are assumed to be log-normal.
    """
    spread = math.log1p(variance / (mean * mean)) if mean > 0 else 0.0
    p50 = mean * math.exp(-spread / 2)
    p90 = p50 * math.exp(P90_DEVIATIONS * math.sqrt(spread))
    return ServiceTime(n=n, mean=round(mean, 6), p50=round(p50, 6), p90=round(p90, 6))
