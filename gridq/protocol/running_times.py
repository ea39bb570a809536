"""How long stages hold a slot: of each queue a decayed mean and spread, as one seat has seen them."""

from __future__ import annotations

import math
import threading
from collections.abc import Collection

from gridq.protocol.models import ServiceTime

MEMORY_STAGES = 50
"""Stages after which what was before counts for about a third: a queue's work changes with the hour."""

MAX_QUEUES = 256
"""Queues that a seat remembers; of more the one that it has served least recently is forgotten."""

P90_DEVIATIONS = 1.2816
"""Standard deviations above the middle under which nine of ten of a normal distribution lie."""


class RunTimes:
    """The service times of one seat. Threads may share it."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float, float]] = {}  # queue → how many, mean, variance
        self._lock = threading.Lock()

    def note(self, queue: str, seconds: float) -> None:
        """One stage of `queue` held its slot for so long."""
        with self._lock:
            n, mean, variance = self._seen.pop(queue, (0, 0.0, 0.0))
            n += 1
            weight = max(1 / n, 1 / MEMORY_STAGES)
            off = seconds - mean
            mean += weight * off
            variance = (1 - weight) * (variance + weight * off * off)
            self._seen[queue] = n, mean, variance
            while len(self._seen) > MAX_QUEUES:
                del self._seen[next(iter(self._seen))]

    def told(self) -> dict[str, ServiceTime]:
        """By queue, as the seat advertises it."""
        with self._lock:
            seen = dict(self._seen)
        return {queue: summarize(*one) for queue, one in seen.items()}

    def expected(self, queues: Collection[str]) -> dict[str, int]:
        """By queue, of `queues`, for how many ms a stage is expected to hold its slot: as nine of ten did.
        Few that were measured are taken to vary more than they did: n of them by 1/√n of their mean at least.
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
    """A mean and a variance of `n` run times in words of the middle and the ninth of ten.

    Run times are never negative and have a long tail, so they are taken to be log-normal.
    """
    spread = math.log1p(variance / (mean * mean)) if mean > 0 else 0.0
    p50 = mean * math.exp(-spread / 2)
    p90 = p50 * math.exp(P90_DEVIATIONS * math.sqrt(spread))
    return ServiceTime(n=n, mean=round(mean, 6), p50=round(p50, 6), p90=round(p90, 6))
