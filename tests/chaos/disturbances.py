"""The times at which faults disturbed a part of the grid, so that the audit knows what a fault explains."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable

RECOVERY_SECONDS = 15.0
"""Seconds after the end of a fault until a part works as before: a program starts, clients connect again."""
NOTED_SECONDS = 1.0
"""A fault may be noted that much later than it hits: it is noted once it is done, on a busy machine."""
SERVER = "server"


class Disturbances:
    """The disturbed times of each part, by the monotonic clock."""

    def __init__(self) -> None:
        self._times: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self.suspensions: list[tuple[float, float]] = []
        """The times, in seconds since 1970, at which the server was suspended."""

    def add(self, part: str, seconds: float = 0.0) -> None:
        """Note that a fault disturbs a part from now on for `seconds`."""
        now = time.monotonic()
        self._times[part].append((now, now + seconds))
        if part == SERVER:
            self.suspensions.append((time.time(), time.time() + seconds))

    def count(self, part: str, begun: float, ended: float) -> int:
        """Return how many faults disturbed a part between `begun` and `ended`."""
        return sum(
            start - NOTED_SECONDS <= ended and begun <= end + RECOVERY_SECONDS
            for start, end in self._times.get(part, ())
        )

    def find(self, parts: Iterable[str], begun: float, ended: float) -> bool:
        """Return whether a fault disturbed one of `parts` at any time between `begun` and `ended`."""
        return any(self.count(part, begun, ended) for part in parts)
